"""How fast GPUs exchange data two by two, and which pair is the slowest. No printing here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nccltune.output.findings import Finding
from nccltune.output.link_findings import fewer_than, slowest, way_of
from nccltune.output.machine_view import Checked, PairView
from nccltune.stats.step import Diagnosis

_LIMIT = 0.5  # of the fastest pair's
_FEWEST = 3  # GPUs: two are one pair


@dataclass(frozen=True)
class Exchange:
    """What two GPUs, by NVML's indices, send each other; `way` is None where it is not known."""

    first: int
    second: int
    bytes_per_second: float
    way: PairView | None

    @property
    def rank(self) -> int:
        return 0 if self.way is None else self.way.rank

    @property
    def gigabytes(self) -> str:
        return f"{self.bytes_per_second / 1e9:.3g} GB/s"

    def __str__(self) -> str:
        label = f" ({self.way.label})" if self.way is not None and self.rank else ""
        return f"GPUs {self.first} and {self.second}{label}"


def pair_findings(checked: Checked, diagnosis: Diagnosis | None) -> Iterator[Finding]:
    """A pair that is much slower than another: expected where its way is, a fault where not."""
    measured = exchanges(checked, diagnosis)
    if not measured:
        return
    slow, fast = measured[0], measured[-1]
    if slow.bytes_per_second >= _LIMIT * fast.bytes_per_second:
        return
    fact = (
        f"{slow} exchange {slow.gigabytes} each way, {fast} {fast.gigabytes} (limit: half of the "
        "fastest)"
    )
    if slow.way is None or not slow.rank or not fast.rank:
        text = "nvidia-smi topo -m says how they are linked"
        yield Finding("note", "links", fact, text)
    elif slow.rank < fast.rank:
        fact += (
            f": they are linked {way_of(slow.way)}, and all-reduce goes at the pace of the slowest "
            "way that it takes"
        )
        yield Finding("note", "links", fact, fewer_than(checked, slow.way))
    else:
        text = (
            "look at PCIe lanes and NVLinks of both (nvidia-smi -q -d PCIE, nvidia-smi nvlink -s), "
            "at the kernel's log (Xid, AER), and at ACS and IOMMU"
        )
        yield Finding("warning", "links", f"{fact}, though their way is no worse", text)


def slowest_pair(checked: Checked, diagnosis: Diagnosis | None) -> str | None:
    """The slowest pair in words: as measured, else by its way where the ways differ."""
    measured = exchanges(checked, diagnosis)
    if measured:
        slow, fast = measured[0], measured[-1]
        return f"slowest {slow.gigabytes} each way, {slow}; fastest {fast.gigabytes}, {fast}"
    pair = slowest(checked.machine, checked.used)
    among = [p for p in checked.machine.pairs if {p.first, p.second} <= {*checked.used}]
    if pair is None or len(checked.used) < _FEWEST or len({p.label for p in among}) < 2:
        return None
    alike = sum(p.label == pair.label for p in among) - 1
    others = f", like {alike} {'other' if alike == 1 else 'others'}" if alike else ""
    return f"slowest GPUs {pair.first} and {pair.second} ({pair.label}){others}; not measured"


def exchanges(checked: Checked, diagnosis: Diagnosis | None) -> tuple[Exchange, ...]:
    """What was measured between GPUs, the slowest pair first; none where ranks ran on the CPU."""
    used = checked.used
    if diagnosis is None or len(used) < _FEWEST or len(used) != diagnosis.world_size:
        return ()
    ways = {frozenset((pair.first, pair.second)): pair for pair in checked.machine.pairs}
    found = []
    for pair in diagnosis.pairs:
        first, second = used[pair.first], used[pair.second]
        way = ways.get(frozenset((first, second)))
        found.append(Exchange(first, second, pair.bytes_per_second, way))
    return tuple(sorted(found, key=lambda exchange: exchange.bytes_per_second))
