"""A diagnosis in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nccltune.output import diagnosis
from nccltune.output.diagnosis import paragraph
from nccltune.stats.step import Diagnosis, Shares

GOOD = Diagnosis(
    world_size=2,
    samples_per_second=2850.0,
    step_seconds=0.0449,
    ranks=(Shares(0.02, 0.93, 0.05, 0.0),) * 2,
    compute_seconds=(0.0418, 0.0418),
    data_wait_seconds=(0.001, 0.001),
    loader_seconds=0.021,
    communication_bound=0.05,
    communication_bound_fed=0.055,
    loader_bound=0.02,
    loader_bound_unsynced=0.02,
    scaling_efficiency=0.93,
    gpu_busy=(0.93, 0.93),
    utilization=(98.0, 97.0),
    noise=0.004,
)
ON_THE_CPU = replace(GOOD, gpu_busy=(), utilization=())


def findings(found: Diagnosis, backend: str = "nccl") -> list[str]:
    return [f"{one.fact}. Next: {one.next}" for one in diagnosis.findings(found, backend=backend)]


def test_one_paragraph() -> None:
    assert paragraph(GOOD) == (
        "Of a step of 44.9 ms (2850 samples/s of 2 ranks) a rank loses 2% to loading data, "
        "computes 93%, waits 0% for its host to launch kernels, and 5% is communication that "
        "computing does not hide. Communication settings can win at most 5% more samples/s, loader "
        "settings at most 2%. 2 ranks do 1.86 times the work of one: scaling efficiency 93%. The "
        "ranks' own kernels keep their GPUs busy 93% of the time; NVML's utilisation, in which "
        "communication counts, says 98%, 97%."
    )


def test_on_the_cpu_and_with_one_rank_it_is_shorter() -> None:
    alone = replace(ON_THE_CPU, world_size=1, ranks=GOOD.ranks[:1], scaling_efficiency=None)
    assert paragraph(alone) == (
        "Of a step of 44.9 ms (2850 samples/s of 1 rank) a rank loses 2% to loading data, "
        "computes 93%, and 5% is communication that computing does not hide. Communication "
        "settings can win at most 5% more samples/s, loader settings at most 2%."
    )


def test_ranks_that_differ_and_what_is_hidden() -> None:
    slow = Shares(0.5, 0.5, 0.0, 0.0)
    waiting = Shares(0.0, 0.5, 0.5, 0.0)
    found = replace(
        ON_THE_CPU,
        ranks=(slow, waiting),
        communication_bound=0.0,
        communication_bound_fed=0.6,
        loader_bound=0.25,
        loader_bound_unsynced=1.0,
    )
    text = paragraph(found)
    assert "loses 0 to 50% to loading data, computes 50%, and 0 to 50% is communication" in text
    assert (
        "Communication settings can win at most 0% more samples/s, loader settings at most 25%; "
        "were data always at hand, communication settings could win 60%; were communication free, "
        "loader settings could win 100%."
    ) in text


def test_nothing_is_out_of_the_ordinary() -> None:
    assert findings(GOOD) == []


def test_data_that_is_awaited() -> None:
    starved = replace(
        GOOD, ranks=(Shares(0.24, 0.7, 0.06, 0.0), GOOD.ranks[0]), data_wait_seconds=(0.009, 0.0)
    )
    [slow] = findings(replace(starved, loader_seconds=0.059))
    assert slow == (
        "GPUs idle while data is awaited, 24% of the step (limit 5%). The loader takes 59.0 ms a "
        "batch on its own, training 41.8 ms: it needs more workers, faster files or less work a "
        "sample. Next: nccltune search --only loader"
    )
    [crowded] = findings(replace(starved, data_wait_seconds=(0.0009, 0.0)))
    assert crowded == (
        "Loading costs 24% of the step (limit 5%), though data is awaited for only 2%: loading and "
        "training compete for processor cores or memory. The loader takes 21.0 ms a batch on its "
        "own, training 41.8 ms: it is fast enough until both want the same cores. Next: nccltune "
        "search --only loader"
    )
    [cpu] = findings(replace(starved, gpu_busy=(), utilization=()))
    assert cpu.startswith("Ranks idle while data is awaited")


@pytest.mark.parametrize(
    ("share", "limit"), [(0.20, None), (0.25, "limit 20%"), (0.35, "above 30%: heavy")]
)
def test_exposed_communication(share: float, limit: str | None) -> None:
    found = findings(replace(GOOD, ranks=(Shares(0.0, 1 - share, share, 0.0),) * 2))
    if limit is None:
        assert found == []
        return
    assert found == [
        f"Exposed communication, with waiting for slower ranks, takes {100 * share:.0f}% of the "
        f"step ({limit}). Next: nccltune search --only env --only ddp; larger batches communicate "
        "less often"
    ]


def test_variables_do_not_act_with_gloo() -> None:
    talking = replace(GOOD, ranks=(Shares(0.0, 0.6, 0.4, 0.0),) * 2)
    [finding] = findings(talking, backend="gloo")
    assert "Next: nccltune search --only ddp;" in finding


def test_gpus_that_wait_for_their_hosts() -> None:
    [finding] = findings(replace(GOOD, ranks=(Shares(0.0, 0.7, 0.1, 0.2),) * 2))
    assert finding == (
        "GPUs wait for their hosts to launch kernels 20% of the step (limit 10%), which no setting "
        "searched here changes. Next: torch.compile or CUDA graphs, a larger batch, a faster "
        "processor"
    )


def test_a_straggler() -> None:
    four = replace(GOOD, compute_seconds=(0.040, 0.041, 0.046, 0.040))
    [finding] = findings(four)
    assert finding == (
        "Rank 2 computes 15% longer than other ranks (limit 5% above the median), and all wait "
        "for it. Next: look at its GPU's clocks and temperature, and at what else runs on its cores"
    )
    assert findings(replace(four, compute_seconds=(0.040, 0.0415))) == []


def test_bad_scaling() -> None:
    [finding] = findings(replace(GOOD, scaling_efficiency=0.82))
    assert finding.startswith("Scaling efficiency is 82% (limit 90%)")


def test_an_unsteady_machine() -> None:
    [finding] = findings(replace(GOOD, noise=0.08))
    assert finding.startswith("A step's time differed by +-8% between rounds (limit 5%)")


def test_nothing_to_win() -> None:
    tight = replace(
        GOOD,
        communication_bound=0.01,
        communication_bound_fed=0.01,
        loader_bound=0.0,
        loader_bound_unsynced=0.0,
    )
    assert findings(tight) == [
        "Neither communication nor loader settings can win more than 1%: what is left is the "
        "computing itself, and the batch size. Next: keep the defaults"
    ]
    assert [one.severity for one in diagnosis.findings(tight)] == ["note"]
