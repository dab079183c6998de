"""A machine in a few lines: what doctor's table says. No printing here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from nccltune.output import words
from nccltune.output.machine_view import GpuView, HostView, InterfaceView, MachineView, RdmaView

_FEW = 6


def machine_rows(machine: MachineView, cpu: str) -> list[tuple[str, str]]:
    """Rows of name and value, without those that say nothing here. `cpu` names the processor."""
    rows = [("GPUs", gpus(machine.gpus))]
    if len(machine.gpus) > 1:
        rows.append(("links", links(machine)))
    if machine.gpus:
        rows.append(("PCIe", pcie(machine)))
    cores = len(machine.host.cores)
    return [
        *rows,
        ("NUMA", numa(machine)),
        ("CPU", f"{cpu}, {cores} {'core' if cores == 1 else 'cores'}"),
        ("limits", limits(machine.host)),
        ("/dev/shm", shared_memory(machine.host)),
        ("network", network(machine)),
    ]


def gpus(found: Sequence[GpuView]) -> str:
    """Kinds and memory."""
    kinds = Counter((gpu.name, gpu.memory_bytes) for gpu in found)
    listed = [f"{count}x {name}, {words.size(memory)}" for (name, memory), count in kinds.items()]
    return "; ".join(listed) or "none in use"


def links(machine: MachineView) -> str:
    """The ways between GPUs, the most frequent one without names, and how many NVLinks are up."""
    labels = Counter(pair.label for pair in machine.pairs)
    if len(labels) < 2:
        ways = f"{next(iter(labels), 'unknown')} between all"
    else:
        # Ways of few pairs are told by name, the fastest first; that of most is the rest.
        rest = max(labels, key=lambda label: labels[label])
        named = sorted((p for p in machine.pairs if p.label != rest), key=lambda p: -p.rank)
        listed = [f"{pair.label} {pair.first}-{pair.second}" for pair in named]
        ways = f"{few(listed, 8)}; {rest} between others"
    up = {(gpu.nvlinks_up, gpu.nvlinks) for gpu in machine.gpus if gpu.nvlinks}
    counts = ", ".join(f"{_of(*pair)}" for pair in sorted(up, key=str))
    return f"{ways}; {counts} NVLinks up" if up else ways


def pcie(machine: MachineView) -> str:
    """Generation and lanes now, of what can be."""
    texts = Counter(_pcie(gpu) for gpu in machine.gpus)
    if len(texts) == 1:
        text = next(iter(texts))
        hint = " (virtual machine)" if text == "unknown" and machine.host.virtual else ""
        return f"{text}{hint}"
    return "; ".join(
        f"GPU {','.join(str(g.index) for g in machine.gpus if _pcie(g) == text)}: {text}"
        for text in texts
    )


def _pcie(gpu: GpuView) -> str:
    link = gpu.pcie
    if link.generation is None and link.width is None:
        return "unknown"
    idle = "" if link.busy or link.generation == link.best_generation else " (idle GPUs lower it)"
    return (
        f"generation {_of(link.generation, link.best_generation)}{idle}, "
        f"{_of(link.width, link.best_width)} lanes"
    )


def _of(now: int | None, most: int | None) -> str:
    return f"{'?' if now is None else now} of {'?' if most is None else most}"


def numa(machine: MachineView) -> str:
    """Cores of each node, and the GPUs that sit there."""
    host = machine.host
    if not host.nodes:
        return "unknown"
    parts = []
    for node, cores in host.nodes:
        here = [gpu.index for gpu in machine.gpus if gpu.numa_node == node]
        with_gpus = f" with GPU {ranges(here)}" if here else ""
        parts.append(f"node {node}: CPU {ranges(cores) or 'none'}{with_gpus}")
    lost = [gpu.index for gpu in machine.gpus if gpu.numa_node is None]
    unknown = [f"GPU {ranges(lost)}: node unknown"] if lost else []
    return "; ".join([*few_parts(parts), *unknown])


def few_parts(parts: Sequence[str]) -> list[str]:
    return list(parts) if len(parts) <= 4 else [*parts[:4], f"{len(parts) - 4} more nodes"]


def network(machine: MachineView) -> str:
    """Interfaces with a device behind them, or those that there are; RDMA devices."""
    found = [i for i in machine.interfaces or () if i.up is not False]
    real = [i for i in found if not i.virtual] or found
    listed = few([_interface(interface) for interface in real], 4) or "no interface up"
    ports = machine.rdma
    if ports is None:
        return f"{listed}; RDMA unknown"
    if not ports:
        return f"{listed}; no RDMA device"
    return f"{listed}; {_rdma(ports)}{'' if machine.verbs else ' (not to be opened)'}"


def _interface(found: InterfaceView) -> str:
    speed = "speed unknown" if found.gbits is None else f"{found.gbits:g} Gb/s"
    kind = found.driver or ("virtual" if found.virtual else "")
    return f"{found.name} {speed}{f' ({kind})' if kind else ''}"


def _rdma(ports: Sequence[RdmaView]) -> str:
    texts = Counter(
        (
            f"{port.layer or 'RDMA'} "
            f"{'speed unknown' if port.gbits is None else f'{port.gbits:g} Gb/s'}"
            f"{' not active' if port.active is False else ''}"
        )
        for port in ports
    )
    return ", ".join(f"{count}x {text}" for text, count in texts.items())


def shared_memory(host: HostView) -> str:
    if host.shm_bytes is None:
        return "none"
    free = "" if host.shm_free_bytes is None else f", {words.size(host.shm_free_bytes)} free"
    return f"{words.size(host.shm_bytes)}{free}"


def limits(host: HostView) -> str:
    """The cores this process may run on, and what its cgroup leaves it."""
    parts = [f"CPU {ranges(host.cores)}"] if host.cores else []
    if host.cpu_limit is not None:
        parts.append(f"{host.cpu_limit:g} cores' worth of time (cgroup)")
    if host.memory_limit_bytes is not None:
        parts.append(f"memory {words.size(host.memory_limit_bytes)} (cgroup)")
    elif host.memory_bytes is not None:
        parts.append(f"memory {words.size(host.memory_bytes)}")
    return ", ".join(parts) or "unknown"


def ranges(numbers: Iterable[int]) -> str:
    """0-3,8 as the kernel lists cores; at most a few of them."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return few([f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs], _FEW, ",")


def few(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first ones, and how many more there are."""
    listed = separator.join(texts[:most])
    return f"{listed} and {len(texts) - most} more" if len(texts) > most else listed
