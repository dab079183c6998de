"""Files that set variables, read as whoever uses them would: a shell, NCCL, docker --env-file."""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nccltune.errors import UsageError
from nccltune.nccl.findings import Finding, Setting, shown
from nccltune.nccl.line_settings import MARK, Format, LineReader, text_of
from nccltune.nccl.readers import concerns
from nccltune.nccl.shell_settings import shell_settings
from nccltune.nccl.site import conf_files

__all__ = [
    "LARGEST",
    "LONGEST_WAIT",
    "EnvFile",
    "Format",
    "environment_files",
    "environment_settings",
    "guess_format",
    "load",
    "read_env_file",
]

LARGEST = 1 << 20
"""Bytes; a larger file sets no environment."""

LONGEST_WAIT = 30.0
"""Seconds that a pipe may take."""

_OWN_PIPE = re.compile(r"/dev/fd/\d+|/proc/self/fd/\d+", re.A)
_MEGATRON = re.compile(
    r"^[^#\n]*(?:--(?:tensor-model-parallel-size|sequence-parallel)\b|megatron)", re.M | re.I
)
_OUR_HEADER = re.compile(r"# nccltune [^\n]*\n(?:#[^\n]*\n)*?# machine: (?P<machine>[^\n]*)")
_SCRIPTS = (".sh", ".bash", ".zsh", ".ksh", ".csh", ".sbatch", ".slurm", ".job", ".pbs", ".lsf")
_SHELL_LINE = re.compile(
    rb"[ \t]*(?:export|setenv|unset|set|if|for|source|\.|declare|module|srun|mpirun|torchrun)[ \t]"
)
_FOR_ONE_COMMAND = re.compile(
    rb"\s*(?:\w+=\S*[ \t]+)*(?:TORCH_)?NCCL_(?!THREAD_THRESHOLDS=)\w+=[^\s'\"]+[ \t]+[^\s#].*", re.S
)
_DIRECTIVE = re.compile(rb"(?:\A|\n)#(?:SBATCH|PBS|BSUB)[ \t]")
_PLAIN_LINE = re.compile(rb"\s*[A-Za-z_]\w*[ \t]*(?:=.*)?\r?", re.S)
_OTHER_KINDS = {
    ".yaml": "YAML",
    ".yml": "YAML",
    ".json": "JSON",
    ".toml": "TOML",
    ".py": "Python",
    ".ipynb": "a notebook",
    ".dockerfile": "a Dockerfile",
}


@dataclass(frozen=True)
class EnvFile:
    """`guessed` where nothing but the lines themselves tells the format. `megatron`: the script
    shows that it trains with Megatron. `measured`: the machine on which nccltune measured these.
    """

    file: str
    format: Format | Literal["environment"]
    guessed: bool
    settings: tuple[Setting, ...]
    findings: tuple[Finding, ...]
    megatron: bool = False
    measured: str | None = None


def load(path: Path) -> bytes:
    """The bytes of a file, or of a pipe of this process that is given by its number, as a shell
    does for <(command). Raises UsageError where it is none, or of no sensible size.
    """
    where = shown(str(path), 4096)
    try:
        if path.is_dir():
            raise UsageError(f"{where}: is a folder")
        if _OWN_PIPE.fullmatch(str(path)) and path.is_fifo():
            return _from_pipe(path, where)
        if path.exists() and not path.is_file():
            raise UsageError(f"{where}: is no file; give - to read what is piped in")
        with path.open("rb") as stream:
            content = stream.read(LARGEST + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"{where}: cannot be read: {reason}") from error
    return content


def _from_pipe(path: Path, where: str) -> bytes:
    """What the pipe gives until its writer leaves, within limits of size and time."""
    content, ends = b"", time.monotonic() + LONGEST_WAIT
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while len(content) <= LARGEST:
            left = ends - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise UsageError(f"{where}: nothing more came within {LONGEST_WAIT:g} s")
            try:
                part = os.read(descriptor, LARGEST + 1 - len(content))
            except BlockingIOError:  # another reader was faster
                continue
            if not part:
                break
            content += part
    finally:
        os.close(descriptor)
    return content


def read_env_file(file: str, content: bytes, given: Format | None = None) -> EnvFile:
    """What the file sets. `file` is its name in messages, and a hint at the format.

    Raises: UsageError for what is no text, or far too large.
    """
    where = shown(file, 4096)
    if len(content) > LARGEST:
        raise UsageError(f"{where}: larger than {LARGEST} bytes: no file of settings")
    if b"\0" in content:
        raise UsageError(f"{where}: holds NUL bytes: no text file")
    kind = "a Dockerfile" if Path(file).name == "Dockerfile" else None
    kind = kind or _OTHER_KINDS.get(Path(file).suffix.lower())
    if kind is not None and given is None:
        raise UsageError(
            f"{where}: is {kind}; lint reads shell files, nccl.conf and files of docker "
            "--env-file; --format says which"
        )
    format, guessed = (given, False) if given is not None else guess_format(file, content)
    if format == "shell":
        text = text_of(content.removeprefix(MARK))
        settings, findings = shell_settings(file, text)
        findings = (*_marked(file, content), *findings)
        megatron = _MEGATRON.search(text) is not None
        return EnvFile(file, format, guessed, settings, findings, megatron, _measured_on(text))
    reader = LineReader(file, format, guessed)
    if format == "nccl.conf":
        reader.conf(content)
    else:
        reader.docker(content)
        if guessed and reader.settings:
            text = (
                "read as docker --env-file (NAME=VALUE lines): sourced by a shell, nothing of it "
                "is exported (set -a; . FILE; set +a)"
            )
            reader.findings.append(Finding(file, None, "assumed-format", "", text))
    return EnvFile(file, format, guessed, tuple(reader.settings), tuple(reader.findings))


def _measured_on(text: str) -> str | None:
    """The machine in the header of a file that nccltune wrote, None where it is not ours."""
    match = _OUR_HEADER.match(text)
    return None if match is None else match["machine"].strip()


def environment_files(environ: Mapping[str, str]) -> tuple[tuple[EnvFile, ...], tuple[str, ...]]:
    """The environment, and NCCL's own files in the order in which NCCL gives way to them; and why
    those that are there and cannot be read are left out.
    """
    read = [EnvFile("environment", "environment", False, environment_settings(environ), ())]
    unread = []
    for path in conf_files(environ):
        where = shown(str(path), 4096)
        try:
            if path.is_file():
                read.append(read_env_file(str(path), load(path), "nccl.conf"))
            elif os.path.lexists(path):
                unread.append(f"{where}: is no file, and is not looked at")
            elif str(path) == environ.get("NCCL_CONF_FILE"):
                unread.append(
                    f"{where}, which NCCL_CONF_FILE names, is not there; NCCL does not read "
                    "~/.nccl.conf in its place"
                )
        except UsageError as error:
            unread.append(f"{error}; NCCL may read it all the same")
        except OSError as error:
            unread.append(f"{where}: cannot be read: {error.strerror}")
    return tuple(read), tuple(unread)


def _marked(file: str, content: bytes) -> Iterator[Finding]:
    """A byte-order mark before what a shell is to run."""
    first = content.removeprefix(MARK).split(b"\n", 1)[0].strip()
    if content.startswith(MARK) and first and not first.startswith(b"#"):
        text = (
            "a byte-order mark stands at the beginning of the file: a shell takes it for a part of "
            "the first word, which is not found; save the file without it"
        )
        yield Finding(file, 1, "byte-order-mark", "", text)


def guess_format(file: str, content: bytes) -> tuple[Format, bool]:
    """The format, and whether only the form of the lines speaks for it."""
    name, content = Path(file).name.lower(), content.removeprefix(MARK)
    if name.endswith(".conf"):
        return "nccl.conf", False
    if name.endswith(_SCRIPTS) or content.startswith(b"#!") or _DIRECTIVE.search(content):
        return "shell", False
    if name.endswith(".env") and "docker" in name:
        return "docker", False
    lines = [line for line in content.split(b"\n") if line.strip()]
    lines = [line for line in lines if not line.lstrip().startswith(b"#")]
    if any(_SHELL_LINE.match(line) or _FOR_ONE_COMMAND.match(line) for line in lines):
        return "shell", False
    plain = bool(lines) and all(_PLAIN_LINE.fullmatch(line) for line in lines)
    return ("docker", "docker" not in name) if plain else ("shell", False)


def environment_settings(environ: Mapping[str, str]) -> tuple[Setting, ...]:
    """The variables of a process that lint knows something of."""
    return tuple(
        Setting("environment", None, name, value, "environment")
        for name, value in sorted(environ.items())
        if concerns(name)
    )
