"""Which pair of GPUs is the slowest, by what ranks measured and by how they are linked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import pytest

from fake_machines import HOST, bridged_machine, install
from nccltune.machine.gpu_links import Pair, read_links
from nccltune.machine.gpus import visible_gpus
from nccltune.machine.topology import Topology, best_gpus
from nccltune.output.machine_findings import all_findings
from nccltune.output.machine_view import Checked
from nccltune.output.pair_findings import exchanges, pair_findings, slowest_pair
from nccltune.stats.step import Diagnosis, PairSpeed, Shares


def _bridged() -> Topology:
    with pytest.MonkeyPatch.context() as patch:
        install(patch, bridged_machine())
        gpus, pairs = read_links(visible_gpus({}))
    return Topology(gpus, pairs, host=replace(HOST, virtual=False))


BRIDGED = _bridged()
NVLINK = {(0, 2): 240e9, (1, 3): 238e9}
"""What its NVLinks give; the other pairs are linked by PCIe, between processors."""
ACROSS = ((0, 1), (0, 3), (1, 2), (2, 3))


def diagnosis(speeds: Mapping[tuple[int, int], float], ranks: int) -> Diagnosis:
    """Of ranks whose pairs exchange 20 GB/s unless `speeds` says otherwise."""
    pairs = combinations(range(ranks), 2)
    return Diagnosis(
        world_size=ranks,
        samples_per_second=100.0,
        step_seconds=0.04,
        ranks=(Shares(0.0, 0.9, 0.1, 0.0),) * ranks,
        compute_seconds=(0.036,) * ranks,
        data_wait_seconds=(0.0,) * ranks,
        loader_seconds=None,
        communication_bound=0.1,
        communication_bound_fed=0.1,
        loader_bound=0.0,
        loader_bound_unsynced=0.0,
        scaling_efficiency=0.95,
        gpu_busy=(0.9,) * ranks,
        utilization=(90.0,) * ranks,
        noise=0.001,
        pairs=tuple(PairSpeed(*pair, speeds.get(pair, 20e9)) for pair in pairs),
    )


def checked(machine: Topology = BRIDGED, used: tuple[int, ...] = (0, 1, 2, 3)) -> Checked:
    return Checked(machine, used, {2: best_gpus(machine, 2), len(used): used})


def told(given: Checked, found: Diagnosis | None) -> list[str]:
    return [f"{f.severity}: {f.fact}. {f.next}" for f in pair_findings(given, found)]


def test_a_pair_whose_way_is_worse() -> None:
    measured = diagnosis({**NVLINK, (1, 2): 9.84e9}, 4)
    assert told(checked(), measured) == [
        "note: GPUs 1 and 2 (SYS) exchange 9.84 GB/s each way, GPUs 0 and 2 (NV12) 240 GB/s "
        "(limit: half of the fastest): they are linked from one processor to the other (SYS), and "
        "all-reduce goes at the pace of the slowest way that it takes. for 2 ranks take "
        "CUDA_VISIBLE_DEVICES=0,2 (NV12)"
    ]
    assert slowest_pair(checked(), measured) == (
        "slowest 9.84 GB/s each way, GPUs 1 and 2 (SYS); fastest 240 GB/s, GPUs 0 and 2 (NV12)"
    )


def test_what_was_measured_takes_the_place_of_what_links_let_expect() -> None:
    by_link = "GPUs 0 and 1 are the slowest pair"
    without = [f.fact for f in all_findings(checked())]
    assert [fact for fact in without if by_link in fact]
    told_now = [f.fact for f in all_findings(checked(), diagnosis(NVLINK, 4))]
    assert [fact for fact in told_now if "exchange 20 GB/s each way" in fact]
    assert not [fact for fact in told_now if by_link in fact]


@pytest.mark.parametrize("speeds", [{(0, 2): 40e9}, {}, {(0, 2): 20e9, (1, 2): 10e9}])
def test_pairs_within_half_of_the_fastest_are_no_finding(
    speeds: Mapping[tuple[int, int], float],
) -> None:
    assert told(checked(), diagnosis(speeds, 4)) == []


def test_a_slow_pair_with_no_worse_a_way_is_a_fault() -> None:
    one_is_slow = diagnosis({(1, 3): 60e9, (0, 2): 240e9} | dict.fromkeys(ACROSS, 100e9), 4)
    [line] = told(checked(), one_is_slow)
    assert line.startswith(
        "warning: GPUs 1 and 3 (NV12) exchange 60 GB/s each way, GPUs 0 and 2 (NV12) 240 GB/s "
        "(limit: half of the fastest), though their way is no worse. look at PCIe lanes"
    )


def test_ways_that_are_not_known() -> None:
    unseen = replace(BRIDGED, pairs=tuple(Pair(p.first, p.second) for p in BRIDGED.pairs))
    for machine in (unseen, replace(BRIDGED, pairs=())):
        [line] = told(checked(machine), diagnosis(NVLINK, 4))
        assert line == (
            "note: GPUs 0 and 1 exchange 20 GB/s each way, GPUs 0 and 2 240 GB/s (limit: half of "
            "the fastest). nvidia-smi topo -m says how they are linked"
        )
        assert slowest_pair(checked(machine), None) is None


def test_ranks_are_told_as_the_gpus_that_they_run_on() -> None:
    some = checked(used=(1, 2, 3))
    found = exchanges(some, diagnosis({(0, 2): 238e9, (1, 2): 5e9}, 3))
    assert [(e.first, e.second, e.bytes_per_second) for e in found] == [
        (2, 3, 5e9), (1, 2, 20e9), (1, 3, 238e9),
    ]  # fmt: skip
    assert [e.way.label if e.way else None for e in found] == ["SYS", "SYS", "NV12"]


def test_nothing_is_said_of_ranks_on_the_cpu_or_of_two_gpus() -> None:
    measured = diagnosis({(0, 1): 1e9}, 4)
    two = checked(used=(0, 1))
    for given, found in (
        (checked(used=()), measured),
        (two, diagnosis({(0, 1): 1e9}, 2)),
        (checked(), None),
        (checked(), diagnosis({}, 3)),  # of other ranks than those that were looked at
    ):
        assert exchanges(given, found) == () and told(given, found) == []
    assert slowest_pair(checked(used=()), measured) is None
    assert slowest_pair(two, None) is None


def test_unmeasured_the_ways_tell_which_is_the_slowest() -> None:
    assert slowest_pair(checked(), None) == (
        "slowest GPUs 0 and 1 (SYS), like 3 others; not measured"
    )
    assert slowest_pair(checked(used=(0, 1, 2)), None) == (
        "slowest GPUs 0 and 1 (SYS), like 1 other; not measured"
    )
    alike = tuple(replace(p, way="SYS", nvlink=False) for p in BRIDGED.pairs)
    assert slowest_pair(checked(replace(BRIDGED, pairs=alike)), None) is None
