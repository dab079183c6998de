"""How this machine is put together, and which of its GPUs to take when not all are needed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

from nccltune.machine.devices import has_verbs
from nccltune.machine.gpu_links import GpuLinks, Pair, Pcie, read_links
from nccltune.machine.gpus import driver_version, opened_nvml, or_none, visible_gpus
from nccltune.machine.host import Host, read_host
from nccltune.machine.nics import Interface, RdmaPort, read_interfaces, read_rdma

_MOST_CHOICES = 20_000  # 8 of 16 GPUs are 12 870


@dataclass(frozen=True)
class Topology:
    """GPUs that jobs started now would see, in their order; None is unknown.

    verbs: whether processes can open RDMA devices. cuda: the newest CUDA that the driver can run.
    """

    gpus: tuple[GpuLinks, ...] = ()
    pairs: tuple[Pair, ...] = ()
    interfaces: tuple[Interface, ...] | None = None
    rdma: tuple[RdmaPort, ...] | None = None
    verbs: bool = False
    host: Host = Host()
    driver: str | None = None
    cuda: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """In plain values; pairs with their label."""
        found = asdict(self)
        for given, pair in zip(found["pairs"], self.pairs, strict=True):
            given["label"] = pair.label
        found["host"]["nodes"] = {str(node): cores for node, cores in self.host.nodes}
        return found

    def with_pcie(self, indices: Sequence[int], readings: Sequence[Sequence[Pcie]]) -> Topology:
        """With the fastest state in which the links of these GPUs were seen; each reading has one
        for each of them.
        """
        seen = {index: [at[n] for at in readings] for n, index in enumerate(indices)}
        return replace(
            self,
            gpus=tuple(
                replace(gpu, pcie=max([gpu.pcie, *seen.get(gpu.index, ())], key=_speed))
                for gpu in self.gpus
            ),
        )


def read_topology(environ: Mapping[str, str], *, use_gpus: bool = True) -> Topology:
    """What is here. Takes a tenth of a second, makes no CUDA context, and never fails."""
    # Each part by itself: what one cannot read must not hide the others.
    gpus = (or_none(lambda: visible_gpus(environ)) or ()) if use_gpus else ()
    links, pairs = or_none(lambda: read_links(gpus)) or ((), ())
    return Topology(
        gpus=links,
        pairs=pairs,
        interfaces=or_none(read_interfaces),
        rdma=or_none(read_rdma),
        verbs=has_verbs(),
        host=or_none(read_host) or Host(),
        driver=or_none(driver_version) if gpus else None,
        cuda=_cuda() if gpus else None,
    )


def best_gpus(topology: Topology, count: int, busy: Collection[int] = ()) -> tuple[int, ...]:
    """The `count` GPUs to take, by NVML's index: those without other processes, then the fastest
    slowest pair, since collectives go at its pace, then the fewest NUMA nodes, then the fastest
    pairs in all, then the first ones.

    Raises: ValueError where there are not so many.
    """
    indices = [gpu.index for gpu in topology.gpus]
    if not 1 <= count <= len(indices):
        raise ValueError(f"{count} of {len(indices)} GPUs")
    if math.comb(len(indices), count) > _MOST_CHOICES:
        return tuple(indices[:count])
    ranks = {frozenset((p.first, p.second)): p.rank for p in topology.pairs}
    nodes = {gpu.index: gpu.numa_node for gpu in topology.gpus}

    def goodness(chosen: tuple[int, ...]) -> tuple[int, int, int, int]:
        pairs = [ranks.get(frozenset(pair), 0) for pair in combinations(chosen, 2)]
        used = {nodes[index] for index in chosen}
        return -len({*chosen} & {*busy}), min(pairs, default=0), -len(used), sum(pairs)

    return max(combinations(indices, count), key=goodness)  # the first of equal ones


def _speed(pcie: Pcie) -> tuple[bool, int, int]:
    return pcie.busy, pcie.generation or 0, pcie.width or 0


def _cuda() -> str | None:
    with opened_nvml() as nvml:
        version = or_none(lambda: int(nvml.nvmlSystemGetCudaDriverVersion_v2()))
    return None if version is None else f"{version // 1000}.{version % 1000 // 10}"
