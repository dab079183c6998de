"""Network devices as the kernel shows them: speed, state, and where they sit."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

from nccltune.machine.devices import interfaces, rdma_devices

_CLASSES = Path("/sys/class")
_LOOPBACK = "lo"
# Bridges and their ends within this host, of containers and virtual machines.
_WITHIN_HOST = (
    *("docker", "br-", "veth", "virbr", "vnet", "tap", "lxc", "lxd", "podman"),
    *("cni", "flannel", "cali", "cilium", "kube", "dummy", "ifb"),
)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+")  # others mean something in NCCL's lists
# Gb/s of one lane by what the kernel writes of its transfer rate, less what coding takes
# (8 of 10 bits up to 5 GT/s, 128 of 130 up to 32, one flit in 64 of no use from there on).
_LANE = {2.5: 2.0, 5.0: 4.0, 8.0: 7.877, 16.0: 15.754, 32.0: 31.508, 64.0: 63.0}


@dataclass(frozen=True)
class Slot:
    """A device's PCIe link: Gb/s now and at most, lanes now and at most."""

    gbits: float
    best_gbits: float
    width: int
    best_width: int


@dataclass(frozen=True)
class Interface:
    """A network interface; None is unknown. `virtual` ones have no device behind them (bridges,
    a container's veth). `gbits`: its speed, which virtual machines often do not tell.
    """

    name: str
    up: bool | None = None
    gbits: float | None = None
    mtu: int | None = None
    numa_node: int | None = None
    driver: str | None = None
    virtual: bool = False
    slot: Slot | None = None


@dataclass(frozen=True)
class RdmaPort:
    """A port of an InfiniBand or RoCE device; None is unknown. `kind`: the device's own name for
    what it is, the same for equal ones. `layer`: InfiniBand or Ethernet.
    """

    device: str
    port: int
    active: bool | None = None
    gbits: float | None = None
    layer: str | None = None
    kind: str | None = None
    numa_node: int | None = None
    slot: Slot | None = None


def read_interfaces(classes: Path = _CLASSES) -> tuple[Interface, ...] | None:
    """All but the loopback; None where /sys does not tell."""
    names = interfaces(classes)
    if names is None:
        return None
    return tuple(_interface(classes / "net" / name) for name in names if name != _LOOPBACK)


def socket_interfaces(
    *,
    loopback: bool = False,
    classes: Path = _CLASSES,
    addressed: Collection[str] | None = None,
) -> tuple[str, ...]:
    """The interfaces that could carry NCCL's sockets to other hosts: up, and with an address that
    others can reach. `loopback`: for hosts that are emulated on it. `addressed`: those with an
    address, of which the kernel is asked otherwise.
    """
    with_address = _addressed() if addressed is None else addressed
    found = [
        interface.name
        for interface in read_interfaces(classes) or ()
        if interface.up is not False and not interface.name.startswith(_WITHIN_HOST)
    ]
    names = [_LOOPBACK, *found] if loopback else found
    return tuple(n for n in names if n in with_address and _PLAIN_NAME.fullmatch(n))


def _addressed() -> frozenset[str]:
    """Interfaces with an address by which another host could reach them: an IPv6 address of the
    link alone is there on every interface.
    """
    try:
        known = psutil.net_if_addrs()
    except OSError:
        return frozenset()
    return frozenset(
        name
        for name, addresses in known.items()
        for given in addresses
        if given.family == socket.AF_INET
        or (given.family == socket.AF_INET6 and not given.address.lower().startswith("fe80:"))
    )


def read_rdma(classes: Path = _CLASSES) -> tuple[RdmaPort, ...] | None:
    """The ports of all devices; None where /sys does not tell."""
    names = rdma_devices(classes)
    if names is None:
        return None
    folders = [classes / "infiniband" / name for name in names]
    return tuple(_port(folder, port) for folder in folders for port in _ports(folder))


def _interface(folder: Path) -> Interface:
    state = _text(folder / "operstate")
    speed = _number(folder / "speed")  # Mb/s; -1, or no reading at all, where nobody knows
    device = folder / "device"
    driver = device / "driver"
    return Interface(
        name=folder.name,
        up={"up": True, "down": False, "lowerlayerdown": False}.get(state or ""),
        gbits=speed / 1000 if speed is not None and 0 < speed < 10_000_000 else None,
        mtu=_number(folder / "mtu"),
        numa_node=_node(device),
        driver=os.path.basename(os.path.realpath(driver)) if driver.exists() else None,
        virtual=not device.exists(),
        slot=_slot(device),
    )


def _ports(device: Path) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(device / "ports") if name.isdigit())
    except OSError:
        return []


def _port(device: Path, port: int) -> RdmaPort:
    folder = device / "ports" / str(port)
    state, rate = _text(folder / "state"), _text(folder / "rate")
    return RdmaPort(
        device=device.name,
        port=port,
        active=None if state is None else "ACTIVE" in state.split(),  # "4: ACTIVE"
        gbits=None if rate is None else _rate(rate),
        layer=_text(folder / "link_layer"),
        kind=_text(device / "hca_type"),
        numa_node=_node(device / "device"),
        slot=_slot(device / "device"),
    )


def _rate(text: str) -> float | None:
    """Of "400 Gb/sec (4X NDR)"."""
    match = re.match(r"\s*(\d+(?:\.\d+)?)\s*Gb/sec", text)
    return float(match[1]) if match else None


def _slot(device: Path) -> Slot | None:
    """None where one of the four is not told: virtual functions and virtual machines write 0,
    "Unknown", or nothing.
    """
    speeds = [_text(device / f"{which}_link_speed") for which in ("current", "max")]
    widths = [_number(device / f"{which}_link_width") for which in ("current", "max")]
    lanes = [_LANE.get(_transfers(speed)) for speed in speeds]
    (now, best), (width, best_width) = lanes, widths
    if not now or not best or not width or not best_width or not 0 < width <= best_width <= 32:
        return None
    return Slot(now * width, best * best_width, width, best_width)


def _transfers(speed: str | None) -> float:
    """GT/s of "16.0 GT/s PCIe"; 0 where it is not known."""
    match = re.match(r"(\d+(?:\.\d+)?) GT/s", speed or "")
    return float(match[1]) if match else 0.0


def _node(device: Path) -> int | None:
    node = _number(device / "numa_node")
    return node if node is not None and node >= 0 else None  # -1: nobody knows


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
