"""What this machine is, in the parts that settings depend on. Holds no host name and no serials."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from nccltune.machine.gpus import Gpu, driver_version, visible_gpus
from nccltune.machine.host import cgroups

_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Machine:
    """CPU cores are those this process may use; memory sizes are bytes."""

    cpu: str
    cores: int
    memory_bytes: int
    gpus: tuple[str, ...]
    gpu_memory_bytes: tuple[int, ...]
    nvlinks: tuple[int, ...]
    driver: str | None
    torch: str | None = None
    cuda: str | None = None
    nccl: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Machine:
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in data.items()
        }
        return cls(**values)

    def digest(self) -> str:
        """The same for machines on which the same settings can be expected to hold."""
        text = json.dumps(self.comparable(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def comparable(self) -> dict[str, Any]:
        """Everything but memory sizes, which a virtual machine changes as it goes."""
        facts = self.to_dict()
        return {k: v for k, v in facts.items() if not k.endswith("memory_bytes")}

    def with_job(self, facts: Mapping[str, Any]) -> Machine:
        """Completed by what the job's Python says of itself."""
        return replace(
            self,
            torch=facts.get("torch"),
            cuda=facts.get("cuda_version"),
            nccl=facts.get("nccl_built"),
        )

    def of_ranks(self, count: int | None) -> Machine:
        """With the first GPUs alone, one for each rank; None: all of them count."""
        return replace(
            self,
            gpus=self.gpus[:count],
            gpu_memory_bytes=self.gpu_memory_bytes[:count],
            nvlinks=self.nvlinks[:count],
        )

    def summary(self) -> str:
        """One line: what a person would call this machine."""
        if not self.gpus:
            return f"{self.cores} CPU cores ({self.cpu}), no GPU in use"
        names = sorted(set(self.gpus))
        gpus = ", ".join(f"{self.gpus.count(name)}x {name}" for name in names)
        return f"{gpus}, driver {self.driver}, {self.cores} CPU cores"


def available_memory() -> int:
    """Bytes of memory that our processes can still have: what is free without swapping, and what
    the cgroup and those above it leave, where a container or a job of a queue has a limit.
    """
    free = [int(psutil.virtual_memory().available), *_left_by_cgroups(_CGROUPS)]
    return max(0, min(free))


def _left_by_cgroups(root: Path) -> Iterator[int]:
    """Bytes left below each limit of ours (cgroup v2); caches of files count as left."""
    for place in cgroups("memory", root):
        try:
            limit = (place / "memory.max").read_text().strip()
            used = int((place / "memory.current").read_text())
            stat = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
            if limit != "max":
                yield int(limit) - used + int(stat.get("inactive_file", 0))
        except (OSError, ValueError):
            continue


def this_machine(environ: Mapping[str, str], *, use_gpus: bool) -> tuple[Machine, tuple[Gpu, ...]]:
    """The machine as jobs started now would see it, and its GPUs (none unless `use_gpus`)."""
    gpus = visible_gpus(environ) if use_gpus else ()
    machine = Machine(
        cpu=_cpu_name(),
        cores=available_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=tuple(gpu.name for gpu in gpus),
        gpu_memory_bytes=tuple(gpu.memory_bytes for gpu in gpus),
        nvlinks=tuple(gpu.nvlinks for gpu in gpus),
        driver=driver_version() if gpus else None,
    )
    return machine, gpus


def available_cores() -> int:
    """Cores this process may use: its CPU affinity, and the cgroup's quota where one is set."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    if quota.isdigit() and period.isdigit():
        return max(1, min(cores, int(quota) // int(period)))
    return cores


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
