"""How a machine is put together, from an NVML that answers as real machines do."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import fake_machines
from fake_machines import NOWHERE, SWITCH, FakeGpu, FakeNvml, bridged_machine, h200_machine, install
from nccltune.machine import topology as module
from nccltune.machine.gpu_links import GpuLinks, Pair, Pcie, bus_id_of, read_links, read_pcie
from nccltune.machine.gpus import Gpu, visible_gpus
from nccltune.machine.topology import Topology, best_gpus, read_topology


def read(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml | None) -> Topology:
    install(monkeypatch, nvml)
    links, pairs = read_links(visible_gpus({}))
    return Topology(links, pairs)


@pytest.mark.parametrize("hides_types", [False, True])
def test_two_h200_of_a_virtual_machine(monkeypatch: pytest.MonkeyPatch, hides_types: bool) -> None:
    # Switches have no PCI address there, and their kind may not be told either.
    found = read(monkeypatch, h200_machine(hides_types=hides_types))
    first, second = found.gpus
    assert (first.bus_id, second.bus_id) == ("0000:8d:00.0", "0000:a8:00.0")
    assert (first.numa_node, first.cpus) == (0, tuple(range(32)))
    assert first.pcie == Pcie()
    assert (first.nvlinks_up, first.nvlinks, first.switched) == (18, 18, 18)
    [pair] = found.pairs
    assert (pair.label, pair.nvlinks, pair.peer) == ("NV18", 18, "ok")


def test_bridges_join_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(monkeypatch, bridged_machine())
    labels = {(p.first, p.second): p.label for p in found.pairs}
    assert labels == {
        (0, 1): "SYS",
        (0, 2): "NV12",
        (0, 3): "SYS",
        (1, 2): "SYS",
        (1, 3): "NV12",
        (2, 3): "SYS",
    }
    assert [gpu.numa_node for gpu in found.gpus] == [0, 1, 0, 1]
    assert found.gpus[1].cpus == tuple(range(16, 32))


def test_pcie_links(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(monkeypatch, fake_machines.pcie_machine())
    assert found.gpus[2].pcie == Pcie(1, 4, 4, 16, 4, busy=False)
    assert found.gpus[3].pcie == Pcie(3, 16, 4, 16, 4, busy=True)
    assert [pair.label for pair in found.pairs] == ["PIX", "SYS", "SYS", "SYS", "SYS", "PHB"]
    assert {gpu.nvlinks for gpu in found.gpus} == {0}
    assert read_pcie(visible_gpus({})) == tuple(gpu.pcie for gpu in found.gpus)


def test_links_that_are_down(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = h200_machine()
    broken = replace(nvml.gpus[1], links=(*[SWITCH] * 16, "down", "down"))
    found = read(monkeypatch, replace(nvml, gpus=(nvml.gpus[0], broken)))
    assert (found.gpus[1].nvlinks_up, found.gpus[1].nvlinks) == (16, 18)
    assert found.pairs[0].label == "NV16"


@pytest.mark.parametrize(
    ("links", "nvlink_peer", "expected"),
    [
        ((None,) * 4, None, "unknown"),  # nobody says where they lead
        ((None,) * 4, 0, "NVLink"),  # but that they join the two
        (("lost",), None, "unknown"),
        ((), None, "PHB"),
        ((), 0, "NVLink"),
        (("0000:77:00.0",) * 2, None, "PHB"),  # to a third GPU
    ],
)
def test_what_nvml_does_not_tell_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
    links: tuple[Any, ...],
    nvlink_peer: int | None,
    expected: str,
) -> None:
    both = tuple(FakeGpu(f"0000:0{n}:00.0", links=links) for n in range(2))
    told = {} if nvlink_peer is None else {(0, 1): nvlink_peer}
    nvml = FakeNvml(both, {(0, 1): 30}, nvlink_peers=told, hides_types=True)
    found = read(monkeypatch, nvml)
    assert found.pairs[0].label == expected
    assert found.pairs[0].peer is None
    lost = links == ("lost",)
    assert found.gpus[0].nvlinks == (None if lost else len(links))


def test_a_way_that_nvml_has_no_name_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(monkeypatch, replace(bridged_machine(), levels={(0, 1): 35}))
    assert found.pairs[0].label == "unknown" and found.pairs[0].rank == 0


@pytest.mark.parametrize("value", [0, -1, 0xFFFFFFFF])
def test_no_width_is_made_up(monkeypatch: pytest.MonkeyPatch, value: int) -> None:
    gpu = FakeGpu("0000:01:00.0", pcie=(value, value, value, value, value), used=None)
    assert read(monkeypatch, FakeNvml((gpu,))).gpus[0].pcie == Pcie()


def test_a_gpu_that_answers_nothing() -> None:
    class Mute:
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    with pytest.MonkeyPatch.context() as patch:
        install(patch, Mute())  # type: ignore[arg-type]
        two = [Gpu(n, f"GPU-{n}", "Some GPU", 1 << 30, 0) for n in range(2)]
        links, pairs = read_links(two)
    assert links == tuple(GpuLinks(n, "Some GPU", 1 << 30) for n in range(2))
    assert [pair.label for pair in pairs] == ["unknown"]


def test_without_a_driver() -> None:
    with pytest.MonkeyPatch.context() as patch:
        found = read(patch, None)
    assert found.gpus == found.pairs == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        (b"00000000:8D:00.0", "0000:8d:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        (NOWHERE, None),
        ("fffffff:ffff:ff", None),
    ],
)
def test_bus_ids(text: str | bytes, expected: str | None) -> None:
    assert bus_id_of(text) == expected


def test_the_whole_of_a_machine_is_plain_json(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, h200_machine())
    found = read_topology({"CUDA_VISIBLE_DEVICES": "1"})
    assert [gpu.index for gpu in found.gpus] == [1] and found.pairs == ()
    assert (found.driver, found.cuda) == ("580.159.04", "13.0")
    both = json.loads(json.dumps(read_topology({}).to_dict()))
    assert both["pairs"][0]["label"] == "NV18" and both["gpus"][0]["pcie"]["width"] is None


def test_one_part_that_fails_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Any:
        raise RuntimeError("surprise")

    install(monkeypatch, h200_machine())
    for name in ("read_interfaces", "read_rdma", "read_host"):
        monkeypatch.setattr(module, name, fail)
    found = read_topology({})
    assert len(found.gpus) == 2 and found.interfaces is None and found.host.shm_bytes is None
    monkeypatch.setattr(module, "read_links", fail)
    assert read_topology({}).gpus == ()


def test_links_under_load_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(monkeypatch, fake_machines.pcie_machine())
    idle, busy = Pcie(1, 16, 4, 16, 4), Pcie(3, 16, 4, 16, 4, busy=True)
    seen = found.with_pcie([1, 0], [(idle, idle), (busy, idle), (idle, idle)])
    assert seen.gpus[1].pcie == busy and seen.gpus[0].pcie == idle
    assert seen.gpus[2:] == found.gpus[2:] and found.with_pcie([0], []) == found


# Which GPUs to take.


def machine_of(ways: dict[tuple[int, int], Any], nodes: tuple[int | None, ...]) -> Topology:
    """`ways`: how many NVLinks, or the way over PCIe."""
    return Topology(
        tuple(GpuLinks(n, "GPU", 1, numa_node=node) for n, node in enumerate(nodes)),
        tuple(
            Pair(a, b, True, way) if isinstance(way, int) else Pair(a, b, False, 0, way)
            for (a, b), way in ways.items()
        ),
    )


def test_nvlink_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(monkeypatch, bridged_machine())
    assert best_gpus(found, 2) == (0, 2)
    assert best_gpus(found, 2, busy=[0]) == (1, 3)
    assert best_gpus(found, 1) == (0,)
    assert best_gpus(found, 4) == (0, 1, 2, 3)
    assert best_gpus(found, 3) == (0, 1, 2)  # all are as bad: two processors, one bridge


def test_more_nvlinks_are_better_than_fewer() -> None:
    # A cube mesh, as of V100 machines: some pairs have two links, some one.
    ways = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2}
    assert best_gpus(machine_of(ways, (0, 0, 0, 0)), 2) == (0, 3)


def test_the_slowest_pair_counts_and_then_numa_nodes() -> None:
    ways = {**dict.fromkeys(fake_machines.PAIRS_OF_4, "SYS"), (0, 2): "PIX", (1, 3): "PIX"}
    assert best_gpus(machine_of(ways, (0, 1, 0, 1)), 2) == (0, 2)
    equal = dict.fromkeys(ways, 4)
    assert best_gpus(machine_of(equal, (0, 1, 1, 0)), 2) == (0, 3)
    assert best_gpus(machine_of(equal, (None,) * 4), 2) == (0, 1)


def test_unknown_ways_are_never_preferred() -> None:
    found = machine_of({(0, 2): "SYS"}, (0, 0, 0))
    assert best_gpus(found, 2) == (0, 2)


def test_a_machine_with_very_many_gpus() -> None:
    found = machine_of({}, (0,) * 40)
    assert best_gpus(found, 20) == tuple(range(20))


@pytest.mark.parametrize("count", [0, 5])
def test_as_many_as_there_are(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} of 4 GPUs"):
        best_gpus(machine_of({}, (0,) * 4), count)
