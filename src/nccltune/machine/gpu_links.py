"""What GPUs are linked by: PCIe, NVLink, the processors they sit at, and the way between two."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from nccltune.machine.gpus import Gpu, opened_nvml, or_none

Way = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
"""As `nvidia-smi topo -m` names ways over PCIe: one switch, several, a host bridge, several of one
NUMA node, between NUMA nodes.
"""

_PCI = Path("/sys/bus/pci/devices")
_BUSY = 20  # per cent of utilisation: an idle GPU lowers its PCIe generation
_LINKS = 18  # the most that a GPU has had so far, where the binding does not say
_SCOPE_NODE = 0  # nvml.h: NVML_AFFINITY_SCOPE_NODE
_SWITCH = "switch"
_SWITCH_CLASS = "0x0680"  # PCI class of an NVSwitch: other bridge
_ANCESTORS: dict[int, Way] = {
    0: "PIX",  # two GPUs on one board, behind its switch
    10: "PIX",
    20: "PXB",
    30: "PHB",
    40: "NODE",
    50: "SYS",
}
"""nvml.h's nvmlGpuTopologyLevel_t."""
_REASONS = {
    0: "ok",
    1: "the chipset does not support it",
    2: "the GPU does not support it",
    3: "the topology does not support it",
    4: "the driver's settings forbid it",
    5: "not supported",
}
"""nvml.h's nvmlGpuP2PStatus_t."""


@dataclass(frozen=True)
class Pcie:
    """A GPU's PCIe link, now and at most; None is unknown.

    best_generation, best_width: with this GPU in this slot. own_generation: of the GPU anywhere.
    busy: the GPU was at work when it was read. An idle one lowers its generation, so that only a
    busy one's tells anything.
    """

    generation: int | None = None
    width: int | None = None
    best_generation: int | None = None
    best_width: int | None = None
    own_generation: int | None = None
    busy: bool = False


@dataclass(frozen=True)
class GpuLinks:
    """One GPU, by NVML's index; None is unknown, memory is in bytes.

    bus_id: as in /sys/bus/pci. numa_node, cpus: where the GPU sits. nvlinks_up of `nvlinks` are
    active; `switched` is how many of them lead to an NVSwitch.
    """

    index: int
    name: str
    memory_bytes: int
    bus_id: str | None = None
    numa_node: int | None = None
    cpus: tuple[int, ...] | None = None
    pcie: Pcie = field(default_factory=Pcie)
    nvlinks_up: int | None = None
    nvlinks: int | None = None
    switched: int = 0


@dataclass(frozen=True)
class Pair:
    """The way between two GPUs, by NVML's indices; None is unknown.

    nvlinks: how many join them, directly or through switches. way: that over PCIe. peer: "ok"
    where they can read and write each other's memory, else why they cannot.
    """

    first: int
    second: int
    nvlink: bool | None = None
    nvlinks: int | None = None
    way: Way | None = None
    peer: str | None = None

    @property
    def label(self) -> str:
        """As `nvidia-smi topo -m` has it: NV18, PIX, ..., or unknown."""
        if self.nvlink:
            return f"NV{self.nvlinks}" if self.nvlinks else "NVLink"
        return self.way if self.nvlink is False and self.way is not None else "unknown"

    @property
    def rank(self) -> int:
        """The larger, the faster; 0 is unknown. More NVLinks of one machine are more bandwidth."""
        if self.nvlink:
            return 10 + (self.nvlinks or 1)
        ways = ("unknown", "SYS", "NODE", "PHB", "PXB", "PIX")
        return ways.index(self.label)


@dataclass(frozen=True)
class _Nvlinks:
    """Where a GPU's active links lead: to switches, to GPUs by bus id, or nobody says."""

    total: int | None
    up: int | None
    switched: int
    peers: tuple[str, ...]
    unplaced: int


def read_links(
    gpus: Sequence[Gpu], pci: Path = _PCI
) -> tuple[tuple[GpuLinks, ...], tuple[Pair, ...]]:
    """The links of these GPUs, and each pair of them. Never fails: what cannot be read is None."""
    with opened_nvml() as nvml:
        if nvml is None:
            return tuple(GpuLinks(g.index, g.name, g.memory_bytes) for g in gpus), ()
        handles = [_handle(nvml, gpu.index) for gpu in gpus]
        lanes = [_nvlinks(nvml, handle, pci) for handle in handles]
        found = tuple(
            _gpu(nvml, handle, gpu, nvlinks, pci)
            for handle, gpu, nvlinks in zip(handles, gpus, lanes, strict=True)
        )
        pairs = tuple(
            _pair(nvml, (handles[i], handles[j]), (found[i], found[j]), (lanes[i], lanes[j]))
            for i, j in combinations(range(len(gpus)), 2)
        )
    return found, pairs


def read_pcie(gpus: Sequence[Gpu]) -> tuple[Pcie, ...]:
    """The PCIe links alone, at this moment: some milliseconds."""
    with opened_nvml() as nvml:
        if nvml is None:
            return tuple(Pcie() for _ in gpus)
        return tuple(_pcie(nvml, _handle(nvml, gpu.index)) for gpu in gpus)


def _handle(nvml: Any, index: int) -> Any:
    return or_none(lambda: nvml.nvmlDeviceGetHandleByIndex(index))


def _gpu(nvml: Any, handle: Any, gpu: Gpu, nvlinks: _Nvlinks, pci: Path) -> GpuLinks:
    bus_id = or_none(lambda: bus_id_of(nvml.nvmlDeviceGetPciInfo(handle).busId))
    return GpuLinks(
        index=gpu.index,
        name=gpu.name,
        memory_bytes=gpu.memory_bytes,
        bus_id=bus_id,
        numa_node=_numa_node(nvml, handle, bus_id, pci),
        cpus=_cpus(nvml, handle),
        pcie=_pcie(nvml, handle),
        nvlinks_up=nvlinks.up,
        nvlinks=nvlinks.total,
        switched=nvlinks.switched,
    )


def bus_id_of(text: str | bytes) -> str | None:
    """NVML's 00000000:1B:00.0 as the kernel writes it, 0000:1b:00.0. None where all digits are f,
    as virtual machines say it of what has no address. Raises ValueError for another text.
    """
    plain = (text.decode() if isinstance(text, bytes) else text).strip().lower()
    if set(plain.partition(".")[0]) == {"f", ":"}:
        return None
    domain, bus, device = plain.split(":")
    return f"{int(domain, 16):04x}:{bus}:{device}"


def _numa_node(nvml: Any, handle: Any, bus_id: str | None, pci: Path) -> int | None:
    """The kernel's answer, else NVML's where that is one node."""
    if bus_id is not None:
        node = or_none(lambda: int((pci / bus_id / "numa_node").read_text()))
        if node is not None and node >= 0:  # -1: no affinity, or nobody knows
            return node
    bits = or_none(lambda: _bits(nvml.nvmlDeviceGetMemoryAffinity(handle, 4, _SCOPE_NODE)))
    return bits[0] if bits is not None and len(bits) == 1 else None


def _cpus(nvml: Any, handle: Any) -> tuple[int, ...] | None:
    words = (max(os.cpu_count() or 1, 1) + 63) // 64 + 1
    return or_none(lambda: _bits(nvml.nvmlDeviceGetCpuAffinity(handle, words))) or None


def _bits(words: Iterable[int]) -> tuple[int, ...]:
    found = ((64 * at + bit, word >> bit & 1) for at, word in enumerate(words) for bit in range(64))
    return tuple(number for number, is_set in found if is_set)


def _pcie(nvml: Any, handle: Any) -> Pcie:
    used = or_none(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu))
    return Pcie(
        generation=_small(lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
        width=_small(lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        best_generation=_small(lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        best_width=_small(lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        own_generation=_small(lambda: nvml.nvmlDeviceGetGpuMaxPcieLinkGeneration(handle)),
        busy=used is not None and used >= _BUSY,
    )


def _small(ask: Any) -> int | None:
    """A generation or a width; drivers write 0 or 0xffffffff for what they do not know."""
    value = or_none(lambda: int(ask()))
    return value if value is not None and 1 <= value <= 32 else None


def _nvlinks(nvml: Any, handle: Any, pci: Path) -> _Nvlinks:
    unknown = _Nvlinks(None, None, 0, (), 0)
    if handle is None:
        return unknown
    total, ends = 0, list[str | None]()
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", _LINKS)):
        try:
            active = bool(nvml.nvmlDeviceGetNvLinkState(handle, link))
        except Exception as error:
            if _is_no_link(nvml, error):
                continue
            return unknown
        total += 1
        ends += [_far_end(nvml, handle, link, pci)] if active else []
    peers = tuple(end for end in ends if end is not None and end != _SWITCH)
    return _Nvlinks(total, len(ends), ends.count(_SWITCH), peers, ends.count(None))


def _is_no_link(nvml: Any, error: Exception) -> bool:
    """Whether NVML says that there is no such link, not that it cannot tell."""
    code = getattr(error, "value", None)
    names = ("NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_INVALID_ARGUMENT")
    return code is not None and code in [getattr(nvml, name, object()) for name in names]


def _far_end(nvml: Any, handle: Any, link: int, pci: Path) -> str | None:
    """A switch, the bus id of a GPU, or None where nobody says.

    In virtual machines NVSwitches have no PCI address, for which NCCL, too, takes the far end for a
    switch (src/graph/xml.cc).
    """
    kind = or_none(lambda: int(nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)))
    if kind is not None and kind == getattr(nvml, "NVML_NVLINK_DEVICE_TYPE_SWITCH", 2):
        return _SWITCH
    try:
        bus_id = bus_id_of(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
    except Exception:
        return None
    of_class = or_none(lambda: (pci / bus_id / "class").read_text()) if bus_id else _SWITCH_CLASS
    return _SWITCH if (of_class or "").startswith(_SWITCH_CLASS) else bus_id


def _pair(
    nvml: Any,
    handles: tuple[Any, Any],
    gpus: tuple[GpuLinks, GpuLinks],
    lanes: tuple[_Nvlinks, _Nvlinks],
) -> Pair:
    first, second = gpus
    level = or_none(lambda: int(nvml.nvmlDeviceGetTopologyCommonAncestor(*handles)))
    count = lanes[0].peers.count(second.bus_id or "?") + min(lane.switched for lane in lanes)
    nvlink: bool | None = True if count else False
    if not count:
        by_nvml = _peer(nvml, handles, "NVML_P2P_CAPS_INDEX_NVLINK") == "ok"
        unseen = any(lane.up is None for lane in lanes) or all(lane.unplaced for lane in lanes)
        nvlink = True if by_nvml else None if unseen else False
    reasons = [_peer(nvml, handles, f"NVML_P2P_CAPS_INDEX_{way}") for way in ("READ", "WRITE")]
    bad = next((reason for reason in reasons if reason not in ("ok", None)), None)
    return Pair(
        first=first.index,
        second=second.index,
        nvlink=nvlink,
        nvlinks=count if count or nvlink is False else None,
        way=None if level is None else _ANCESTORS.get(level),
        peer=bad or (None if None in reasons else "ok"),
    )


def _peer(nvml: Any, handles: tuple[Any, Any], index: str) -> str | None:
    """What NVML says of direct access; None where it does not know."""
    status = or_none(lambda: int(nvml.nvmlDeviceGetP2PStatus(*handles, getattr(nvml, index))))
    return None if status is None else _REASONS.get(status)
