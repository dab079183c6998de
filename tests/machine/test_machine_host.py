"""What a host or a container leaves to a job, from files as kernels write them."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from fake_machines import write
from nccltune.machine import nics
from nccltune.machine.host import cpus_in, read_host
from nccltune.machine.nics import (
    Interface,
    RdmaPort,
    Slot,
    read_interfaces,
    read_rdma,
    socket_interfaces,
)

MEMORY = {"proc/meminfo": "MemTotal:       263000000 kB\nMemFree: 1 kB\n"}


def test_nothing_to_be_read_is_unknown(tmp_path: Path) -> None:
    found = read_host(tmp_path)
    assert found.shm_bytes is None and found.memory_limit_bytes is None and found.cpu_limit is None
    assert found.nodes == () and found.virtual is None and found.iommu is None
    assert found.acs_bridges is None and found.cores


def test_this_machine() -> None:
    assert read_host().memory_bytes


def test_limits_of_version_2(tmp_path: Path) -> None:
    cgroups = "sys/fs/cgroup"
    write(
        tmp_path,
        {
            **MEMORY,
            "proc/self/cgroup": "0::/slice/job\n",
            f"{cgroups}/slice/job/memory.max": "max\n",
            f"{cgroups}/slice/memory.max": "68719476736\n",
            f"{cgroups}/slice/job/cpu.max": "400000 100000\n",
            f"{cgroups}/slice/cpu.max": "max 100000\n",
        },
    )
    found = read_host(tmp_path)
    assert (found.memory_limit_bytes, found.cpu_limit) == (64 << 30, 4.0)


@pytest.mark.parametrize("seen", ["docker/0123", ""])
def test_limits_of_version_1(tmp_path: Path, seen: str) -> None:
    # In a container /proc names the host's path, and the mount is the container's own.
    cgroups = "sys/fs/cgroup"
    write(
        tmp_path,
        {
            **MEMORY,
            "proc/self/cgroup": "9:memory:/docker/0123\n3:cpu,cpuacct:/docker/0123\n0::/\n",
            f"{cgroups}/memory/{seen}/memory.limit_in_bytes": "17179869184\n",
            f"{cgroups}/cpu,cpuacct/{seen}/cpu.cfs_quota_us": "150000\n",
            f"{cgroups}/cpu,cpuacct/{seen}/cpu.cfs_period_us": "100000\n",
        },
    )
    found = read_host(tmp_path)
    assert (found.memory_limit_bytes, found.cpu_limit) == (16 << 30, 1.5)


def test_no_limit_is_none(tmp_path: Path) -> None:
    cgroups = "sys/fs/cgroup"
    write(
        tmp_path,
        {
            **MEMORY,
            "proc/self/cgroup": "4:memory:/\n1:cpu:/\n",
            f"{cgroups}/memory/memory.limit_in_bytes": "9223372036854771712\n",
            f"{cgroups}/cpu/cpu.cfs_quota_us": "-1\n",
            f"{cgroups}/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    found = read_host(tmp_path)
    assert found.memory_limit_bytes is None and found.cpu_limit is None
    assert found.memory_bytes == 263000000 * 1024


def test_nodes_and_virtual_machines(tmp_path: Path) -> None:
    nodes = "sys/devices/system/node"
    write(
        tmp_path,
        {
            f"{nodes}/node0/cpulist": "0-2,8\n",
            f"{nodes}/node1/cpulist": "\n",  # memory alone
            "proc/cpuinfo": "model name : Some\nflags : fpu hypervisor\n",
        },
    )
    found = read_host(tmp_path)
    assert found.nodes == ((0, (0, 1, 2, 8)),) and found.virtual is True
    assert cpus_in("") == () and cpus_in("5") == (5,)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"class/iommu/none": "", "kernel/iommu_groups/0/type": "identity\n"}, "passthrough"),
        ({"class/iommu/dmar0": "", "kernel/iommu_groups/0/type": "DMA-FQ\n"}, "on"),
        ({"class/iommu/dmar0": "", "kernel/iommu_groups/0/other": ""}, None),
    ],
)
def test_iommu(tmp_path: Path, files: dict[str, str], expected: str | None) -> None:
    write(tmp_path / "sys", files)
    assert read_host(tmp_path).iommu == expected


def test_no_iommu(tmp_path: Path) -> None:
    (tmp_path / "sys/class/iommu").mkdir(parents=True)
    assert read_host(tmp_path).iommu == "off"


def bridge(folder: Path, config: bytes) -> None:
    write(folder, {"class": "0x060400\n"})
    (folder / "config").write_bytes(config)


def extended(*capabilities: tuple[int, int, int]) -> bytes:
    """Configuration space with (number, next, control) from 0x100 on."""
    space = bytearray(4096)
    at = 0x100
    for number, following, control in capabilities:
        space[at : at + 4] = (number | 1 << 16 | following << 20).to_bytes(4, "little")
        space[at + 6 : at + 8] = control.to_bytes(2, "little")
        at = following
    return bytes(space)


def test_access_control_of_bridges(tmp_path: Path) -> None:
    devices = tmp_path / "sys/bus/pci/devices"
    write(devices / "0000:01:00.0", {"class": "0x030200\n", "config": "x"})  # no bridge
    bridge(devices / "a", extended((0x01, 0x150, 0), (0x0D, 0, 0x1D)))
    bridge(devices / "b", extended((0x0D, 0, 0x00)))
    bridge(devices / "c", extended((0x01, 0x100, 0)))  # goes round
    assert read_host(tmp_path).acs_bridges == 1
    bridge(devices / "d", bytes(64))  # what a user who is not root may read
    assert read_host(tmp_path).acs_bridges is None


# Network devices.


def test_the_interface_of_a_virtual_machine(tmp_path: Path) -> None:
    net = tmp_path / "net"
    device = write(tmp_path / "virtio2", {"uevent": ""})
    driver = write(tmp_path / "virtio_net", {"bind": ""})
    (device / "driver").symlink_to(driver)
    write(net, {"eth0/operstate": "up\n", "eth0/speed": "-1\n", "eth0/mtu": "1400\n"})
    (net / "eth0/device").symlink_to(device)
    write(net, {"docker0/operstate": "down\n", "lo/operstate": "unknown\n"})
    assert read_interfaces(tmp_path) == (
        Interface("docker0", up=False, virtual=True),
        Interface("eth0", up=True, mtu=1400, driver="virtio_net"),
    )
    assert read_interfaces(tmp_path / "none") is None


INTERFACES = {
    "eth0": "up", "eth1": "down", "bond0.100": "up", "tun0": "unknown", "ib0": "up",
    "lo": "unknown",
    "docker0": "up", "br-0123456789ab": "up", "vethab12": "up", "virbr0": "up", "odd,name": "up",
}  # fmt: skip


def test_interfaces_that_could_carry_sockets_to_other_hosts(tmp_path: Path) -> None:
    write(tmp_path / "net", {f"{n}/operstate": f"{s}\n" for n, s in INTERFACES.items()})
    everything = {*INTERFACES} - {"ib0"}  # which has no address
    found = socket_interfaces(classes=tmp_path, addressed=everything)
    assert found == ("bond0.100", "eth0", "tun0")
    emulated = socket_interfaces(loopback=True, classes=tmp_path, addressed=everything)
    assert emulated == ("lo", *found)
    assert socket_interfaces(classes=tmp_path / "none", addressed=everything) == ()


def test_an_address_that_others_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    def given(*addresses: tuple[int, str]) -> list[SimpleNamespace]:
        return [SimpleNamespace(family=family, address=address) for family, address in addresses]

    known = {
        "eth0": given((socket.AF_PACKET, "02:fc:00:00:00:01"), (socket.AF_INET, "192.0.2.2")),
        "eth1": given((socket.AF_INET6, "fe80::1%eth1"), (socket.AF_INET6, "fd00::2")),
        "eth2": given((socket.AF_INET6, "FE80::2%eth2")),
        "eth3": given((socket.AF_PACKET, "02:fc:00:00:00:02")),
    }
    monkeypatch.setattr(nics.psutil, "net_if_addrs", lambda: known)
    assert nics._addressed() == {"eth0", "eth1"}

    def refuse() -> None:
        raise PermissionError

    monkeypatch.setattr(nics.psutil, "net_if_addrs", refuse)
    assert nics._addressed() == frozenset()


def rdma(root: Path, name: str, **files: str) -> None:
    port, device = f"infiniband/{name}/ports/1", f"infiniband/{name}/device"
    write(
        root,
        {
            f"infiniband/{name}/hca_type": "MT4129\n",
            f"{port}/state": files.get("state", "4: ACTIVE\n"),
            f"{port}/rate": files.get("rate", "400 Gb/sec (4X NDR)\n"),
            f"{port}/link_layer": "InfiniBand\n",
            f"{device}/numa_node": "1\n",
            f"{device}/current_link_speed": files.get("speed", "32.0 GT/s PCIe\n"),
            f"{device}/max_link_speed": "32.0 GT/s PCIe\n",
            f"{device}/current_link_width": files.get("width", "16\n"),
            f"{device}/max_link_width": "16\n",
        },
    )


def test_rdma_ports(tmp_path: Path) -> None:
    assert read_rdma(tmp_path / "none") is None
    assert read_rdma(tmp_path) == ()
    rdma(tmp_path, "mlx5_0")
    rdma(tmp_path, "mlx5_1", state="1: DOWN\n", rate="strange\n", speed="Unknown\n")
    rdma(tmp_path, "mlx5_2", width="8\n")
    first, second, third = read_rdma(tmp_path) or ()
    assert first == RdmaPort(
        *("mlx5_0", 1, True, 400.0, "InfiniBand", "MT4129", 1), Slot(504.128, 504.128, 16, 16)
    )
    assert (second.active, second.gbits, second.slot) == (False, None, None)
    assert third.slot == Slot(252.064, 504.128, 8, 16)


@pytest.mark.parametrize("width", ["0\n", "255\n", "32\n", "none\n"])
def test_widths_that_cannot_be_are_unknown(tmp_path: Path, width: str) -> None:
    rdma(tmp_path, "mlx5_0", width=width)
    assert (read_rdma(tmp_path) or ())[0].slot is None
