"""What is measured next: order, batches, no repetition, the end of a space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from study_jobs import (
    DDP,
    ENV,
    PARAMETERS,
    PRESETS,
    TASK,
    Script,
    measurement,
    planner_of,
    run_study,
    space_of,
)

from nccltune.space import ResolvedSpace, key, violation
from nccltune.study.batch_sizes import (
    FEWEST_FOR_BATCH,
    Memory,
    foreseen_memory,
    larger_batches,
    leaves_out_larger,
    stage_parameters,
)
from nccltune.study.budget import Budget
from nccltune.study.folder import StudyPaths
from nccltune.study.planner import Planner
from nccltune.study.records import Trial
from nccltune.study.store import Store

Value = Callable[[Mapping[str, Any]], "float | None | str"]
"""Samples/s of a configuration; a text is a kind of failure."""
Cheap = Callable[[Mapping[str, Any]], bool]


@pytest.fixture
def soon_exhausted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A used up space is recognised after fewer rejected proposals, which cost time."""
    monkeypatch.setattr("nccltune.study.planner._ATTEMPTS", 60)


def always(_configuration: Mapping[str, Any]) -> bool:
    """Every configuration suits the live worker group: none waits."""
    return True


def never(_configuration: Mapping[str, Any]) -> bool:
    return False


def flat(_configuration: Mapping[str, Any]) -> float:
    return 100.0


def drive(
    planner: Planner,
    trials: list[Trial],
    most: int,
    value: Value = flat,
    budget: Budget | None = None,
    cheap: Cheap = always,
) -> list[Trial]:
    """Plan, pretend to measure, record, tell."""
    while len(trials) < most:
        following = planner.next(trials, budget or Budget(most, None), cheap)
        if following is None:
            break
        answer = value(following.configuration)
        failed = isinstance(answer, str)
        trial = Trial(
            number=len(trials),
            stage=following.stage,
            origin=following.origin,
            parameters=dict(following.configuration),
            state="failed" if failed else "complete",
            value=None if failed else answer,
            failure=answer if failed else None,
            seconds=10.0,
            measurements=(f"m{len(trials):04d}",),
        )
        trials.append(trial)
        planner.tell(trial, following)
    return trials


def planned(
    folder: Path, space: ResolvedSpace, most: int, value: Value = flat, seed: int = 0
) -> list[Trial]:
    folder.mkdir(exist_ok=True)
    return drive(planner_of(StudyPaths(folder), space, [], seed), [], most, value)


def ascending(configuration: Mapping[str, Any]) -> float:
    """Different for different configurations, the same in every run."""
    digits = [ord(c) for c in key(configuration)]
    return 100.0 + sum(i * d for i, d in enumerate(digits)) % 997 / 100


def sizes(trials: list[Trial], stage: str = "batch") -> list[Any]:
    return [t.parameters["batch_size"] for t in trials if t.stage == stage]


def test_the_baseline_comes_first_then_presets_then_the_sampler(tmp_path: Path) -> None:
    space = space_of(presets=PRESETS)
    trials = planned(tmp_path, space, 6)
    assert [t.origin for t in trials[:4]] == [
        "baseline",
        "preset buckets",
        "preset ring",
        "sampler",
    ]
    assert trials[0].parameters == space.baseline
    assert trials[1].parameters == {**space.baseline, "bucket_cap_mb": 100}
    assert trials[2].parameters == {**space.baseline, "NCCL_ALGO": "Ring"}


def test_a_preset_that_was_measured_already_is_not_run_again(tmp_path: Path) -> None:
    space = space_of(presets=PRESETS)
    trials = planned(tmp_path, space, 1)
    measured = Trial.of(
        measurement(1, configuration={**space.baseline, "bucket_cap_mb": 100}, origin="sampler")
    )
    following = planner_of(StudyPaths(tmp_path), space, [*trials, measured]).next(
        [*trials, measured], Budget(10, None), always
    )
    assert following is not None
    assert following.origin == "preset ring"


@pytest.mark.parametrize("most", [8, 12, 13, 40])
def test_three_quarters_of_the_trials_are_at_the_users_batch(tmp_path: Path, most: int) -> None:
    trials = planned(tmp_path, space_of(presets=PRESETS), most, ascending)
    assert len(trials) == most
    batch = [t for t in trials if t.stage == "batch"]
    assert len(batch) == most // 4  # 2, 3, 3, 10: never more than a quarter
    assert all(size == 64 for size in sizes(trials, "search"))
    assert all(size > 64 for size in sizes(trials))
    # The second stage comes after the first.
    assert [t.stage for t in trials] == ["search"] * (most - most // 4) + ["batch"] * (most // 4)


def test_few_trials_are_all_at_the_users_batch(tmp_path: Path) -> None:
    assert {t.stage for t in planned(tmp_path, space_of(), 7)} == {"search"}


def test_nothing_is_measured_twice_and_nothing_illegal(tmp_path: Path) -> None:
    # A third of these pairs break NCCL_MIN_CTAS <= NCCL_MAX_CTAS, and that is built in.
    space = space_of(
        {
            "NCCL_MIN_CTAS": {**ENV, "choices": [None, 4, 16, 32]},
            "NCCL_MAX_CTAS": {**ENV, "choices": [None, 4, 16, 32]},
            "bucket_cap_mb": {**DDP, "choices": [None, 10, 50]},
        },
        constraints={"forbids": [{"NCCL_MIN_CTAS": 4, "bucket_cap_mb": 10}]},
    )
    trials = planned(tmp_path, space, 24, ascending)
    assert len(trials) == 24
    assert len({key(t.parameters) for t in trials}) == 24
    for trial in trials:
        assert violation(trial.parameters, space) is None
        low, high = trial.parameters["NCCL_MIN_CTAS"], trial.parameters["NCCL_MAX_CTAS"]
        assert low is None or high is None or int(low) <= int(high)
        assert (low, trial.parameters["bucket_cap_mb"]) != (4, 10)


@pytest.mark.usefixtures("soon_exhausted")
def test_values_that_do_nothing_make_no_other_configuration(tmp_path: Path) -> None:
    # Without workers a prefetch_factor is idle: 1 + 2 x 2 configurations, not 2 x 3.
    space = space_of(
        {
            "num_workers": {"target": "loader", "choices": [0, 2, 4], "default": 2},
            "prefetch_factor": {"target": "loader", "choices": [None, 4], "default": None},
        }
    )
    trials = planned(tmp_path, space, 40, ascending)
    assert sorted(key(t.parameters) for t in trials) == sorted(
        f'{{"num_workers":{workers},"prefetch_factor":{prefetch}}}'
        for workers, prefetch in ((0, "null"), (2, "null"), (2, 4), (4, "null"), (4, 4))
    )


@pytest.mark.usefixtures("soon_exhausted")
def test_a_space_that_is_used_up_ends_the_search(tmp_path: Path) -> None:
    space = space_of({"bucket_cap_mb": {**DDP, "choices": [None, 10]}})
    planner = planner_of(StudyPaths(tmp_path), space, [])
    trials = drive(planner, [], 40)
    assert [t.parameters["bucket_cap_mb"] for t in trials] == [None, 10]
    assert planner.next(trials, Budget(40, None), always) is None
    # Resumed, it still is.
    again = planner_of(StudyPaths(tmp_path), space, trials)
    assert again.next(trials, Budget(40, None), always) is None


@pytest.mark.usefixtures("soon_exhausted")
def test_an_empty_space_has_its_baseline(tmp_path: Path) -> None:
    trials = planned(tmp_path, space_of({"NCCL_ALGO": {**ENV, "choices": [None]}}), 5)
    assert [(t.origin, t.parameters) for t in trials] == [("baseline", {})]


@pytest.mark.usefixtures("soon_exhausted")
def test_larger_batches_go_up_with_the_winners_settings(tmp_path: Path) -> None:
    def best_with_50(configuration: Mapping[str, Any]) -> float:
        return 150.0 if configuration["bucket_cap_mb"] == 50 else 100.0

    parameters = {name: PARAMETERS[name] for name in ("bucket_cap_mb", "batch_size")}
    trials = planned(tmp_path, space_of(parameters), 12, best_with_50)
    # bucket_cap_mb has four values, so the user's own batch is used up after four trials. From
    # then on larger batches get a quarter of what has been measured, the one to come included.
    assert sizes(trials, "search") == [64] * 4
    assert sizes(trials) == [128]
    assert trials[4].origin == "larger batch"
    assert trials[4].parameters == {"bucket_cap_mb": 50, "batch_size": 128}


def test_the_ladder_climbs_step_by_step(tmp_path: Path) -> None:
    trials = planned(tmp_path, space_of(), 40, ascending)
    winner = max((t for t in trials if t.stage == "search"), key=lambda t: t.value or 0)
    ladder = [t for t in trials if t.origin == "larger batch"]
    assert sizes(ladder) == [128, 256, 512]
    for trial in ladder:
        assert trial.parameters == {
            **winner.parameters, "batch_size": trial.parameters["batch_size"],
        }  # fmt: skip
    around = [t for t in trials if t.stage == "batch" and t.origin == "sampler"]
    assert len(around) == 7
    for trial in around:  # only loader and batch settings differ from the winner's
        assert {n: v for n, v in trial.parameters.items() if v != winner.parameters[n]}.keys() <= {
            "batch_size", "num_workers",
        }  # fmt: skip


def test_the_ladder_stops_below_a_batch_that_ran_out_of_memory(tmp_path: Path) -> None:
    def until_256(configuration: Mapping[str, Any]) -> float | str:
        full = configuration["batch_size"] >= 256
        return "out_of_memory" if full else ascending(configuration)

    trials = planned(tmp_path, space_of(), 20, until_256)
    assert len(trials) == 20
    # 512 is never tried, nor 256 again; what is left of the quarter varies the loader at 128.
    assert sizes(trials) == [128, 256, 128, 128, 128]
    assert len({t.parameters["num_workers"] for t in trials if t.stage == "batch"}) >= 3


GIB = 1 << 30


@pytest.mark.parametrize(("share", "stops"), [(0.8, True), (0.9, False)])
def test_the_ladder_stops_where_a_larger_batch_is_much_slower(
    tmp_path: Path, share: float, stops: bool
) -> None:
    def value(configuration: Mapping[str, Any]) -> float:
        return 300.0 * share if configuration["batch_size"] == 256 else 300.0

    trials: list[Trial] = []
    paths = StudyPaths(tmp_path)
    planner = planner_of(paths, space_of(), trials)
    drive(planner, trials, 40, value)
    tried = [t.parameters["batch_size"] for t in trials if t.origin == "larger batch"]
    assert tried == ([128, 256] if stops else [128, 256, 512])
    after = trials[trials.index(next(t for t in trials if 256 in t.parameters.values())) + 1 :]
    assert len(after) >= 5
    assert ({t.parameters["batch_size"] for t in after} == {128}) == stops
    told = "batch size 512 is not tried: 256 is slower than 64 already (240 and 300 samples/s)"
    assert planner.rejected == ({512: told} if stops else {})


def test_a_batch_that_is_foreseen_not_to_fit_is_not_tried(tmp_path: Path) -> None:
    def peak(trial: Trial) -> int:  # 10 GiB and 0.25 GiB a sample: 26, 42, 74, 138
        size = trial.parameters["batch_size"]
        assert isinstance(size, int)
        return 10 * GIB + size * GIB // 4

    memory = Memory(100 * GIB, peak)
    planner = planner_of(StudyPaths(tmp_path), space_of(), [], memory=memory)
    trials = drive(planner, [], 20, ascending)
    # After 64 and 128 the line is known, and 512 lies above it.
    assert sizes(trials)[:2] == [128, 256]
    assert 512 not in sizes(trials)
    assert planner.rejected == {
        512: "batch size 512 is not tried: it would need about 138 GiB of a GPU's 100 GiB"
    }


def test_memory_is_foreseen_on_a_line_through_the_two_largest() -> None:
    assert foreseen_memory({}, 128) == 0.0
    assert foreseen_memory({64: 30}, 128) == 0.0  # one point tells no slope
    assert foreseen_memory({64: 30, 128: 50}, 256) == 90.0
    assert foreseen_memory({128: 50, 64: 30, 256: 100}, 512) == pytest.approx(200.0)


def test_when_no_larger_batch_fits_the_trials_go_to_the_users_own(tmp_path: Path) -> None:
    def only_64(configuration: Mapping[str, Any]) -> float | str:
        full = configuration["batch_size"] > 64
        return "out_of_memory" if full else ascending(configuration)

    trials = planned(tmp_path, space_of(), 16, only_64)
    assert len(trials) == 16
    assert sizes(trials) == [128]
    assert trials[12].stage == "batch"
    assert [t.stage for t in trials[13:]] == ["search"] * 3


def test_another_failure_does_not_stop_the_ladder(tmp_path: Path) -> None:
    def crashes_at_128(configuration: Mapping[str, Any]) -> float | str:
        return "crashed" if configuration["batch_size"] == 128 else ascending(configuration)

    trials = planned(tmp_path, space_of(), 16, crashes_at_128)
    assert sizes(trials)[:3] == [128, 256, 512]


def test_where_time_ends_the_search_larger_batches_get_their_share_of_it(tmp_path: Path) -> None:
    # By trials the second stage would begin at 30; three quarters of the time are spent before.
    space = space_of()
    planner = planner_of(StudyPaths(tmp_path), space, [])
    early = drive(planner, [], 10, ascending, Budget(40, None))
    assert {t.stage for t in early} == {"search"}
    late = Budget(40, 1e-9)
    assert late.share_spent() == 1.0
    following = planner.next(early, late, always)
    assert following is not None
    assert (following.stage, following.configuration["batch_size"]) == ("batch", 128)
    all_trials = drive(planner, early, 24, ascending, late)
    for count in range(10, 25):  # at no moment more than a quarter
        assert len(sizes(all_trials[:count])) <= count / 4


def test_the_same_seed_proposes_the_same_for_the_same_values(tmp_path: Path) -> None:
    space = space_of(presets=PRESETS)
    first, second, other = (
        [key(t.parameters) for t in planned(tmp_path / name, space, 20, ascending, seed)]
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    assert first == second
    assert first != other
    assert first[:3] == other[:3]  # baseline and presets


def test_the_sampler_learns(tmp_path: Path) -> None:
    def likes_one(configuration: Mapping[str, Any]) -> float:
        good = configuration["NCCL_ALGO"] == "Ring", configuration["bucket_cap_mb"] == 50
        return 100.0 + 50 * sum(good)

    parameters = {n: PARAMETERS[n] for n in ("NCCL_ALGO", "NCCL_BUFFSIZE", "bucket_cap_mb")}
    parameters["num_workers"] = PARAMETERS["num_workers"]
    trials = planned(tmp_path, space_of(parameters), 40, likes_one)
    # One in twelve has both by chance: 2 or 3 of 32.
    assert sum(t.value == 200.0 for t in trials[8:]) >= 8


def test_candidates_for_larger_batches() -> None:
    assert larger_batches(space_of(), 64) == [128, 256, 512]
    ranged = {"target": "batch", "range": {"low": 16, "high": 500}, "default": None}
    space = space_of({"batch_size": ranged, "bucket_cap_mb": PARAMETERS["bucket_cap_mb"]})
    assert larger_batches(space, 64) == [128, 256]
    assert larger_batches(space_of({"bucket_cap_mb": PARAMETERS["bucket_cap_mb"]}), 64) == []


def test_what_each_stage_searches() -> None:
    found = stage_parameters(space_of())
    assert [p.name for p in found["batch"]] == ["batch_size", "num_workers"]
    assert [p.name for p in found["search"]] == [
        "NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "bucket_cap_mb",
        "num_workers",
    ]  # fmt: skip
    assert TASK.batch_size == 64


# Of some proposals the one that needs no new worker group comes first.

CHOICES = space_of(
    {
        "NCCL_BUFFSIZE": {**ENV, "choices": [None, 1048576, 2097152, 4194304, 8388608]},
        "bucket_cap_mb": {**DDP, "choices": [None, *range(1, 60)]},
    }
)


def dear(*sizes: int) -> list[Mapping[str, Any]]:
    return [{**CHOICES.baseline, "NCCL_BUFFSIZE": size} for size in sizes]


def near(*buckets: int) -> list[Mapping[str, Any]]:
    return [{**CHOICES.baseline, "bucket_cap_mb": size} for size in buckets]


def unset(configuration: Mapping[str, Any]) -> bool:
    """As where the live group was started with no variable."""
    return configuration["NCCL_BUFFSIZE"] is None


def of(trials: list[Trial]) -> list[Mapping[str, Any]]:
    return [t.parameters for t in trials[1:]]


def test_a_proposal_that_suits_goes_before_up_to_three_that_do_not() -> None:
    first, second, third = dear(1048576, 2097152, 4194304)
    script = Script([first, second, third, *near(1, 2)], CHOICES.baseline)
    trials = drive(script.planner(CHOICES), [], 6, cheap=unset)
    assert of(trials) == [*near(1, 2), first, second, third]


def test_where_four_do_not_suit_the_oldest_is_next_and_no_fifth_is_asked_for() -> None:
    proposals = [*dear(1048576, 2097152, 4194304, 8388608), *near(1, 2)]
    script = Script(proposals, CHOICES.baseline)
    planner = script.planner(CHOICES)
    trials = drive(planner, [], 2, cheap=unset)
    assert (of(trials), script.asks) == (proposals[:1], 4)
    trials = drive(planner, trials, 3, cheap=unset)
    assert (of(trials), script.asks) == ([proposals[0], proposals[4]], 5)


def test_nothing_is_asked_of_the_sampler_while_one_that_waits_suits() -> None:
    proposals = [*dear(1048576, 2097152), *near(1)]
    script = Script(proposals, CHOICES.baseline)
    planner = script.planner(CHOICES)
    trials = drive(planner, [], 2, cheap=unset)
    assert (of(trials), script.asks) == (near(1), 3)
    # The live group is one with the second's variable now.
    trials = drive(planner, trials, 3, cheap=lambda c: c["NCCL_BUFFSIZE"] == 2097152)
    assert (of(trials)[-1:], script.asks) == (proposals[1:2], 3)


def test_where_all_suit_or_none_does_the_order_is_the_samplers() -> None:
    proposals = [*dear(1048576), *near(1, 2), *dear(2097152), *near(3, 4, 5)]
    for cheap, asks in ((always, 5), (never, 7)):
        script = Script(proposals, CHOICES.baseline)
        assert of(drive(script.planner(CHOICES), [], 5, cheap=cheap)) == proposals[:4]
        # Where none suits there are always four to choose from.
        assert script.asks == asks - (cheap is always)


def test_baseline_and_presets_do_not_wait() -> None:
    presets = [{"name": "large", "source": "a/b#1", "values": {"NCCL_BUFFSIZE": 8388608}}]
    space = space_of({**PARAMETERS, "NCCL_BUFFSIZE": {**ENV, "choices": [None, 8388608]}},
                     presets=presets)  # fmt: skip
    script = Script([], space.baseline)
    trials = drive(script.planner(space), [], 2, cheap=never)
    assert [t.origin for t in trials] == ["baseline", "preset large"]
    assert script.asks == 0


def test_a_twin_of_one_that_waits_is_not_measured_too() -> None:
    first, second = dear(1048576, 2097152)
    script = Script([first, first, second, first, *near(1)], CHOICES.baseline)
    trials = drive(script.planner(CHOICES), [], 4, cheap=unset)
    assert of(trials) == [*near(1), first, second]
    assert script.withdrawn == [first, first], "nothing is told of what is not measured yet"
    assert first not in [values for values, _ in script.rejected]


@pytest.mark.parametrize("cheap", [always, never])
def test_a_stage_that_is_used_up_is_remembered(cheap: Cheap) -> None:
    script = Script([*near(1), *dear(1048576)], CHOICES.baseline)
    planner = script.planner(CHOICES)
    trials = drive(planner, [], 40, cheap=cheap)
    assert of(trials) == [*near(1), *dear(1048576)]
    asks = script.asks
    assert asks == 2 + 300
    assert planner.next(trials, Budget(40, None), cheap) is None
    assert script.asks == asks  # it was not asked 300 times more


def test_what_waits_is_measured_when_nothing_new_comes() -> None:
    proposals = dear(1048576, 2097152, 4194304)
    script = Script(proposals, CHOICES.baseline)
    trials = drive(script.planner(CHOICES), [], 40, cheap=unset)
    assert of(trials) == proposals


def test_a_used_up_stage_with_larger_batches_is_remembered_too() -> None:
    # Only 128 fits, and each of the sampler's proposals is known or too large.
    parameters = {
        "batch_size": PARAMETERS["batch_size"],
        "num_workers": {"target": "loader", "choices": [2, 4], "default": None},
    }
    space = space_of(parameters)
    too_large = [
        {"batch_size": size, "num_workers": workers} for size in (256, 512) for workers in (2, 4)
    ]
    script = Script(
        [{"num_workers": 4}, {"batch_size": 128, "num_workers": 4}, *too_large * 1000],
        space.baseline,
    )

    def until_256(configuration: Mapping[str, Any]) -> float | str:
        return "out_of_memory" if configuration["batch_size"] >= 256 else ascending(configuration)

    planner = script.planner(space)
    trials = drive(planner, [], 2, until_256, Budget(40, None))
    spent = Budget(40, 1e-9)
    for number in range(2, 24):  # trials at the user's own batch, to leave room for larger ones
        trials.append(replace(trials[1], number=number, parameters={"extra": number}))
    drive(planner, trials, 27, until_256, spent)
    assert sizes(trials)[:2] == [128, 256]
    asks = script.asks
    for _ in range(3):
        planner.next(trials, spent, always)
    # The first of the three may find it out (300 for each stage); the others have been told.
    assert script.asks - asks <= 2 * 300


def test_when_nothing_suits_the_shares_of_the_stages_are_the_same(tmp_path: Path) -> None:
    planner = planner_of(StudyPaths(tmp_path), space_of(presets=PRESETS), [])
    trials = drive(planner, [], 24, ascending, cheap=never)
    assert [t.stage for t in trials] == ["search"] * 18 + ["batch"] * 6
    assert sizes(trials)[:3] == [128, 256, 512]
    assert len({key(t.parameters) for t in trials}) == 24


# Memory that is foreseen.


def proportional(trial: Trial) -> int:
    """10 GiB and 0.25 GiB a sample: 26, 42, 74, 138 GiB."""
    size = trial.parameters["batch_size"]
    assert isinstance(size, int)
    return 10 * GIB + size * GIB // 4


@pytest.mark.parametrize(
    ("available", "tried", "rejected"),
    [
        (None, [128, 256, 512], {}),
        (138 * GIB, [128, 256, 512], {}),  # just enough
        (138 * GIB - 1, [128, 256], {512: (138, 138)}),
        (73 * GIB, [128], {256: (74, 73), 512: (138, 73)}),
        # One size tells no slope: the first larger one is tried whatever there is.
        (1 * GIB, [128], {256: (74, 1), 512: (138, 1)}),
    ],
)
def test_sizes_are_tried_as_far_as_memory_goes(
    tmp_path: Path, available: int | None, tried: list[int], rejected: dict[int, tuple[int, int]]
) -> None:
    memory = Memory(available, proportional)
    planner = planner_of(StudyPaths(tmp_path), space_of(), [], memory=memory)
    trials = drive(planner, [], 16, ascending)
    assert [t.parameters["batch_size"] for t in trials if t.origin == "larger batch"] == tried
    assert set(sizes(trials)) == set(tried)  # the sampler keeps to them too
    assert planner.rejected == {
        size: f"batch size {size} is not tried: it would need about {needed} GiB of a GPU's "
        f"{there} GiB"
        for size, (needed, there) in rejected.items()
    }


def test_a_trial_that_tells_no_memory_is_no_point_of_the_line(tmp_path: Path) -> None:
    memory = Memory(1 * GIB, lambda _trial: None)
    planner = planner_of(StudyPaths(tmp_path), space_of(), [], memory=memory)
    trials = drive(planner, [], 16, ascending)
    assert sizes(trials)[:3] == [128, 256, 512]
    assert planner.rejected == {}


def test_where_larger_batches_alone_are_searched_they_get_all_trials(tmp_path: Path) -> None:
    space = space_of({"batch_size": PARAMETERS["batch_size"]})
    paths = run_study(tmp_path / "s", lambda asked: float(asked.batch_size), space, 4)
    found = [trial.parameters["batch_size"] for trial in Store(paths).trials]
    assert found == [64, 128, 256, 512]


def test_short_searches_have_no_trial_for_larger_batches() -> None:
    space = space_of()
    assert larger_batches(space, 64)
    found = [n for n in range(1, 20) if leaves_out_larger(space, 64, n)]
    assert found == list(range(1, FEWEST_FOR_BATCH))
    assert not leaves_out_larger(space, 1 << 20, 4)  # none is larger


# With the guided sampler.


def test_guided_begins_with_presets_and_ends_a_used_up_space(tmp_path: Path) -> None:
    space = space_of({"bucket_cap_mb": PARAMETERS["bucket_cap_mb"]})
    planner = planner_of(StudyPaths(tmp_path), space, [], sampler="guided")
    trials = drive(planner, [], 40)
    assert trials[0].origin == "baseline"
    count = len(PARAMETERS["bucket_cap_mb"]["choices"])
    assert len({key(t.parameters) for t in trials}) == count
    assert len(trials) <= count + max(2, count // 2)  # few are measured again


def test_guided_ends_when_nothing_that_could_be_shown_is_left(tmp_path: Path) -> None:
    planner = planner_of(StudyPaths(tmp_path), space_of(), [], sampler="guided")
    planner.know_noise([(100.0, -1), (100.1, -2), (99.9, -3)], 0.05)
    trials = drive(planner, [], 60)
    own = [t for t in trials if t.stage == "search"]
    assert planner.settled is not None and planner.settled < 0.1
    assert 4 < len(own) < 45


def test_guided_searches_again_what_was_left_out_before(tmp_path: Path) -> None:
    space, paths = space_of(), StudyPaths(tmp_path)
    planner = planner_of(paths, space, [], sampler="guided")
    trials = drive(planner, [], 1)
    left_out = [n for n, p in PARAMETERS.items() if p["target"] == "env"]
    planner.leave_out(left_out)
    drive(planner, trials, 6)
    planner.close()
    again = planner_of(paths, space, trials, sampler="guided")
    drive(again, trials, 16)
    assert any(t.parameters[n] != space.baseline[n] for t in trials[6:] for n in left_out)
