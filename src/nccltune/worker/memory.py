"""Memory of this rank: its GPU's, or the process's where there is none. Bytes."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch


def peak_memory(device: torch.device) -> tuple[int, int]:
    """(peak allocated, peak reserved) since `forget_peak_memory`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    resident = _of_status("VmHWM")
    return resident, resident


def held_memory(device: torch.device) -> int:
    """What is in use now, contexts and communicators included. After a measurement it should be
    what it was after the one before.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    return _of_status("VmRSS")


def forget_peak_memory(device: torch.device) -> None:
    """Peaks begin anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: VmHWM begins anew


def _of_status(name: str) -> int:
    """From a line of /proc/self/status in kB; 0 where there is none."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
