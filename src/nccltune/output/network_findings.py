"""What is wrong with a machine's network devices: ports, speeds and slots. No printing here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from nccltune.output.findings import Finding
from nccltune.output.machine_facts import few
from nccltune.output.machine_view import MachineView, RdmaView


def network_findings(machine: MachineView) -> Iterator[Finding]:
    """RDMA devices that cannot be opened, and ports below what they, or their equals, can do."""
    ports = machine.rdma or ()
    if ports and not machine.verbs:
        devices = few(list(dict.fromkeys(port.device for port in ports)), 4)
        yield Finding(
            "warning",
            "network",
            f"The kernel has {devices}, but /dev/infiniband is not here, so NCCL takes sockets to "
            "other hosts",
            "start the container with --device=/dev/infiniband",
        )
    kinds: dict[tuple[str | None, str | None], list[RdmaView]] = defaultdict(list)
    for port in ports:
        kinds[port.kind, port.layer].append(port)
    for alike in kinds.values():
        yield from _unequal(alike)
    if not machine.host.virtual:  # there a slot is what the hypervisor shows
        yield from _slots(ports)


def _unequal(ports: Sequence[RdmaView]) -> Iterator[Finding]:
    """Ports that are down, or slower, while equal ones are not."""
    active = [port for port in ports if port.active]
    down = [port for port in ports if port.active is False]
    if active and down:
        yield Finding(
            "note",
            "network",
            f"{few([_name(p) for p in down], 4)}: not active, {len(active)} equal ports are",
            "look at cable and switch (ibstat), or leave the device out with NCCL_IB_HCA",
        )
    best = max((port.gbits or 0.0 for port in active), default=0.0)
    for port in active:
        if port.gbits is not None and port.gbits < best:
            yield Finding(
                "warning",
                "network",
                f"{_name(port)} runs at {port.gbits:g} Gb/s, equal ports at {best:g}",
                "look at cable and switch port (ibstat, iblinkinfo)",
            )


def _slots(ports: Sequence[RdmaView]) -> Iterator[Finding]:
    for port in ports:
        slot, speed = port.slot, port.gbits
        if slot is None:
            continue
        if slot.width < slot.best_width:
            fact = f"{_name(port)}: PCIe has {slot.width} lanes of {slot.best_width}"
        elif port.active and speed is not None and slot.gbits < 0.9 * speed:
            fact = f"{_name(port)}: PCIe gives {slot.gbits:.0f} Gb/s to a port of {speed:g}"
        else:
            continue
        text = "seat the card anew, or take another slot"
        yield Finding("warning", "network", fact, text)


def _name(port: RdmaView) -> str:
    return port.device if port.port == 1 else f"{port.device} port {port.port}"
