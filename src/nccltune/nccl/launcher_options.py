"""Variables that a command's own options set: env, mpirun -x, docker -e, srun --export."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nccltune.nccl import grammar
from nccltune.nccl.catalog import lookup
from nccltune.nccl.findings import shown
from nccltune.nccl.readers import concerns
from nccltune.nccl.shell_parts import Word
from nccltune.nccl.shell_words import read_script

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.S | re.A)
"""NAME=value, NAME+=value."""

_SLURM = frozenset({"srun", "sbatch", "salloc"})
_MPI = frozenset({"mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra"})
_CONTAINERS = frozenset({"docker", "nvidia-docker", "podman", "nerdctl"})
_SUBMITTERS = frozenset({"sbatch", "qsub", "bsub"})
_WITH_A_WORD = frozenset({"-u", "--unset", "-C", "--chdir", "-g", "-h", "-p", "-D", "-r", "-t"})
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})

HARMLESS = frozenset(
    {
        *("", ":", "[", "[[", "alias", "cat", "cd", "conda", "date", "declare", "echo", "export"),
        *("false", "hostname", "local", "mkdir", "ml", "module", "nvidia-smi"),
        *("printf", "pwd", "read", "readonly", "set", "setenv", "shift", "shopt", "sleep"),
        *("source", ".", "test", "trap", "true", "typeset", "ulimit", "umask", "unset"),
    }
)
"""Commands that run no collective."""


@dataclass(frozen=True)
class Fault:
    """Something wrong with how a variable is given."""

    line: int
    rule: str
    name: str
    message: str


def base(word: Word) -> str:
    """The command that a word names, without its folder."""
    return word.text.rpartition("/")[2]


def joined(name: Word, value: Word) -> Word:
    """NAME=value of two words."""
    computed = name.computed or value.computed
    return replace(value, line=name.line, text=f"{name.text}={value.text}", computed=computed)


def given(words: Sequence[Word], exported: str | None, *, array: bool) -> Iterator[Word | Fault]:
    """The assignments among the options of a command, `exported` being a variable that the script
    has exported before. An `array` may be meant for any command.
    """
    names = [base(word) for word in words]
    if array:
        yield from _array(words)
    elif not _SLURM.isdisjoint(names):
        yield from slurm_export(words, exported)
    elif not _MPI.isdisjoint(names):
        yield from _mpi(words)
    elif not _CONTAINERS.isdisjoint(names):
        yield from _container(words)
    for wrapper in ("env", "sudo"):
        if wrapper in names and not array:
            yield from _env(words[names.index(wrapper) + 1 :])


def taken_away(words: Sequence[Word]) -> Iterator[Word]:
    """The names that env keeps from its command."""
    names = [base(word) for word in words]
    if "env" not in names:
        return
    options = words[names.index("env") + 1 :]
    for index, word in enumerate(options):
        if word.text.startswith("--unset="):
            yield replace(word, text=word.text.removeprefix("--unset="))
        elif word.text in ("-u", "--unset"):
            yield from options[index + 1 : index + 2]


def reads_a_script(words: Sequence[Word]) -> bool:
    """Whether the command takes its input for a script: `bash -s`, `ssh HOST bash`, `sbatch`."""
    names = [base(word) for word in words]
    if not _SUBMITTERS.isdisjoint(names):
        return True
    start = next((i for i, name in enumerate(names) if name in _SHELLS), len(names))
    options = names[start + 1 :]
    return start < len(names) and ("-s" in options or all(o.startswith("-") for o in options))


def inner_script(words: Sequence[Word]) -> Word | None:
    """The script of `bash -c SCRIPT`, wherever in the command it stands."""
    start = next((i for i, word in enumerate(words) if base(word) in _SHELLS), len(words))
    for word, following in zip(words[start + 1 :], words[start + 2 :], strict=False):
        if not word.text.startswith("-"):
            return None
        if word.text[1:2] != "-" and word.text.endswith("c"):
            return following
    return None


def _env(arguments: Sequence[Word]) -> Iterator[Word]:
    before = ""
    for word in arguments:
        if before in ("-S", "--split-string"):
            for command in read_script(word.script, word.line).commands[:1]:
                yield from _env(command.words)
            return
        if ASSIGNMENT.fullmatch(word.text):
            yield word
        elif not word.text.startswith("-") and before not in _WITH_A_WORD:
            return
        before = word.text


def _array(words: Sequence[Word]) -> Iterator[Word | Fault]:
    """Options for whatever command, or assignments for env."""
    yield from slurm_export(words, None)
    for index, word in enumerate(words):
        if ASSIGNMENT.fullmatch(word.text):
            yield word
        elif word.text in ("-genv", "-env") and index + 2 < len(words):
            if "=" not in words[index + 1].text:
                yield joined(words[index + 1], words[index + 2])
        else:
            yield from _attached(word)


def _mpi(words: Sequence[Word]) -> Iterator[Word]:
    """Open MPI: -x NAME=value; Hydra: -genv NAME value."""
    for index, word in enumerate(words[:-1]):
        following = words[index + 1]
        if word.text in ("-x", "-genv", "-env") and "=" in following.text:
            yield following
        elif word.text in ("-genv", "-env") and index + 2 < len(words):
            yield joined(following, words[index + 2])


def _container(words: Sequence[Word]) -> Iterator[Word]:
    for index, word in enumerate(words):
        if word.text in ("-e", "--env") and index + 1 < len(words):
            yield words[index + 1]
        else:
            yield from _attached(word)


def _attached(word: Word) -> Iterator[Word]:
    """An assignment in one word with its option: --env=NAME=value, -eNAME=value."""
    for option in ("--env=", "-e"):
        if word.text.startswith(option) and ASSIGNMENT.fullmatch(word.text[len(option) :]):
            yield replace(word, text=word.text[len(option) :])
            return


def slurm_export(words: Sequence[Word], exported: str | None) -> Iterator[Word | Fault]:
    """What --export of srun, sbatch or an #SBATCH line sets."""
    for index, word in enumerate(words):
        if word.text.startswith("--export="):
            value = replace(word, text=word.text.removeprefix("--export="))
        elif word.text == "--export" and index + 1 < len(words):
            value = words[index + 1]
        else:
            continue
        pieces = slurm_pieces(value.text)
        whole = value.computed or "ALL" in [piece.upper() for piece in pieces]
        if base(words[0]) == "srun" and exported is not None and not whole:
            yield Fault(
                word.line,
                "not-passed-on",
                exported,
                f"--export without ALL leaves out {exported} and all else that was exported; "
                "write --export=ALL,...",
            )
        yield from _pieces(value, pieces)


def _pieces(word: Word, pieces: Sequence[str]) -> Iterator[Word | Fault]:
    name = ""
    for piece in pieces:
        if match := ASSIGNMENT.fullmatch(piece):
            name, value = match[1], match[3]
            if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
                yield Fault(
                    word.line,
                    "quotes-kept",
                    name,
                    "Slurm leaves these quotes in the value; export the variable before, and write "
                    "--export=ALL",
                )
            else:
                yield replace(word, text=piece)
        elif name and concerns(name) and _is_rest_of(name, piece):
            yield Fault(
                word.line,
                "cut-at-comma",
                name,
                f"Slurm ends the value at the comma and takes {shown(piece)} for another "
                f"variable; export {name} before, and write --export=ALL",
            )


def slurm_pieces(text: str) -> list[str]:
    """The list of --export as Slurm cuts it: commas in quotes do not count, and quotes go only
    where they enclose a whole piece (find_quote_token in its src/common).
    """
    pieces, start, single, double = [], 0, False, False
    for at, c in enumerate(f"{text},"):
        if c == "'":
            single = not single
        elif c == '"':
            double = not double
        elif c == "," and (at == len(text) or not (single or double)):
            pieces.append(text[start:at])
            start = at + 1
    return [
        piece[1:-1] if len(piece) > 1 and piece[0] == piece[-1] and piece[0] in "'\"" else piece
        for piece in pieces
        if piece
    ]


def _is_rest_of(name: str, piece: str) -> bool:
    """Whether a piece behind NAME=value reads as the rest of that value, not as another name."""
    if piece.upper() in ("ALL", "NONE", "NIL"):
        return False
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", piece):
        return True
    variable = lookup(name)
    if name in ("NCCL_ALGO", "NCCL_PROTO"):
        return piece in [token.upper() for token in grammar.tokens(name, None)]
    return variable is not None and variable.kind == "list" and piece in variable.choices
