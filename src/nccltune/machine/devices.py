"""Network devices and shared memory, as the kernel shows them to a process here."""

from __future__ import annotations

import os
from pathlib import Path

_CLASSES = Path("/sys/class")
_VERBS = Path("/dev/infiniband")


def rdma_devices(classes: Path = _CLASSES) -> tuple[str, ...] | None:
    """Names of InfiniBand and RoCE devices; None where /sys does not tell."""
    if not classes.is_dir():
        return None
    return _entries(classes / "infiniband")


def has_verbs(folder: Path = _VERBS) -> bool:
    """Whether a process here can open RDMA devices. Containers often show the devices alone."""
    return any(name.startswith("uverbs") for name in _entries(folder))


def interfaces(classes: Path = _CLASSES) -> tuple[str, ...] | None:
    """Names of network interfaces; None where /sys does not tell."""
    folder = classes / "net"
    found = tuple(name for name in _entries(folder) if (folder / name).is_dir())
    return found or None


def shared_memory_bytes(folder: str = "/dev/shm") -> int | None:
    """Size of the file system in which processes share memory."""
    return shared_memory(Path(folder))[0]


def shared_memory(folder: Path) -> tuple[int | None, int | None]:
    """The size of that file system and what is free of it, in bytes; None where it is not there."""
    try:
        info = os.statvfs(folder)
    except OSError:
        return None, None
    return info.f_frsize * info.f_blocks, info.f_frsize * info.f_bavail


def _entries(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(folder)))
    except OSError:
        return ()
