"""Ranks that an earlier tuner or supervisor could not end, found by a tag they carry."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from nccltune.errors import StudyError

TAG = "NCCLTUNE_TAG"
_SECONDS = 10.0


def tagged_processes(tag: str) -> list[int]:
    """Processes of ours (readable /proc/PID/environ) that were started under this study's tag."""
    wanted = f"{TAG}={tag}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def end_tagged(tag: str) -> int:
    """Kill them all, however they fork meanwhile, and see them gone (a process that gives its GPU
    memory back takes a while to go). Returns how many were met.

    Raises: StudyError naming those that cannot be ended.
    """
    met: set[int] = set()
    deadline = time.monotonic() + _SECONDS
    while living := [pid for pid in tagged_processes(tag) if not _is_zombie(pid)]:
        if time.monotonic() > deadline:
            listed = ", ".join(map(str, living))
            raise StudyError(f"processes of this study cannot be ended: {listed}; look at them")
        met.update(living)
        for pid in living:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return len(met)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and not _is_zombie(pid)
