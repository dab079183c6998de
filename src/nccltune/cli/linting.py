"""The main path of `nccltune lint`: read, find out what will run it, look, print."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from nccltune.cli.speaking import say, tell
from nccltune.errors import UsageError
from nccltune.launch.libraries import Libraries, libraries_of
from nccltune.machine import devices
from nccltune.machine.gpus import compute_capabilities, visible_gpus
from nccltune.nccl.catalog import NEWEST
from nccltune.nccl.circumstances import Circumstances, MachineFacts
from nccltune.nccl.env_files import (
    LARGEST,
    EnvFile,
    Format,
    environment_files,
    load,
    read_env_file,
)
from nccltune.nccl.findings import Finding, printable, shown
from nccltune.nccl.lint import lint_files
from nccltune.nccl.site import site_variables
from nccltune.nccl.versions import known_version, parse_version, torch_release

_ASKED = "--nccl-version"
_MANY, _NAMED = 4, 3


@dataclass(frozen=True)
class _Read:
    """What one run looks at: the findings of reading are those of `files`. `unread` says of the
    others why they are left out.
    """

    files: tuple[EnvFile, ...]
    environment: bool = False
    unread: tuple[str, ...] = ()


def run_lint(
    files: Sequence[str],
    given: Format | None,
    nccl_version: str | None,
    python: str | None,
    as_json: bool,
) -> int:
    """Returns the exit code. Raises UsageError for what cannot be read, after the findings of what
    can be.
    """
    read = _read_files(files, given) if files else _read_environment()
    around, nccl_from = _circumstances(nccl_version, python)
    found = _findings(read, around)
    for note in _told(around, nccl_from):
        say(printable(note))
    counts: Counter[str] = Counter(item.severity for item in found)
    if as_json:
        tell(json.dumps(_document(read, around, nccl_from, found, counts), indent=2))
    for line in () if as_json else _lines(found):
        tell(printable(line))
    if not as_json:
        say(printable(_summary(read, counts)))
    if read.unread:
        raise UsageError("; ".join(read.unread))
    return 1 if counts["error"] or counts["warning"] else 0


# Reading.


def _read_files(files: Sequence[str], given: Format | None) -> _Read:
    read: list[EnvFile] = []
    unread: list[str] = []
    for name in files:
        try:
            read.append(read_env_file(name, _content(name), given))
        except UsageError as error:
            unread.append(str(error))
    if not read:
        raise UsageError("; ".join(unread))
    return _Read(tuple(read), unread=tuple(unread))


def _content(name: str) -> bytes:
    if name != "-":
        return load(Path(name))
    try:
        return sys.stdin.buffer.read(LARGEST + 1)
    except (OSError, ValueError, AttributeError) as error:  # closed, or no stream at all
        raise UsageError(f"-: standard input cannot be read: {error}") from error


def _read_environment() -> _Read:
    """The environment, and NCCL's own files behind it."""
    files, unread = environment_files(os.environ)
    for reason in unread:
        say(printable(f"note: {reason}"))
    return _Read(files, environment=True)


# What the settings will meet.


def _libraries(python: str | None) -> Libraries:
    if python is None:
        return libraries_of(sys.executable, os.environ)
    from nccltune.study.survey import find_python  # brings much that lint does not need

    found = libraries_of(find_python(python), os.environ)
    if found.trouble is not None:
        say(printable(f"note: --python {python}: {found.trouble}"))
    return found


def _circumstances(asked: str | None, python: str | None) -> tuple[Circumstances, str | None]:
    """The circumstances, and where NCCL's version is from; None where no NCCL was found."""
    site = site_variables(os.environ)
    if asked is not None:
        around = Circumstances(version=_asked_version(asked), site=site)
        found = _libraries(python) if python else Libraries()
        around = replace(around, torch=torch_release(found.torch))
        return around, _ASKED
    found = _libraries(python)
    version = known_version(found.nccl)
    around = Circumstances(version or NEWEST, torch_release(found.torch), _machine(), site)
    return around, None if version is None else found.nccl_from


def _told(around: Circumstances, nccl_from: str | None) -> Iterator[str]:
    """What the findings hold for."""
    if nccl_from == _ASKED:
        yield f"for NCCL {around.version}; this machine is left out of account"
        yield from _newer(around.version)
        return
    if nccl_from is None:
        yield (
            f"no NCCL found: taking {NEWEST}, the newest that is known; --nccl-version says another"
        )
    else:
        yield f"for NCCL {around.version} ({nccl_from})"
    yield from _newer(around.version)
    if around.machine is None:
        yield "no GPU here: devices and links are left out of account"


def _newer(version: Version) -> Iterator[str]:
    if version > NEWEST:
        yield f"NCCL {version} is newer than what is known here ({NEWEST}): checked as that one"


def _asked_version(text: str) -> Version:
    try:
        version = parse_version(text)
    except ValueError as error:
        raise UsageError(f"--nccl-version {shown(text)}: {error}") from error
    if not Version("2") <= version < Version("3"):
        raise UsageError(f"--nccl-version {shown(text)}: must be 2.x, as 2.28.9")
    return version


def _machine() -> MachineFacts | None:
    """This machine; None without a GPU that jobs see, since then they run elsewhere."""
    gpus = visible_gpus(os.environ)
    if not gpus:
        return None
    return MachineFacts(
        capabilities=compute_capabilities(gpus) or None,
        nvlinks=tuple(gpu.nvlinks for gpu in gpus),
        rdma=devices.rdma_devices(),
        verbs=devices.has_verbs(),
        interfaces=devices.interfaces(),
        architecture=platform.machine() or None,
        shm_bytes=devices.shared_memory_bytes(),
    )


# Results.


def _findings(read: _Read, around: Circumstances) -> list[Finding]:
    """Each file by itself; the environment together with NCCL's own files."""
    if read.environment:
        return list(lint_files(read.files, around))
    by_file = [lint_files([file], _without_itself(around, file.file)) for file in read.files]
    return [item for found in by_file for item in found]


def _without_itself(around: Circumstances, file: str) -> Circumstances:
    """A file of NCCL's own configuration does not contradict the site: it is a part of it."""
    real = os.path.realpath(file)
    site = {
        name: variable
        for name, variable in around.site.items()
        if variable.source == "environment" or os.path.realpath(variable.source) != real
    }
    return replace(around, site=site)


def _lines(found: Sequence[Finding]) -> Iterator[str]:
    """A line for each; one for all that a file does not export, where that is many."""
    hidden: dict[str, list[Finding]] = {}
    for item in found:
        if item.rule == "not-exported":
            hidden.setdefault(item.file, []).append(item)
    for item in found:
        alike = hidden.get(item.file, []) if item.rule == "not-exported" else []
        if len(alike) < _MANY:
            yield _line(item)
        elif item is alike[0]:
            yield _line(replace(item, name="", message=_not_exported(alike)))


def _not_exported(alike: Sequence[Finding]) -> str:
    names = list(dict.fromkeys(shown(item.name) for item in alike))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"{len(alike)} settings that the shell keeps for itself unless they are exported: "
        f"{', '.join(names[:_NAMED])}{more}; write export before each, or set -a above them"
    )


def _line(item: Finding) -> str:
    place = item.file if item.line is None else f"{item.file}:{item.line}"
    name = f"{shown(item.name)}: " if item.name else ""
    source = f" ({item.source})" if item.source else ""
    return f"{place}: {item.severity}: {name}{item.message} [{item.rule}]{source}"


def _summary(read: _Read, counts: Mapping[str, int]) -> str:
    settings = sum(not s.unset for file in read.files for s in file.settings)
    listed = ", ".join(
        f"{counts[severity]} {severity}{'' if counts[severity] == 1 else 's'}"
        for severity in ("error", "warning", "note")
    )
    where = ", ".join(file.file for file in read.files)
    return f"{settings} setting{'' if settings == 1 else 's'} in {where}: {listed}"


def _document(
    read: _Read,
    around: Circumstances,
    nccl_from: str | None,
    found: Sequence[Finding],
    counts: Mapping[str, int],
) -> dict[str, Any]:
    return {
        "nccl": str(around.version),
        "nccl_from": nccl_from,
        "torch": None if around.torch is None else str(around.torch),
        "machine": None if around.machine is None else around.machine.to_dict(),
        "files": [{"file": file.file, "format": file.format} for file in read.files],
        "unread": list(read.unread),
        "findings": [item.to_dict() for item in found],
        "errors": counts["error"],
        "warnings": counts["warning"],
        "notes": counts["note"],
    }
