"""Asks the job's Python which NCCL and torch it would load; quick, since torch is not imported."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nccltune.errors import UsageError
from nccltune.launch.diagnosis import read_end
from nccltune.launch.leftovers import temporary_folder
from nccltune.launch.stopping import StopFlag
from nccltune.launch.supervised import Supervised, read_answer
from nccltune.worker import libraries

_LIMIT_SECONDS = 60.0
_MOST_BYTES = 1 << 20
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Libraries:
    """Versions as they are written there (NCCL's may be its code, 22809); None where unknown.
    `trouble` is why that interpreter gave no answer.
    """

    nccl: str | None = None
    nccl_from: str | None = None
    torch: str | None = None
    trouble: str | None = field(default=None, compare=False)


def libraries_of(
    python: str, environ: Mapping[str, str], stop: StopFlag | None = None
) -> Libraries:
    """What that interpreter would load; nothing but the trouble where it does not answer.

    Raises: Interrupted, if it is to `stop`.
    """
    with temporary_folder() as folder:
        answer, log = folder / "answer.json", folder / "output.log"
        try:
            code = _run(python, environ, answer, log, stop)
        except OSError as error:
            return Libraries(trouble=f"cannot be started: {error.strerror}")
        found = read_answer(answer)
        if found is not None and {"nccl", "nccl_from", "torch"} <= found.keys():
            return Libraries(*(_text(found[name]) for name in ("nccl", "nccl_from", "torch")))
        said = read_end(log, 4096).strip().splitlines()[-1:]
        tail = f": {said[0][:200]}" if said else ""
        return Libraries(trouble=f"{code} and did not answer as a Python would{tail}")


def check_python(python: str, environ: Mapping[str, str], stop: StopFlag) -> None:
    """Raises UsageError for a program that does not answer as a Python would; Interrupted."""
    trouble = libraries_of(python, environ, stop).trouble
    if trouble is not None:
        raise UsageError(
            f"--python {python}: {trouble}; give the interpreter of the job, as in "
            "--python /path/to/venv/bin/python"
        )


def _run(
    python: str, environ: Mapping[str, str], answer: Path, log: Path, stop: StopFlag | None
) -> str:
    """Returns how it ended."""
    process = Supervised(  # with all that it starts, where it does not end
        [python, str(libraries.__file__), str(answer)], environ, log, most=_MOST_BYTES
    )
    deadline = time.monotonic() + _LIMIT_SECONDS
    try:
        while not process.wait(_LOOK_SECONDS) and time.monotonic() < deadline:
            if stop is not None:
                stop.check()
        code = process.poll()
    finally:
        process.end()
    if process.flooded:
        return f"printed more than {_MOST_BYTES >> 20} MiB"
    if code is None:
        return f"was not done within {_LIMIT_SECONDS:.0f} s"
    return f"ended with exit code {code}"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
