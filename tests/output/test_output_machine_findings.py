"""What is told of a machine, and in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fake_machines import (
    ETH0,
    HOST,
    FakeNvml,
    bridged_machine,
    h200_machine,
    install,
    pcie_machine,
)
from nccltune.machine.gpu_links import GpuLinks, Pair, Pcie, read_links
from nccltune.machine.gpus import visible_gpus
from nccltune.machine.host import Host
from nccltune.machine.nics import RdmaPort, Slot
from nccltune.machine.topology import Topology, best_gpus
from nccltune.output.findings import Finding, in_order
from nccltune.output.link_findings import fewer_ranks
from nccltune.output.machine_facts import machine_rows, ranges
from nccltune.output.machine_findings import all_findings
from nccltune.output.machine_view import Checked, Told
from nccltune.stats.step import Diagnosis, Shares


def of(nvml: FakeNvml, host: Host = HOST, **parts: Any) -> Topology:
    with pytest.MonkeyPatch.context() as patch:
        install(patch, nvml)
        gpus, pairs = read_links(visible_gpus({}))
    known = {"interfaces": (ETH0,), "rdma": (), "driver": "580.159.04", "cuda": "13.0"}
    return Topology(gpus, pairs, host=host, **{**known, **parts})


def checked(machine: Topology, ranks: int | None = None, **parts: Any) -> Checked:
    used = tuple(gpu.index for gpu in machine.gpus)[:ranks]
    counts = {len(used), 2} if len(machine.gpus) > 1 else {len(used)}
    best = {n: best_gpus(machine, n) for n in counts if n}
    return Checked(machine, used, best, **parts)


def lines(given: Checked, diagnosis: Diagnosis | None = None) -> list[str]:
    return [f"{f.severity}: {f.fact}. {f.next}" for f in all_findings(given, diagnosis)]


H200 = of(h200_machine())
BRIDGED = of(bridged_machine(), replace(HOST, virtual=False))
PCIE = of(pcie_machine(), replace(HOST, virtual=False))


def test_two_h200_of_a_virtual_machine_have_nothing_wrong() -> None:
    assert lines(checked(H200)) == []
    assert machine_rows(H200, "Some CPU") == [
        ("GPUs", "2x NVIDIA H200, 140.4 GiB"),
        ("links", "NV18 between all; 18 of 18 NVLinks up"),
        ("PCIe", "unknown (virtual machine)"),
        ("NUMA", "node 0: CPU 0-31 with GPU 0-1"),
        ("CPU", "Some CPU, 32 cores"),
        ("limits", "CPU 0-31, memory 256.0 GiB"),
        ("/dev/shm", "256.0 GiB, 255.0 GiB free"),
        ("network", "eth0 speed unknown (virtio_net); no RDMA device"),
    ]


def test_a_machine_of_which_nothing_is_known() -> None:
    nothing = Topology()
    assert lines(Checked(nothing)) == []
    assert machine_rows(nothing, "?") == [
        ("GPUs", "none in use"),
        ("NUMA", "unknown"),
        ("CPU", "?, 0 cores"),
        ("limits", "unknown"),
        ("/dev/shm", "none"),
        ("network", "no interface up; RDMA unknown"),
    ]
    mute = Topology((GpuLinks(0, "G", 1), GpuLinks(1, "G", 1)), (Pair(0, 1),))
    assert lines(checked(mute)) == []
    rows = dict(machine_rows(mute, "?"))
    assert (rows["links"], rows["PCIe"]) == ("unknown between all", "unknown")


def test_which_gpus_to_take() -> None:
    assert lines(checked(BRIDGED, 2)) == [
        "warning: 2 ranks run on GPUs 0-1, where the slowest way is SYS; GPUs 0,2 have NV12. take "
        "CUDA_VISIBLE_DEVICES=0,2"
    ]
    one = replace(checked(BRIDGED, 2), used=(0, 2))
    assert lines(one) == []
    assert lines(checked(BRIDGED, 1)) == []


def test_the_slowest_pair_of_all() -> None:
    assert lines(checked(BRIDGED)) == [
        "note: GPUs 0 and 1 are the slowest pair, linked from one processor to the other (SYS), "
        "and all-reduce goes at the pace of the slowest way that it takes. for 2 ranks take "
        "CUDA_VISIBLE_DEVICES=0,2 (NV12)"
    ]
    assert fewer_ranks(checked(BRIDGED)) == "for 2 take CUDA_VISIBLE_DEVICES=0,2 (NV12)"
    assert fewer_ranks(checked(H200)) is None
    rows = dict(machine_rows(BRIDGED, "Some CPU"))
    assert rows["links"] == "NV12 0-2, NV12 1-3; SYS between others; 12 of 12 NVLinks up"
    assert rows["PCIe"] == "generation 4 of 4, 16 of 16 lanes"


def test_gpus_of_several_kinds_are_counted_as_on_the_bus() -> None:
    mixed = replace(BRIDGED, gpus=(replace(BRIDGED.gpus[0], name="Other"), *BRIDGED.gpus[1:]))
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=" in (
        fewer_ranks(checked(mixed)) or ""
    )


def test_pcie_links_below_what_they_could_be() -> None:
    told = lines(checked(PCIE))
    assert told[-1] == (
        "note: No NVLink joins these GPUs: gradients go over PCIe, at worst from one processor to "
        "the other (SYS), as between GPUs 0 and 2. nccltune search --only env --only ddp"
    )
    assert [line for line in told if "PCIe has" in line or "PCIe runs" in line] == [
        "warning: GPU 2: PCIe has 4 lanes of 16. seat card and riser anew, and look at the slot's "
        "lanes in the firmware's settings",
        "warning: GPU 3: PCIe runs at generation 3 of 4 under load. look at the firmware's PCIe "
        "settings and the kernel's log (AER), then at the riser",
    ]  # and nothing of the generation of idle ones
    assert dict(machine_rows(PCIE, "Some CPU"))["PCIe"] == (
        "GPU 0,1: generation 1 of 4 (idle GPUs lower it), 16 of 16 lanes; "
        "GPU 2: generation 1 of 4 (idle GPUs lower it), 4 of 16 lanes; "
        "GPU 3: generation 3 of 4, 16 of 16 lanes"
    )
    slot = replace(PCIE.gpus[0], pcie=Pcie(4, 16, 4, 16, 5))
    [one] = lines(Checked(replace(PCIE, gpus=(slot,), pairs=()), (0,)))
    assert one.startswith("note: GPU 0: could do PCIe generation 5, the slot gives 4.")


def test_nvlinks_that_are_down() -> None:
    broken = replace(H200.gpus[1], nvlinks_up=16)
    [one] = lines(checked(replace(H200, gpus=(H200.gpus[0], broken))))
    assert one.startswith("warning: GPU 1 has 16 of 18 NVLinks up. look at nvidia-smi nvlink -s")
    # A bridge takes some of the links, on all alike; where one has fewer, one is loose.
    some = [replace(gpu, nvlinks_up=8) for gpu in BRIDGED.gpus]
    assert not [f for f in lines(checked(replace(BRIDGED, gpus=tuple(some)))) if "up." in f]
    some[3] = replace(some[3], nvlinks_up=4)
    [loose] = [f for f in lines(checked(replace(BRIDGED, gpus=tuple(some)))) if "up." in f]
    assert loose.startswith("warning: GPU 3 has 4 of 8 NVLinks up")
    none = tuple(replace(gpu, nvlinks_up=0, switched=0) for gpu in H200.gpus)
    pair = Pair(0, 1, False, 0, "PHB", "ok")
    told = lines(checked(replace(H200, gpus=none, pairs=(pair,))))
    assert "note: These GPUs have NVLinks, and none is up" in told[1]


def test_gpus_without_access_to_each_other() -> None:
    refused = replace(H200.pairs[0], peer="not supported")
    [one] = lines(checked(replace(H200, pairs=(refused,))))
    assert one.startswith("warning: GPUs cannot read each other's memory (0-1: not supported), so")


@pytest.mark.parametrize(
    ("host", "what"),
    [
        (replace(HOST, virtual=False, acs_bridges=3), "ACS is on at 3 bridges"),
        (replace(HOST, virtual=False, iommu="on"), "the IOMMU is on"),
        (replace(HOST, virtual=False, iommu="passthrough"), None),
        (replace(HOST, virtual=True, iommu="on"), None),
    ],
)
def test_what_slows_talk_over_pcie(host: Host, what: str | None) -> None:
    told = [line for line in lines(checked(replace(PCIE, host=host))) if "GPUs talk" in line]
    assert told == ([] if what is None else [told[0]]) and all(str(what) in line for line in told)
    assert lines(checked(replace(H200, host=host))) == []  # NVLink does not care


def test_nccl_does_not_use_the_nvlinks() -> None:
    probe = {"transport": ["SHM"], "version": "2.28.9"}
    [one] = lines(checked(H200, probe=probe))
    assert one.startswith("warning: NVLink joins all GPUs, but NCCL talks over SHM.")
    assert lines(checked(H200, probe={**probe, "transport": ["P2P"]})) == []


def test_cores_beside_the_gpu() -> None:
    host = replace(BRIDGED.host, cores=tuple(range(16)))
    [one] = [line for line in lines(checked(replace(BRIDGED, host=host))) if "cores" in line]
    assert one.startswith("warning: GPUs 1,3: no core beside it may be used (only CPU 0-15 may).")


def test_the_host() -> None:
    small = replace(HOST, shm_bytes=64 << 20, shm_free_bytes=64 << 20, cpu_limit=4.0)
    assert lines(Checked(Topology(host=small))) == [
        "warning: /dev/shm has 64 MiB (limit 1.0 GiB): loader workers and NCCL put their buffers "
        "there. start the container with --shm-size=8g or --ipc=host",
        "note: A cgroup gives 4 cores' worth of time on 32 cores, and stops all threads when it is "
        "used up. count loader workers by the time, not by the cores, or raise the limit",
    ]
    full = replace(HOST, shm_free_bytes=1 << 20)
    [one] = lines(Checked(Topology(host=full)))
    assert one.startswith("warning: /dev/shm has 1 MiB free of 256.0 GiB.")
    limited = replace(HOST, cpu_limit=1.5, memory_limit_bytes=16 << 30)
    assert dict(machine_rows(Topology(host=limited), "?"))["limits"] == (
        "CPU 0-31, 1.5 cores' worth of time (cgroup), memory 16.0 GiB (cgroup)"
    )


def test_the_network() -> None:
    good = RdmaPort("mlx5_0", 1, True, 400.0, "InfiniBand", "MT4129", 0, Slot(504, 504, 16, 16))
    slow = replace(good, device="mlx5_1", gbits=200.0)
    down = replace(good, device="mlx5_2", active=False, gbits=10.0)
    narrow = replace(good, device="mlx5_3", slot=Slot(252, 504, 8, 16))
    old = replace(good, device="mlx5_4", slot=Slot(252, 252, 16, 16))
    bare = replace(HOST, virtual=False)
    ports = (good, slow, down, narrow, old)
    machine = Topology(host=bare, rdma=ports, verbs=True, interfaces=(ETH0,))
    assert [line.partition(". ")[0] for line in lines(Checked(machine))] == [
        "warning: mlx5_1 runs at 200 Gb/s, equal ports at 400",
        "warning: mlx5_3: PCIe has 8 lanes of 16",
        "warning: mlx5_4: PCIe gives 252 Gb/s to a port of 400",
        "note: mlx5_2: not active, 4 equal ports are",
    ]
    hidden = replace(machine, rdma=(good,), verbs=False)
    [one] = lines(Checked(hidden))
    assert one.startswith("warning: The kernel has mlx5_0, but /dev/infiniband is not here")
    assert dict(machine_rows(hidden, "?"))["network"] == (
        "eth0 speed unknown (virtio_net); 1x InfiniBand 400 Gb/s (not to be opened)"
    )
    assert lines(Checked(replace(machine, host=HOST, rdma=(narrow, old)))) == []


def test_versions() -> None:
    newer = checked(replace(H200, cuda="12.4"), cuda="13.0", nccl="2.27.5")
    assert lines(newer) == [
        "error: torch is built for CUDA 13.0, the driver is for 12.4. a driver for that release, "
        "or a torch for the driver's"
    ]
    assert lines(replace(newer, cuda="12.8"))[0].startswith("note: ")
    assert lines(replace(newer, cuda="12.1")) == []
    assert lines(replace(newer, cuda=None)) == []
    other = replace(newer, cuda=None, probe={"version": "2.28.9"})
    [one] = lines(other)
    assert one.startswith("note: NCCL 2.28.9 ran, and torch was built with 2.27.5.")
    [one] = lines(replace(newer, cuda=None, torchless="/bin/python3"))
    assert one.startswith("warning: No torch was found in /bin/python3. give the job's own")


@pytest.mark.parametrize(
    ("taint", "remedy"),
    [
        ("GPU 1 was slowed by heat for 1.2 s of 10.0 s (limit 2%)", "look at fans"),
        ("GPU 1 was slowed by a power brake from outside", "look at the power supply"),
        ("GPU 1: 3 new uncorrected ECC errors (limit 0)", "drain this machine"),
        ("GPU 1: 1 new NVLink replays (limit 0)", "look at nvidia-smi nvlink -e"),
        ("another process used GPU 0 (pid 7, python)", "let it end"),
        ("other processes used 1.8 of 2 CPU cores and ours 0.2 (limits ...)", "see who they are"),
    ],
)
def test_what_disturbs(taint: str, remedy: str) -> None:
    [one] = lines(checked(H200, taints=(taint,)))
    assert one.startswith(f"warning: {taint[0].upper()}{taint[1:]}. {remedy}")


def test_others_on_the_gpus_are_told_once() -> None:
    taint = "another process used GPU 0 (pid 7, python)"
    [one] = lines(checked(H200, busy=("GPU 0: process 7 (python)",), taints=(taint,)))
    assert one == (
        "error: Other processes run on these GPUs (GPU 0: process 7 (python)), so no rank was "
        "started. let them end, choose free GPUs with CUDA_VISIBLE_DEVICES, or give --allow-busy"
    )


def test_the_gravest_comes_first() -> None:
    settings = (Told("note", "NCCL_A", "a note"), Told("error", "NCCL_B", "does nothing"))
    late = Diagnosis(
        world_size=2,
        samples_per_second=100.0,
        step_seconds=0.1,
        ranks=(Shares(0.3, 0.6, 0.1, 0.0),) * 2,
        compute_seconds=(0.06, 0.09),
        data_wait_seconds=(0.03, 0.03),
        loader_seconds=None,
        communication_bound=0.1,
        communication_bound_fed=0.1,
        loader_bound=0.3,
        loader_bound_unsynced=0.3,
        scaling_efficiency=None,
        gpu_busy=(),
        utilization=(),
        noise=0.0,
    )
    small = replace(H200, host=replace(HOST, shm_bytes=1, shm_free_bytes=1))
    told = all_findings(checked(small, lint=settings), late)
    assert [(f.severity, f.about) for f in told] == [
        ("error", "site variables"),
        ("warning", "shared memory"),
        ("warning", "loader"),
        ("warning", "compute"),
        ("note", "site variables"),
    ]
    assert "Rank 1 computes 50% longer" in told[3].fact
    again = Finding("note", "x", "y", "z")
    assert in_order([again, again]) == (again,)


CONF = "/etc/my nccl.conf"


def test_a_setting_is_told_with_its_place_and_its_next_step() -> None:
    wrong = Told("error", "NCCL_BUFFSIZE", "NCCL reads 8M as 8", CONF, 3)
    exported = Told("warning", "NCCL_P2P_DISABLE", "slow")
    assert lines(checked(H200, lint=(wrong, exported))) == [
        f"error: {CONF}, line 3: NCCL_BUFFSIZE: NCCL reads 8M as 8. change that line; nccltune "
        f"lint '{CONF}' says more",
        "warning: NCCL_P2P_DISABLE: slow. change it where it is exported; nccltune lint says more",
    ]


def test_notes_take_one_line() -> None:
    notes = [Told("note", f"NCCL_{n}", "the environment says the same", CONF, n) for n in range(8)]
    assert lines(checked(H200, lint=tuple(notes[:1]))) == [
        f"note: {CONF}, line 0: NCCL_0: the environment says the same. nccltune lint"
    ]
    again = Told("note", "NCCL_0", "something else", CONF, 0)
    assert lines(checked(H200, lint=(*notes[:2], again))) == [
        "note: 3 notes on NCCL_0, NCCL_1. nccltune lint"
    ]
    [told] = lines(checked(H200, lint=(*notes, Told("note", "", "a line"))))
    assert told.startswith("note: 9 notes on NCCL_0, NCCL_1, ") and "and 2 more" in told


def test_settings_that_cannot_be_read() -> None:
    reason = "/home/me/.nccl.conf: is a folder"
    assert lines(checked(H200, unread=(reason,))) == [
        f"warning: Settings of NCCL are not known: {reason}. make it a file that jobs can read, or "
        "take it away"
    ]


def test_gpus_that_were_asked_for_and_are_not_here() -> None:
    [told] = lines(replace(checked(Topology()), gpuless="this machine shows no NVIDIA GPU"))
    assert told.startswith("error: No GPU for --device cuda: this machine shows no NVIDIA GPU. see")


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1], "0-1"),
        ([8, 0, 1, 2, 3], "0-3,8"),
        (range(0, 20, 2), "0,2,4,6,8,10 and 4 more"),
    ],
)
def test_ranges(numbers: Any, text: str) -> None:
    assert ranges(numbers) == text
