"""Machines without their hardware: an NVML that answers as real ones did, and /sys beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nccltune.machine import gpu_links, gpus, topology
from nccltune.machine.host import Host
from nccltune.machine.nics import Interface

NOT_SUPPORTED, INVALID, LOST = 3, 2, 15
SWITCH, OTHER_GPU = 2, 0
NOWHERE = "FFFFFFFF:FF:FF.0"
"""What virtual machines give as the address of an NVSwitch."""


HOST = Host(
    shm_bytes=256 << 30,
    shm_free_bytes=255 << 30,
    memory_bytes=256 << 30,
    cores=tuple(range(32)),
    nodes=((0, tuple(range(32))),),
    virtual=True,
)
"""A virtual machine with 32 cores."""
ETH0 = Interface("eth0", up=True, driver="virtio_net")


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


@dataclass(frozen=True)
class FakeGpu:
    """links: where each NVLink leads, "down" or "lost"; SWITCH, a bus id. pcie: generation and
    width now, at most, and the GPU's own generation; None is "not supported".
    """

    bus: str
    name: str = "NVIDIA H200"
    memory: int = 150_754_820_096
    links: tuple[Any, ...] = ()
    pcie: tuple[int, int, int, int, int] | None = None
    node: int | None = 0
    cpus: tuple[int, ...] = tuple(range(32))
    used: int | None = 0


@dataclass
class FakeNvml:
    """`levels`: common ancestors by pair. `peers`: P2P status by pair, for reading and writing."""

    gpus: tuple[FakeGpu, ...]
    levels: Mapping[tuple[int, int], int] = field(default_factory=dict)
    peers: Mapping[tuple[int, int], int] = field(default_factory=dict)
    nvlink_peers: Mapping[tuple[int, int], int] = field(default_factory=dict)
    hides_types: bool = False

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED = NOT_SUPPORTED
    NVML_ERROR_INVALID_ARGUMENT = INVALID
    NVML_NVLINK_MAX_LINKS = 18
    NVML_NVLINK_DEVICE_TYPE_SWITCH = SWITCH
    NVML_P2P_CAPS_INDEX_READ = 0
    NVML_P2P_CAPS_INDEX_WRITE = 1
    NVML_P2P_CAPS_INDEX_NVLINK = 2

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13000

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.gpus[handle].name

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=self.gpus[handle].memory, used=0)

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"0000{self.gpus[handle].bus.upper()}".encode())

    def nvmlDeviceGetMemoryAffinity(self, handle: int, size: int, _scope: int) -> list[int]:
        node = self.gpus[handle].node
        if node is None:
            raise NVMLError(NOT_SUPPORTED)
        return [1 << node, *[0] * (size - 1)]

    def nvmlDeviceGetCpuAffinity(self, handle: int, size: int) -> list[int]:
        bits = sum(1 << cpu for cpu in self.gpus[handle].cpus)
        return [bits >> 64 * word & (1 << 64) - 1 for word in range(size)]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        used = self.gpus[handle].used
        if used is None:
            raise NVMLError(NOT_SUPPORTED)
        return SimpleNamespace(gpu=used)

    def _pcie(self, handle: int, part: int) -> int:
        link = self.gpus[handle].pcie
        if link is None:
            raise NVMLError(NOT_SUPPORTED)
        return link[part]

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: int) -> int:
        return self._pcie(handle, 0)

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:
        return self._pcie(handle, 1)

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:
        return self._pcie(handle, 2)

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        return self._pcie(handle, 3)

    def nvmlDeviceGetGpuMaxPcieLinkGeneration(self, handle: int) -> int:
        return self._pcie(handle, 4)

    def _link(self, handle: int, link: int) -> Any:
        links = self.gpus[handle].links
        if link >= len(links):
            raise NVMLError(NOT_SUPPORTED)
        if links[link] == "lost":
            raise NVMLError(LOST)
        return links[link]

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        return int(self._link(handle, link) != "down")

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        if self.hides_types:
            raise NVMLError(NOT_SUPPORTED)
        return SWITCH if self._link(handle, link) == SWITCH else OTHER_GPU

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        where = self._link(handle, link)
        if where is None:
            raise NVMLError(NOT_SUPPORTED)
        return SimpleNamespace(busId=NOWHERE if where == SWITCH else f"0000{where}")

    def nvmlDeviceGetTopologyCommonAncestor(self, first: int, second: int) -> int:
        if (first, second) not in self.levels:
            raise NVMLError(NOT_SUPPORTED)
        return self.levels[first, second]

    def nvmlDeviceGetP2PStatus(self, first: int, second: int, index: int) -> int:
        known = self.nvlink_peers if index == self.NVML_P2P_CAPS_INDEX_NVLINK else self.peers
        if (first, second) not in known:
            raise NVMLError(NOT_SUPPORTED)
        return known[first, second]

    def nvmlDeviceGetCudaComputeCapability(self, _handle: int) -> tuple[int, int]:
        return 9, 0

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: int) -> list[Any]:
        return []


PAIRS_OF_4 = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))


def h200_machine(**changes: Any) -> FakeNvml:
    """2x H200 in a virtual machine: NV18, no readings of PCIe, driver 580.159.04."""
    links = (SWITCH,) * 18
    both = (FakeGpu("0000:8d:00.0", links=links), FakeGpu("0000:a8:00.0", links=links))
    return FakeNvml(both, levels={(0, 1): 30}, peers={(0, 1): 0}, **changes)


def bridged_machine() -> FakeNvml:
    """4 GPUs on two processors, of which 0 and 2, and 1 and 3, are joined by an NVLink bridge."""
    ids = [f"0000:{n}1:00.0" for n in range(4)]
    partner = {0: 2, 2: 0, 1: 3, 3: 1}
    four = tuple(
        FakeGpu(
            ids[n],
            name="NVIDIA A100 80GB PCIe",
            links=(ids[partner[n]],) * 12,
            pcie=(4, 16, 4, 16, 4),
            node=n % 2,
            cpus=tuple(range(16 * (n % 2), 16 * (n % 2) + 16)),
        )
        for n in range(4)
    )
    levels = {pair: 40 if sum(pair) % 2 == 0 else 50 for pair in PAIRS_OF_4}
    return FakeNvml(four, levels, peers=dict.fromkeys(PAIRS_OF_4, 0))


def pcie_machine() -> FakeNvml:
    """4 GPUs without NVLink; GPU 2's link has 4 lanes of 16, GPU 3 works at a lower generation, the
    idle ones have lowered theirs.
    """
    links = [(1, 16, 4, 16, 4), (1, 16, 4, 16, 4), (1, 4, 4, 16, 4), (3, 16, 4, 16, 4)]
    four = tuple(
        FakeGpu(f"0000:{n}1:00.0", name="NVIDIA L40S", pcie=link, used=97 if n == 3 else 0)
        for n, link in enumerate(links)
    )
    levels = {(0, 1): 10, (2, 3): 30}
    return FakeNvml(
        four,
        {pair: levels.get(pair, 50) for pair in PAIRS_OF_4},
        peers=dict.fromkeys(PAIRS_OF_4, 0),
    )


def install(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml | None) -> None:
    """Every reader of the package sees this NVML; None is a machine without a driver."""

    @contextlib.contextmanager
    def opened() -> Iterator[Any]:
        yield nvml

    for module in (gpus, gpu_links, topology):
        monkeypatch.setattr(module, "opened_nvml", opened)
    monkeypatch.setattr(gpu_links, "_PCI", Path("/nonexistent"))


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Files below `root`, as /sys and /proc have them."""
    for name, text in files.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return root
