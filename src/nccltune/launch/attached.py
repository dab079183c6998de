"""What torchrun starts ranks with in place of its own Python, so that ours is loaded before the
script. Nothing in the torchrun command has to be understood or changed for that.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
from pathlib import Path

from nccltune.errors import StudyError
from nccltune.launch.leftovers import keep, own_folder, temporary_folder
from nccltune.launch.worker_files import place_worker, placed_files
from nccltune.worker.attach import USERS_PYTHON_EXEC

ENTRY = "nccltune/worker/attach/main.py"
"""The attachment's entry, below the folder that the worker's files are placed in."""

_NAME = "attached-python"

# What torchrun would have started: what PYTHON_EXEC named before, or the Python that it runs in
# itself, by its first argument, which leads into a virtual environment, or else by the program.
_TORCHRUNS = r"""python=${USERS:-}
if [ -z "$python" ]; then
    first=$(tr '\0' '\n' <"/proc/$PPID/cmdline" | head -n 1)
    for each in "$first" "$(readlink "/proc/$PPID/exe")"; do
        case ${each##*/} in
        python* | pypy*) [ -n "$python" ] || python=$(command -v "$each") ;;
        esac
    done
fi
if [ -z "$python" ]; then
    echo "nccltune: $first starts this, and is no Python to run a script with" >&2
    exit 127
fi""".replace("USERS", USERS_PYTHON_EXEC)

_SCRIPT = """#!/bin/sh
# torchrun starts ranks with this (PYTHON_EXEC): the script runs as ever, with nccltune beside it.
{python}
main="${{0%/*}}/{entry}"
case $1 in
-u) # for the interpreter, before it has begun
    shift
    exec "$python" -u "$main" "$@"
    ;;
*)
    exec "$python" "$main" "$@"
    ;;
esac
"""


def attached_python(folder: Path, python: str | None) -> Path:
    """Place the worker in `folder`, and beside it a program that takes what Python takes, `[-u]
    SCRIPT ...` or `[-u] -m MODULE ...`, and runs it with the attachment. Returns its path, which
    PYTHON_EXEC is to name.

    `python` is the job's own; with None it is the one that torchrun, which starts the program, runs
    in itself.

    Raises: StudyError where files cannot be written.
    """
    return write_program(place_worker(folder), python)


def write_program(folder: Path, python: str | None) -> Path:
    """The program alone, where the worker's files are there already. Raises StudyError."""
    program = folder.absolute() / _NAME
    try:
        program.write_text(_text(python))
        program.chmod(0o755)
    except OSError as error:
        raise StudyError(f"{program}: cannot be written: {error.strerror}") from error
    return _usable(program)


def _usable(program: Path) -> Path:
    if not os.access(program, os.X_OK):
        raise StudyError(f"{program}: programs cannot be started there (is it mounted noexec?)")
    return program


def _text(python: str | None) -> str:
    found = _TORCHRUNS if python is None else f"python={shlex.quote(python)}"
    return _SCRIPT.format(python=found, entry=ENTRY)


def lasting_attached_python(folder: Path) -> Path:
    """The same for a job that we do not outlive, with torchrun's own Python: in a folder below
    `folder` that is named after its contents, shared by all runs of this version and never changed.

    Raises: StudyError where that cannot be written, or programs there cannot be started.
    """
    place = folder.absolute() / f"attach-{_digest()}"
    if not _is_whole(place):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _put_in_place(place, own_folder(folder, ".new-"))
        except OSError as error:
            raise StudyError(f"{folder}: cannot be written: {error.strerror}") from error
    return _usable(place / _NAME)


def _digest() -> str:
    found = hashlib.sha256(_text(None).encode())
    for name, content in placed_files():
        found.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return found.hexdigest()[:16]


def _is_whole(place: Path) -> bool:
    """Whether everything is there: whoever cleans caches may have taken some of it."""
    try:
        return (place / _NAME).read_text() == _text(None) and all(
            (place / "nccltune" / name).read_bytes() == content for name, content in placed_files()
        )
    except (OSError, ValueError):
        return False


def _put_in_place(place: Path, new: Path) -> None:
    """At once, so that a run beside this one sees all of it or nothing."""
    try:
        attached_python(new, None)
        new.chmod(0o755)
        keep(new)
        for last in (False, False, True):
            try:
                new.rename(place)
                return
            except OSError:
                if _is_whole(place):  # another run was faster
                    return
                if last:
                    raise
            with temporary_folder(place.parent, ".old-") as old:
                with contextlib.suppress(FileNotFoundError):
                    place.rename(old / "attach")
    finally:
        shutil.rmtree(new, ignore_errors=True)
