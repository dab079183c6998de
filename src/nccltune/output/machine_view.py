"""What the findings and facts about a machine are made of; `machine` has values of these shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from nccltune.output.findings import Severity


class PcieView(Protocol):
    """None is unknown, as everywhere here. `busy`: read while the GPU was at work."""

    @property
    def generation(self) -> int | None: ...
    @property
    def width(self) -> int | None: ...
    @property
    def best_generation(self) -> int | None: ...
    @property
    def best_width(self) -> int | None: ...
    @property
    def own_generation(self) -> int | None: ...
    @property
    def busy(self) -> bool: ...


class GpuView(Protocol):
    """A GPU by NVML's index; memory in bytes."""

    @property
    def index(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def numa_node(self) -> int | None: ...
    @property
    def cpus(self) -> tuple[int, ...] | None: ...
    @property
    def pcie(self) -> PcieView: ...
    @property
    def nvlinks_up(self) -> int | None: ...
    @property
    def nvlinks(self) -> int | None: ...
    @property
    def switched(self) -> int: ...


class PairView(Protocol):
    """The way between two GPUs; a larger `rank` is faster, 0 is unknown."""

    @property
    def first(self) -> int: ...
    @property
    def second(self) -> int: ...
    @property
    def label(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def nvlink(self) -> bool | None: ...
    @property
    def peer(self) -> str | None: ...


class SlotView(Protocol):
    """A network device's PCIe link, Gb/s."""

    @property
    def gbits(self) -> float: ...
    @property
    def best_gbits(self) -> float: ...
    @property
    def width(self) -> int: ...
    @property
    def best_width(self) -> int: ...


class InterfaceView(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def up(self) -> bool | None: ...
    @property
    def gbits(self) -> float | None: ...
    @property
    def driver(self) -> str | None: ...
    @property
    def virtual(self) -> bool: ...


class RdmaView(Protocol):
    @property
    def device(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def active(self) -> bool | None: ...
    @property
    def gbits(self) -> float | None: ...
    @property
    def layer(self) -> str | None: ...
    @property
    def kind(self) -> str | None: ...
    @property
    def slot(self) -> SlotView | None: ...


class HostView(Protocol):
    """Sizes in bytes; a limit that is None is none, or unknown."""

    @property
    def shm_bytes(self) -> int | None: ...
    @property
    def shm_free_bytes(self) -> int | None: ...
    @property
    def memory_bytes(self) -> int | None: ...
    @property
    def memory_limit_bytes(self) -> int | None: ...
    @property
    def cpu_limit(self) -> float | None: ...
    @property
    def cores(self) -> tuple[int, ...]: ...
    @property
    def nodes(self) -> tuple[tuple[int, tuple[int, ...]], ...]: ...
    @property
    def virtual(self) -> bool | None: ...
    @property
    def iommu(self) -> str | None: ...
    @property
    def acs_bridges(self) -> int | None: ...


class MachineView(Protocol):
    """A machine as jobs would see it."""

    @property
    def gpus(self) -> Sequence[GpuView]: ...
    @property
    def pairs(self) -> Sequence[PairView]: ...
    @property
    def interfaces(self) -> Sequence[InterfaceView] | None: ...
    @property
    def rdma(self) -> Sequence[RdmaView] | None: ...
    @property
    def verbs(self) -> bool: ...
    @property
    def host(self) -> HostView: ...
    @property
    def driver(self) -> str | None: ...
    @property
    def cuda(self) -> str | None: ...


@dataclass(frozen=True)
class Told:
    """What lint says of a setting. `file` is None for the environment."""

    severity: Severity
    name: str
    text: str
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class Checked:
    """All that was looked at.

    used: GPUs that ranks run on. best: for how many ranks which GPUs are best, the ranks of the job
    among them. probe: what NCCL's log said. taints: what disturbed the machine meanwhile. busy:
    other processes that compute on these GPUs, for which no rank was started. unread: why files of
    NCCL's settings could not be read. cuda, nccl: of the job's torch. torchless: the job's Python,
    if no torch was found in it, and why. gpuless: why there is no GPU where some were asked for.
    """

    machine: MachineView
    used: tuple[int, ...] = ()
    best: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    probe: Mapping[str, Any] | None = None
    taints: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    lint: tuple[Told, ...] = ()
    unread: tuple[str, ...] = ()
    cuda: str | None = None
    nccl: str | None = None
    torchless: str | None = None
    gpuless: str | None = None
