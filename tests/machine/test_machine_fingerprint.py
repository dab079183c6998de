"""What a result depends on, and what differs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fake_machines import ETH0, HOST
from nccltune.machine.facts import Machine
from nccltune.machine.fingerprint import (
    ALL,
    BATCH,
    DDP,
    LOADER,
    NCCL,
    Difference,
    differences,
    digest,
    fingerprint,
    malformed,
)
from nccltune.machine.gpu_links import GpuLinks, Pair, Pcie
from nccltune.machine.nics import Interface, RdmaPort
from nccltune.machine.topology import Topology

MACHINE = Machine(
    cpu="Xeon", cores=32, memory_bytes=1 << 40, gpus=("H200",) * 2,
    gpu_memory_bytes=(150_754_820_096,) * 2, nvlinks=(18, 18), driver="580.1",
    torch="2.11.0+cu130", cuda="13.0", nccl="2.28.3",
)  # fmt: skip
PCIE = Pcie(generation=1, width=16, best_generation=5, best_width=16)
TOPOLOGY = Topology(
    gpus=tuple(GpuLinks(i, "H200", 1, numa_node=0, pcie=PCIE) for i in (3, 5)),
    pairs=(Pair(3, 5, nvlink=True, nvlinks=18),),
    interfaces=(ETH0, Interface("docker0", up=True, virtual=True), Interface("eth9", up=False)),
    rdma=(RdmaPort("mlx5_0", 1, True, 400.0, "InfiniBand", "MT4129"),),
    host=HOST,
)
PROBE = {"version": "2.28.9", "transport": ["P2P"], "network": None, "plugins": {}}
JOB = {"model": "resnet50", "batch_size": 64, "precision": "bf16", "data": "synthetic",
       "nproc_per_node": 2}  # fmt: skip
BARE = Machine("Xeon", 2, 1 << 34, (), (), (), None, "2.11.0", None, "2.28.3")


def of(machine: Machine = MACHINE, topology: Topology | None = TOPOLOGY, **given: Any) -> Any:
    site = given.get("site", {"NCCL_NVLS_ENABLE": "0"})
    probe, job = given.get("probe", PROBE), {**JOB, **given.get("job", {})}
    return fingerprint(machine, topology, (3, 5) if machine.gpus else (), site, probe, job)


def changed(was: Any, now: Any) -> dict[str, Difference]:
    return {each.name: each for each in differences(was, now)}


def test_all_of_it() -> None:
    assert of() == {
        "gpus": ["H200", "H200"],
        "gpu_memory_gib": [140, 140],
        "nvlinks": [18, 18],
        "links": [[0, 1, "NV18"]],
        "pcie": ["generation 5 x16", "generation 5 x16"],
        "numa": {"nodes": 1, "gpus": [0, 0]},
        "cpu": "Xeon",
        "cores": 32,
        "nics": ["MT4129 InfiniBand 400 Gb/s", "virtio_net speed unknown"],
        "driver": "580.1",
        "cuda": "13.0",
        "nccl": "2.28.9",  # the runtime's, not the wheel's
        "torch": "2.11.0+cu130",
        "transport": ["P2P"],
        "network": "none",
        "plugins": {},
        "site": {"NCCL_NVLS_ENABLE": "0"},
        "model": "resnet50",
        "batch_size": 64,
        "precision": "bf16",
        "data": "synthetic",
        "ranks": 2,
    }
    assert json.loads(json.dumps(of())) == of()


def test_the_digest_is_of_what_is_in_it_and_not_of_the_order() -> None:
    assert digest(of()) == digest(dict(reversed(of().items())))
    assert digest(of()) != digest(of(replace(MACHINE, driver="580.2")))
    assert len(digest(of())) == 16


def test_equal_ones_do_not_differ() -> None:
    assert differences(of(), of()) == []
    assert differences(of(), of(replace(MACHINE, memory_bytes=1))) == []


@pytest.mark.parametrize(
    ("machine", "name", "matters"),
    [
        ({"driver": "590.1"}, "driver", {NCCL, DDP}),
        ({"torch": "2.12.0+cu130"}, "torch", ALL),
        ({"cuda": "13.1"}, "cuda", {NCCL, DDP}),
        ({"cores": 16}, "cores", {LOADER}),
        ({"gpu_memory_bytes": (80 << 30,) * 2}, "gpu_memory_gib", {BATCH}),
        ({"nvlinks": (18, 17)}, "nvlinks", {NCCL, DDP}),
        ({"gpus": ("B200",) * 2}, "gpus", ALL),
    ],
)
def test_each_part_says_which_settings_it_matters_for(
    machine: dict[str, Any], name: str, matters: set[str]
) -> None:
    found = changed(of(), of(replace(MACHINE, **machine)))
    assert found.keys() == {name} and found[name].matters == matters


def test_more_gpus_are_one_difference() -> None:
    four = replace(
        MACHINE, gpus=("H200",) * 4, gpu_memory_bytes=(150_754_820_096,) * 4, nvlinks=(18,) * 4
    )
    assert changed(of(), of(four)).keys() == {"gpus"}


def test_an_exchanged_gpu_is_told_where_uuids_were_asked_for() -> None:
    was, now = {**of(), "gpu_uuids": ["GPU-1", "GPU-2"]}, {**of(), "gpu_uuids": ["GPU-1", "GPU-3"]}
    assert changed(was, now)["gpu_uuids"].matters == frozenset()
    assert changed(was, of()) == {}


def test_network_cards_matter_only_where_the_network_is_used() -> None:
    other = replace(TOPOLOGY, rdma=())
    assert changed(of(), of(topology=other))["nics"].matters == frozenset()
    net = {**PROBE, "transport": ["NET"], "network": "IB"}
    assert changed(of(probe=net), of(topology=other, probe=net))["nics"].matters == {NCCL}


def test_what_ranks_talk_over() -> None:
    net = {**PROBE, "transport": ["NET"], "network": "Socket", "plugins": {"net": "ofi"}}
    found = changed(of(), of(probe=net))
    assert found.keys() == {"transport", "network", "plugins"}
    assert (found["network"].was, found["network"].now) == ("none", "Socket")


def test_each_site_variable_is_a_difference() -> None:
    found = changed(of(), of(site={"NCCL_IB_HCA": "mlx5", "NCCL_NVLS_ENABLE": "0"}))
    assert found.keys() == {"site.NCCL_IB_HCA"}
    assert (found["site.NCCL_IB_HCA"].was, found["site.NCCL_IB_HCA"].now) == (None, "mlx5")


def test_search_paths_are_told_apart_and_not_shown() -> None:
    one, other = (of(site={"LD_LIBRARY_PATH": f"/home/{n}/lib"}) for n in "ab")
    assert "/home" not in json.dumps(one)
    assert changed(one, other).keys() == {"site.LD_LIBRARY_PATH"}


@pytest.mark.parametrize(
    ("name", "value"), [("NCCL_HOSTID", "node17"), ("NCCL_COMM_ID", "10.0.0.1:99"),
                        ("NCCL_TOPO_FILE", "/home/ann/topo.xml")]
)  # fmt: skip
def test_hosts_addresses_and_paths_are_hashed(name: str, value: str) -> None:
    found = of(site={name: value})
    assert value not in json.dumps(found) and found["site"][name].startswith("sha256 ")


@pytest.mark.parametrize(
    "part",
    [{"gpus": 4}, {"numa": {}}, {"links": [[1]]}, {"site": []}, {"driver": {}}, {"site": {1: "x"}}],
)
def test_what_is_not_of_our_form(part: dict[str, Any]) -> None:
    assert malformed({**of(), **part}) == next(iter(part)) and malformed(of()) is None


def test_what_nobody_looked_at_is_no_difference() -> None:
    assert differences(of(), of(probe=None, topology=None)) == [
        Difference("nccl", "2.28.9", "2.28.3", frozenset({NCCL, DDP}))
    ]
    assert differences({}, of()) == []


def test_a_machine_without_gpus_has_no_driver_and_says_so() -> None:
    bare = of(BARE, replace(TOPOLOGY, gpus=(), pairs=()), probe=None)
    assert bare["driver"] is None and bare["nccl"] is None and "links" not in bare
    assert changed({**bare, "driver": "570.1"}, bare)["driver"].now is None


@pytest.mark.parametrize(
    ("was", "now", "differ"),
    [("2.11.0+cu130", "2.11.0", False), ("2.11.0+cu130", "2.11.0+cu126", True)],
)
def test_packages_leave_out_what_torch_adds(was: str, now: str, differ: bool) -> None:
    found = differences(of(replace(MACHINE, torch=was)), of(replace(MACHINE, torch=now)))
    assert bool(found) is differ
