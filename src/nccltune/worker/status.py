"""Where a rank is and how it failed, in files beside its log, for the tuner to read."""

from __future__ import annotations

import json
import os
import time
import traceback
from pathlib import Path

LOG_DIR = "NCCLTUNE_LOG_DIR"
NODE = "NCCLTUNE_NODE"
"""Which of several nodes this is, from 0 on; unset where there is one machine."""

NODE_NAME = "NCCLTUNE_NODE_NAME"
"""What messages call it, where it is not Slurm that names it."""

KEPT = "NCCLTUNE_KEPT"
"""Variables, with commas, that are as the node's own login has set them, whatever a trial has."""

# As torch words it on the GPU, in CUDA's own calls, and for host memory.
_OUT_OF_MEMORY = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
)


class WrongResult(Exception):
    """A collective gave wrong sums, or the ranks' parameters are no longer equal; of `rank`, where
    it is not the one that found it.
    """

    def __init__(self, text: str, rank: int | None = None) -> None:
        super().__init__(text)
        self.rank = rank


class Disagreement(Exception):
    """Ranks would run with different settings; the text names rank, node and variable."""


class ScriptEnded(Exception):
    """The script is over, with this exit code, before it could be measured. The text says all: it
    was not raised anywhere.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Status:
    """What this rank is doing right now: a few bytes rewritten in place, some microseconds each."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        node = os.environ.get(NODE, "")  # a process id alone is known on one machine
        (folder / f"rank{rank}.pid").write_text(f"{os.getpid()} {node}".rstrip())
        self._file = os.open(folder / f"rank{rank}.status", os.O_WRONLY | os.O_CREAT, 0o644)
        self.phase = "start"
        self.step = 0
        self.at("start")

    def at(self, phase: str, step: int = 0, part: str = "") -> None:
        self.phase, self.step = phase, step
        os.pwrite(self._file, f"{phase}|{step}|{part}".ljust(63).encode() + b"\n", 0)

    def failed(self, error: BaseException) -> None:
        """Leave a record of the error; written to a temporary name first, so never half read."""
        blamed = error.rank if isinstance(error, WrongResult) else None
        record = {
            "rank": self._rank if blamed is None else blamed,
            "pid": os.getpid(),
            "time": time.time(),
            "phase": self.phase,
            "step": self.step,
            "kind": kind_of(error),
            "message": one_line(error),
        }
        target = self._folder / f"rank{self._rank}.error.json"
        temporary = target.with_suffix(".tmp")
        temporary.write_text(json.dumps(record))
        temporary.rename(target)
        if not isinstance(error, ScriptEnded):
            traceback.print_exception(error)


def kind_of(error: BaseException) -> str:
    """The failure kind of an exception; see docs/design.md."""
    if isinstance(error, ScriptEnded):
        return "crashed" if error.code else "ended"
    names = {cls.__name__ for cls in type(error).__mro__}
    text = str(error)
    if isinstance(error, WrongResult):
        return "wrong_result"
    if "OutOfMemoryError" in names or isinstance(error, MemoryError):
        return "out_of_memory"
    if any(sign in text for sign in _OUT_OF_MEMORY):
        return "out_of_memory"
    if "DistBackendError" in names or "NCCL error" in text:
        # NCCL reports its own failed allocations as an unhandled CUDA error.
        return "out_of_memory" if "out of memory" in text else "nccl_error"
    return "crashed"


def one_line(error: BaseException, limit: int = 400) -> str:
    """The error's text on one line; NCCL's own reason (`Last error:`) is kept, it comes last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines) if lines else ""
    if isinstance(error, (ScriptEnded, Disagreement)):
        return text[:limit]
    _, found, reason = text.partition("Last error:")
    if found:
        text = f"{lines[0]} ... {reason.strip()}"
    return f"{type(error).__name__}: {text}"[:limit] if text else type(error).__name__
