"""What the host, or a container, leaves to a job: shared memory, limits, cores; how PCIe is set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nccltune.machine.devices import shared_memory

_UNLIMITED = 1 << 60
"""Bytes from which on a limit is none: cgroup v1 writes a number near 2^63."""
_EXTENDED = 0x100  # where PCI Express capabilities begin; only root may read that far
_ACS = 0x0D
_SOURCE_VALIDATION = 0x1
_BRIDGE = "0x0604"


@dataclass(frozen=True)
class Host:
    """None is unknown, or no limit where it is one; sizes are in bytes.

    cpu_limit: cores' worth of time that a cgroup allows. cores: those this process may run on.
    nodes: the cores of each NUMA node. virtual: a virtual machine. iommu: off, passthrough or on
    (addresses of devices are translated). acs_bridges: PCI bridges that send traffic between
    devices by way of the processor; only root can count them.
    """

    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    cpu_limit: float | None = None
    cores: tuple[int, ...] = ()
    nodes: tuple[tuple[int, tuple[int, ...]], ...] = ()
    virtual: bool | None = None
    iommu: str | None = None
    acs_bridges: int | None = None


def read_host(root: Path = Path("/")) -> Host:
    """Reads below `root`, which has proc, sys and dev. Never fails."""
    size, free = shared_memory(root / "dev/shm")
    memory = _memory(root)
    limits = [limit for limit in _memory_limits(root) if limit < min(_UNLIMITED, memory or 1 << 63)]
    return Host(
        shm_bytes=size,
        shm_free_bytes=free,
        memory_bytes=memory,
        memory_limit_bytes=min(limits, default=None),
        cpu_limit=min(_cpu_limits(root), default=None),
        cores=tuple(sorted(os.sched_getaffinity(0))),
        nodes=_nodes(root / "sys/devices/system/node"),
        virtual=_is_virtual(root / "proc/cpuinfo"),
        iommu=_iommu(root / "sys"),
        acs_bridges=_acs_bridges(root / "sys/bus/pci/devices"),
    )


def _memory(root: Path) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemTotal:"):
            return 1024 * int(line.split()[1])
    return None


def _memory_limits(root: Path) -> Iterator[int]:
    """Of our cgroup and those above it, versions 1 and 2."""
    for folder in _cgroups_below(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            for text in _lines(folder / name)[:1]:
                if text.isdigit():  # "max" is none
                    yield int(text)


def _cpu_limits(root: Path) -> Iterator[float]:
    for folder in _cgroups_below(root, "cpu"):
        quota, period = (" ".join(_lines(folder / "cpu.max")).split() + ["", ""])[:2]
        if not quota:
            quota = "".join(_lines(folder / "cpu.cfs_quota_us"))  # -1 is none
            period = "".join(_lines(folder / "cpu.cfs_period_us"))
        if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)


def _cgroups_below(root: Path, controller: str) -> Iterator[Path]:
    return cgroups(controller, root / "sys/fs/cgroup", root / "proc/self/cgroup")


def cgroups(
    controller: str,
    mount: Path = Path("/sys/fs/cgroup"),
    listed: Path = Path("/proc/self/cgroup"),
) -> Iterator[Path]:
    """Our folders of a controller, the innermost first, whether they are there or not. In a
    container the path that /proc names is often the host's and not there; then the mount itself is
    ours.
    """
    for line in _lines(listed) or ["0::/"]:
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            tops = [mount, mount / "unified"]
        elif controller in names.split(","):
            tops = [mount / names, mount / controller]
        else:
            continue
        for top in tops:
            folder = top / path.strip("/")
            yield from (place for place in (folder, *folder.parents) if place.is_relative_to(top))


def _nodes(folder: Path) -> tuple[tuple[int, tuple[int, ...]], ...]:
    found = []
    for place in folder.glob("node[0-9]*"):
        listed = "".join(_lines(place / "cpulist"))
        if listed and place.name[4:].isdigit():
            found.append((int(place.name[4:]), cpus_in(listed)))
    return tuple(sorted(found))


def cpus_in(listed: str) -> tuple[int, ...]:
    """The numbers in the kernel's way to list cores, as 0-3,8."""
    found: list[int] = []
    for part in listed.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            found += range(int(first), int(last if last.isdigit() else first) + 1)
    return tuple(found)


def _is_virtual(cpuinfo: Path) -> bool | None:
    for line in _lines(cpuinfo):
        if line.startswith("flags"):
            return "hypervisor" in line.split()
    return None  # other processors than x86 do not tell


def _iommu(system: Path) -> str | None:
    """From the default domain of the devices' groups; "off" where the kernel drives none."""
    try:
        if not os.listdir(system / "class/iommu"):
            return "off"
        groups = list((system / "kernel/iommu_groups").iterdir())
    except OSError:
        return None
    kinds = {"".join(_lines(group / "type")) for group in groups}
    if kinds & {"DMA", "DMA-FQ"}:
        return "on"
    return "passthrough" if "identity" in kinds else None


def _acs_bridges(devices: Path) -> int | None:
    """Bridges whose access control has source validation on, which is what NVIDIA's guide has one
    look for (NCCL user guide, troubleshooting: PCI Access Control Services).
    """
    count = seen = 0
    for device in devices.glob("*") if devices.is_dir() else ():
        if not "".join(_lines(device / "class")).startswith(_BRIDGE):
            continue
        try:
            config = (device / "config").read_bytes()
        except OSError:
            return None
        if len(config) <= _EXTENDED:
            return None
        seen += 1
        count += bool(_acs_control(config) & _SOURCE_VALIDATION)
    return count if seen else None


def _acs_control(config: bytes) -> int:
    """The control register of a device's ACS capability; 0 where it has none."""
    at = _EXTENDED
    for _ in range(64):  # a broken list must not go round for ever
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == _ACS:
            return int.from_bytes(config[at + 6 : at + 8], "little")
        at = header >> 20
        if at < _EXTENDED:
            return 0
    return 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").strip().splitlines()
    except (OSError, ValueError):
        return []
