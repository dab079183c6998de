"""What is wrong with the links of GPUs, and which GPUs to take for them. No printing here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from nccltune.output.findings import Finding, Severity
from nccltune.output.machine_facts import few, ranges
from nccltune.output.machine_view import Checked, GpuView, MachineView, PairView

_SLOW_WAYS = {
    "SYS": "from one processor to the other (SYS)",
    "NODE": "through several host bridges of one processor (NODE)",
    "PHB": "through the processor (PHB)",
    "PXB": "through several PCIe switches (PXB)",
    "PIX": "through one PCIe switch (PIX)",
}


def link_findings(checked: Checked, *, compare: bool = True) -> Iterator[Finding]:
    """The choice of GPUs, the ways between them, and links below what they can be. `compare`:
    nothing better than their ways tells which pair is the slowest.
    """
    gpus = checked.machine.gpus
    yield from _choice(checked)
    if compare:
        yield from _links(checked)
    yield from _nvlinks(gpus)
    yield from _pcie(gpus)
    yield from _refused(checked)
    yield from _redirected(checked)
    yield from _unused(checked)


def fewer_ranks(checked: Checked) -> str | None:
    """Which GPUs jobs with fewer ranks take, where that makes a difference."""
    machine = checked.machine
    if len({pair.label for pair in machine.pairs}) < 2:
        return None
    found = []
    for count, chosen in sorted(checked.best.items()):
        pair = slowest(machine, chosen)
        if 1 < count < len(machine.gpus) and pair is not None:
            found.append(f"for {count} take {visible(machine, chosen)} ({pair.label})")
    return "; ".join(found) or None


def visible(machine: MachineView, chosen: Sequence[int]) -> str:
    """The assignment that makes jobs see these GPUs. CUDA numbers GPUs of several kinds by speed
    unless it is told to go by the bus, as NVML does.
    """
    order = "CUDA_DEVICE_ORDER=PCI_BUS_ID " if len({g.name for g in machine.gpus}) > 1 else ""
    return f"{order}CUDA_VISIBLE_DEVICES={','.join(map(str, chosen))}"


def slowest(machine: MachineView, among: Iterable[int]) -> PairView | None:
    """The slowest pair of these GPUs; None where there is none, or one is unknown."""
    chosen = set(among)
    pairs = [p for p in machine.pairs if {p.first, p.second} <= chosen]
    found = min(pairs, key=lambda pair: pair.rank, default=None)
    return found if found is not None and found.rank else None


def _choice(checked: Checked) -> Iterator[Finding]:
    machine, used = checked.machine, checked.used
    best = checked.best.get(len(used), used)
    now, then = slowest(machine, used), slowest(machine, best)
    if now is None or then is None or then.rank <= now.rank:
        return
    yield Finding(
        "warning",
        "links",
        f"{len(used)} ranks run on GPUs {ranges(used)}, where the slowest way is {now.label}; "
        f"GPUs {ranges(best)} have {then.label}",
        f"take {visible(machine, best)}",
    )


def _links(checked: Checked) -> Iterator[Finding]:
    """The slowest pair, where others are faster, or where there is no NVLink at all."""
    machine, used = checked.machine, checked.used
    pair = slowest(machine, used)
    if any(_choice(checked)):
        return
    if pair is None or pair.nvlink and len({p.label for p in _among(machine, used)}) == 1:
        return
    if any(p.nvlink for p in _among(machine, used)):
        fact = (
            f"GPUs {pair.first} and {pair.second} are the slowest pair, linked {way_of(pair)}, and "
            "all-reduce goes at the pace of the slowest way that it takes"
        )
        yield Finding("note", "links", fact, fewer_than(checked, pair))
    else:
        fact = f"No NVLink joins these GPUs: gradients go over PCIe, at worst {way_of(pair)}"
        if len({p.label for p in _among(machine, used)}) > 1:
            fact += f", as between GPUs {pair.first} and {pair.second}"
        yield Finding("note", "links", fact, "nccltune search --only env --only ddp")


def way_of(pair: PairView) -> str:
    """In words, to follow "linked"."""
    return pair.label if pair.nvlink else _SLOW_WAYS.get(pair.label, pair.label)


def fewer_than(checked: Checked, pair: PairView) -> str:
    """The next step where this is the slowest pair: which GPUs jobs with fewer ranks take, if they
    gain by it.
    """
    for count, chosen in sorted(checked.best.items(), reverse=True):
        other = slowest(checked.machine, chosen)
        if 1 < count < len(checked.used) and other is not None and other.rank > pair.rank:
            return f"for {count} ranks take {visible(checked.machine, chosen)} ({other.label})"
    return "nccltune search --only env finds how best to go about it"


def _among(machine: MachineView, used: Sequence[int]) -> list[PairView]:
    return [p for p in machine.pairs if {p.first, p.second} <= {*used}]


def _nvlinks(gpus: Sequence[GpuView]) -> Iterator[Finding]:
    """Links that are down where others of the same kind are up, or that lead to a switch."""
    look = "look at nvidia-smi nvlink -s and the kernel's log (Xid), then seat or replace the part"
    most: dict[str, int] = defaultdict(int)
    for gpu in gpus:
        most[gpu.name] = max(most[gpu.name], gpu.nvlinks_up or 0)
    for gpu in gpus:
        up, total = gpu.nvlinks_up, gpu.nvlinks
        if up is None or not total:
            continue
        expected = total if gpu.switched else most[gpu.name]
        if up < expected:
            fact = f"GPU {gpu.index} has {up} of {expected} NVLinks up"
            yield Finding("warning", "links", fact, look)
    if len(gpus) > 1 and all(gpu.nvlinks and gpu.nvlinks_up == 0 for gpu in gpus):
        fact = "These GPUs have NVLinks, and none is up"
        text = "see that bridges are fitted, or that nvidia-fabricmanager runs where switches are"
        yield Finding("note", "links", fact, text)


def _pcie(gpus: Sequence[GpuView]) -> Iterator[Finding]:
    for (width, best), here in _alike(gpus, _lanes):
        fact = f"{named(here)}: PCIe has {width} lanes of {best}"
        text = "seat card and riser anew, and look at the slot's lanes in the firmware's settings"
        yield Finding("warning", "PCIe", fact, text)
    for (generation, best), here in _alike(gpus, _generation):
        fact = f"{named(here)}: PCIe runs at generation {generation} of {best} under load"
        text = "look at the firmware's PCIe settings and the kernel's log (AER), then at the riser"
        yield Finding("warning", "PCIe", fact, text)
    for (best, own), here in _alike(gpus, _slot):
        fact = f"{named(here)}: could do PCIe generation {own}, the slot gives {best}"
        text = "another slot, or the firmware's setting for this one, if copies to the GPU matter"
        yield Finding("note", "PCIe", fact, text)


def _lanes(gpu: GpuView) -> tuple[int, int] | None:
    return _below(gpu.pcie.width, gpu.pcie.best_width)


def _generation(gpu: GpuView) -> tuple[int, int] | None:
    return _below(gpu.pcie.generation, gpu.pcie.best_generation) if gpu.pcie.busy else None


def _slot(gpu: GpuView) -> tuple[int, int] | None:
    return _below(gpu.pcie.best_generation, gpu.pcie.own_generation)


def _below(now: int | None, most: int | None) -> tuple[int, int] | None:
    return (now, most) if now is not None and most is not None and now < most else None


def _alike(
    gpus: Sequence[GpuView], what: Callable[[GpuView], tuple[int, int] | None]
) -> list[tuple[tuple[int, int], list[int]]]:
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for gpu in gpus:
        value = what(gpu)
        if value is not None:
            found[value].append(gpu.index)
    return list(found.items())


def named(indices: Sequence[int]) -> str:
    """GPU 0, or GPUs 0-3."""
    return f"GPU{'s' if len(indices) > 1 else ''} {ranges(indices)}"


def _refused(checked: Checked) -> Iterator[Finding]:
    """Pairs that cannot reach each other's memory."""
    refused: dict[str, list[PairView]] = defaultdict(list)
    for pair in _among(checked.machine, checked.used):
        if pair.peer not in (None, "ok"):
            refused[pair.peer or ""].append(pair)
    for reason, those in refused.items():
        named = few([f"{p.first}-{p.second}" for p in those], 4)
        grave: Severity = "warning" if any(p.nvlink for p in those) else "note"
        fact = (
            f"GPUs cannot read each other's memory ({named}: {reason}), so NCCL copies through "
            "the host's"
        )
        text = "nvidia-smi topo -p2p r; IOMMU, ACS, or a fabric manager that does not run"
        yield Finding(grave, "links", fact, text)


def _redirected(checked: Checked) -> Iterator[Finding]:
    """Direct ways over PCIe that the chipset sends through the processor. Between processors NCCL
    goes through the host's memory anyway.
    """
    pairs, host = _among(checked.machine, checked.used), checked.machine.host
    direct = [p for p in pairs if p.label in ("PIX", "PXB", "PHB") and p.peer == "ok"]
    if direct and not host.virtual and (host.acs_bridges or host.iommu == "on"):
        what = f"ACS is on at {host.acs_bridges} bridges" if host.acs_bridges else "the IOMMU is on"
        fact = f"GPUs talk over PCIe and {what}: slower, and hangs are known (NVIDIA/nccl#2079)"
        text = "switch it off in the firmware, or boot with iommu=pt; do not raise NCCL_P2P_LEVEL"
        yield Finding("warning", "PCIe", fact, text)


def _unused(checked: Checked) -> Iterator[Finding]:
    """NVLinks that NCCL does not use."""
    pairs = _among(checked.machine, checked.used)
    transport = (checked.probe or {}).get("transport") or ()
    joined = pairs and all(pair.nvlink for pair in pairs)
    if joined and transport and not any("P2P" in way or "NVLS" in way for way in transport):
        fact = f"NVLink joins all GPUs, but NCCL talks over {'+'.join(transport)}"
        text = "look for NCCL_P2P_DISABLE, NCCL_P2P_LEVEL and for GPUs hidden by a container"
        yield Finding("warning", "links", fact, text)
