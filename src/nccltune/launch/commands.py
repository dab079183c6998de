"""A job's command line, as far as it shows how its Python processes are started."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?")
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")
_SHEBANG_BYTES = 512
_DIGITS = 10  # of a number of ranks: int() refuses thousands

# Options of torchrun that take no value of their own; all others do, those to come too.
_FLAGS = {
    "standalone",
    "m",
    "module",
    "no-python",
    "run-path",
    "use-env",
    "virtual-local-rank",
    "h",
}


@dataclass(frozen=True)
class JobCommand:
    """`way`: torchrun starts the ranks; or Python runs a script in the process that is started;
    or else it is not known what does. `python` is the interpreter that the command names or has in
    its first line, None where that is not known.

    torchrun: its own options begin at `options` in `argv`; `ranks` is what --nproc-per-node says,
    `nodes` --nnodes; `without_python` the option by which it starts ranks otherwise than as Python
    scripts. `script`: where in `argv` the script stands; for python, where its -m stands if it has
    one.
    """

    argv: tuple[str, ...]
    way: Literal["torchrun", "python", "other"]
    python: str | None = None
    ranks: str | None = None
    nodes: str | None = None
    without_python: str | None = None
    script: int | None = None
    options: int = 0


def rank_count(text: str | None) -> int | None:
    """What --nproc-per-node says, where it is a number; None for gpu, auto and nonsense."""
    if text is None or not text.isdecimal() or len(text) >= _DIGITS:
        return None
    return int(text)


def read_command(argv: Sequence[str], environ: Mapping[str, str]) -> JobCommand:
    """What is known of the command before it is started."""
    command = tuple(argv)
    name, rest = os.path.basename(command[0]), command[1:]
    path = environ.get("PATH")
    found = shutil.which(command[0], path=path)
    if name == "torchrun":
        return _torchrun(command, rest, _first_line(found, path), environ)
    if not _PYTHON.fullmatch(name):
        return JobCommand(command, "other", _first_line(found, path))
    at = python_script(command)
    if at is None:
        return JobCommand(command, "other", found)
    module = command[at + 1] if command[at] == "-m" else None
    if module in _LAUNCHERS:
        return _torchrun(command, command[at + 2 :], found, environ)
    if os.path.basename(command[at]) == "torchrun":
        return _torchrun(command, command[at + 1 :], found, environ)
    return JobCommand(command, "python", found, script=at)


def python_script(argv: Sequence[str]) -> int | None:
    """Where in a Python command the script stands, or its `-m`; None where there is neither."""
    at = 1
    while at < len(argv):
        word = argv[at]
        if word == "-m":
            return at if at + 1 < len(argv) else None
        if not word.startswith("-"):
            return at
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            at += 2
        elif re.fullmatch(r"-[bBdEiIOPqRsSuv]+|-[WX].+", word):
            at += 1
        else:  # -c, -, and what is rare
            return None
    return None


def _torchrun(
    argv: tuple[str, ...], given: Sequence[str], python: str | None, environ: Mapping[str, str]
) -> JobCommand:
    """Its own options end at the script; PET_NAME variables stand for those that are not given."""
    options = {
        name.removeprefix("PET_").lower().replace("_", "-"): value
        for name, value in environ.items()
        if name.startswith("PET_") and value not in ("", "0")
    }
    at = 0
    while at < len(given) and given[at].startswith("-"):
        name, equals, value = given[at].lstrip("-").replace("_", "-").partition("=")
        at += 1
        if not equals and name not in _FLAGS:
            value = given[at] if at < len(given) else ""
            at += 1
        options[name] = value
    without = next((f"--{name}" for name in ("no-python", "run-path") if name in options), None)
    ranks = options.get("nproc-per-node")
    return JobCommand(
        argv,
        "torchrun",
        python,
        ranks=ranks,
        nodes=options.get("nnodes"),
        without_python=without,
        script=len(argv) - len(given) + at,
        options=len(argv) - len(given),
    )


def _first_line(program: str | None, path: str | None) -> str | None:
    """The interpreter of a script in Python, by its first line."""
    if program is None:
        return None
    try:
        with Path(program).open("rb") as file:
            head = os.fsdecode(file.read(_SHEBANG_BYTES))
    except OSError:
        return None
    line, _, second = head.partition("\n")
    if line == "#!/bin/sh" and (long := re.match(r"'''exec' \"?([^\" ]+)", second)):
        return _usable(long[1])  # as pip writes it where the path is too long for a first line
    words = line[2:].split() if line.startswith("#!") else []
    if words and os.path.basename(words[0]) == "env":
        named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        words = [shutil.which(word, path=path) or "" for word in named]
    return _usable(words[0]) if words else None


def _usable(program: str) -> str | None:
    named = _PYTHON.fullmatch(os.path.basename(program)) is not None
    return program if named and os.access(program, os.X_OK) else None
