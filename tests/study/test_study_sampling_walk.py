"""Coordinate descent: where it begins, what comes beside what, and that trials alone say so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from nccltune.study.sampling.guided import NOT_RUN
from nccltune.study.sampling.walk import WalkSampler

SPACE: dict[str, BaseDistribution] = {
    "a": CategoricalDistribution([None, 1, 2]),
    "b": CategoricalDistribution([False, True]),
    "c": IntDistribution(0, 8, step=4),
}
ORDER = ("c", "a", "b")
DEFAULT = {"a": None, "b": False, "c": 0}
Configuration = Mapping[str, Any]


def speed(c: Configuration) -> float:
    return 100.0 + 10 * (c["c"] == 8) + 5 * (c["a"] == 1) + 3 * c["b"]


def study_of(sampler: WalkSampler, direction: str = "maximize") -> optuna.Study:
    return optuna.create_study(direction=direction, sampler=sampler)


def walk(
    trials: int,
    value: Callable[[Configuration], float | None] = speed,
    study: optuna.Study | None = None,
    **options: Any,
) -> list[tuple[Any, ...]]:
    """The configurations that were proposed, as (c, a, b). None as a value is a failure."""
    options = {"default": DEFAULT, "order": ORDER, "seed": 0, **options}
    study = study or study_of(WalkSampler(**options))
    proposed = []
    for _ in range(trials):
        trial = study.ask(fixed_distributions=SPACE)
        proposed.append(tuple(trial.params[name] for name in ORDER))
        found = value(trial.params)
        if found is None:
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, found)
    return proposed


def test_each_parameter_is_tried_beside_the_best_so_far_until_nothing_changes() -> None:
    assert walk(8) == [
        (0, None, False),  # the default
        (4, None, False),
        (8, None, False),  # the best: from here on
        (8, 1, False),  # better
        (8, 2, False),
        (8, 1, True),  # better: what differs from it by c and a alone is new
        (0, 1, True),
        (4, 1, True),
    ]
    # then (8, None, True) and (8, 2, True), and what is left in any order
    proposed = walk(18)
    assert set(proposed[8:10]) == {(8, None, True), (8, 2, True)}
    assert len(set(proposed)) == 18


def test_the_best_configuration_is_reached_where_parameters_do_not_depend_on_each_other() -> None:
    for seed in range(5):
        proposed = walk(1 + 2 + 2 + 1, seed=seed, order=None)  # each other value once
        assert max(map(speed, (dict(zip(ORDER, p, strict=True)) for p in proposed))) == 118


def test_the_order_is_the_seeds_where_none_is_given() -> None:
    firsts = {tuple(walk(2, order=None, seed=seed)[1]) for seed in range(20)}
    assert len(firsts) == 3
    assert walk(18, order=None, seed=4) == walk(18, order=None, seed=4)


def test_a_smaller_value_is_better_where_the_study_says_so() -> None:
    sampler = WalkSampler(DEFAULT, order=ORDER, seed=0)
    study = study_of(sampler, "minimize")
    assert walk(8, lambda c: -speed(c), study) == walk(8)


@pytest.mark.parametrize("done", [1, 4, 9, 13])
def test_a_study_that_goes_on_later_proposes_the_same(done: int) -> None:
    first = study_of(WalkSampler(DEFAULT, order=ORDER, seed=3))
    proposed = walk(done, study=first)
    again = study_of(WalkSampler(DEFAULT, order=ORDER, seed=3))
    again.add_trials(first.trials)
    assert proposed + walk(16 - done, study=again) == walk(16, seed=3)


def test_a_preset_that_is_better_is_where_the_walk_goes_on() -> None:
    study = study_of(WalkSampler(DEFAULT, order=ORDER, seed=0))
    walk(1, study=study)
    study.add_trial(
        optuna.create_trial(
            params={"a": 2, "b": True, "c": 4}, distributions=dict(SPACE), value=200.0
        )
    )
    assert walk(2, study=study) == [(0, 2, True), (8, 2, True)]


def test_what_failed_or_was_not_run_is_not_proposed_again_nor_walked_from() -> None:
    def value(c: Configuration) -> float | None:
        return None if c["c"] == 8 or c["a"] == 1 else speed(c)

    study = study_of(WalkSampler(DEFAULT, order=ORDER, seed=0))
    proposed = walk(1, study=study)
    trial = study.ask(fixed_distributions=SPACE)
    trial.set_user_attr(NOT_RUN, True)
    proposed.append(tuple(trial.params[name] for name in ORDER))
    study.tell(trial, state=TrialState.FAIL)
    proposed += walk(16, value, study)
    assert proposed[:4] == [(0, None, False), (4, None, False), (8, None, False), (0, 1, False)]
    assert proposed[4:6] == [(0, 2, False), (0, None, True)]  # beside the default still
    assert len(set(proposed)) == 18


def test_one_that_was_cut_short_is_not_walked_from() -> None:
    study = study_of(WalkSampler(DEFAULT, order=ORDER, seed=0))
    walk(1, study=study)
    trial = study.ask(fixed_distributions=SPACE)
    trial.report(500.0, 3)
    study.tell(trial, state=TrialState.PRUNED)
    assert walk(2, study=study) == [(8, None, False), (8, 1, False)]


def test_a_lucky_best_that_is_measured_again_gives_way() -> None:
    study = study_of(WalkSampler(DEFAULT, order=ORDER, seed=0))
    walk(3, study=study)  # (8, None, False) is the best
    study.add_trial(
        optuna.create_trial(
            params={"a": None, "b": False, "c": 8}, distributions=dict(SPACE), value=50.0
        )
    )
    assert walk(1, study=study) == [(0, 1, False)]


def test_proposals_that_wait_are_all_different() -> None:
    study = study_of(WalkSampler(DEFAULT, order=ORDER, seed=0))
    walk(1, study=study)
    waiting = [study.ask(fixed_distributions=SPACE) for _ in range(5)]
    found = [tuple(trial.params[name] for name in ORDER) for trial in waiting]
    assert found == [
        (4, None, False),
        (8, None, False),
        (0, 1, False),
        (0, 2, False),
        (0, None, True),
    ]


def test_what_is_not_feasible_is_not_proposed() -> None:
    proposed = walk(12, feasible=lambda c: not (c["c"] == 8 and c["b"]))
    assert len(proposed) == 12 and not any(c == 8 and b for c, _, b in proposed)


def test_nothing_new_is_left_at_the_end() -> None:
    sampler = WalkSampler(DEFAULT, order=ORDER, seed=0)
    study = study_of(sampler)
    walk(17, study=study)
    assert sampler.best_next(study, SPACE) is not None
    walk(1, study=study)
    assert sampler.best_next(study, SPACE) is None


def test_true_and_one_are_two_values() -> None:
    study = study_of(WalkSampler({"x": 0}, seed=0))
    space: dict[str, BaseDistribution] = {
        "x": CategoricalDistribution([0, 1, "on"]),
        "y": CategoricalDistribution([False, True]),
    }
    seen = set()
    for _ in range(6):
        trial = study.ask(fixed_distributions=space)
        study.tell(trial, 1.0)
        seen.add((trial.params["x"], trial.params["y"]))
    assert len(seen) == 6


def test_a_long_range_is_looked_at_in_some_places_and_a_large_space_is_drawn_from() -> None:
    space: dict[str, BaseDistribution] = {
        "size": IntDistribution(1, 1 << 20, log=True),
        "words": CategoricalDistribution(list("abcdefghijklmnopqrstuvwxyz")),
        "more": IntDistribution(0, 20),
    }
    study = study_of(WalkSampler({"size": 64, "words": "a", "more": 3}, seed=1))
    seen = set()
    for _ in range(130):
        trial = study.ask(fixed_distributions=space)
        study.tell(trial, -abs(trial.params["size"] - 64) - trial.params["more"])
        seen.add(tuple(trial.params.values()))
    assert len(seen) == 130
    assert study.best_params["more"] == 0
    walked = [p for p in seen if sum(a != b for a, b in zip(p, (64, "a", 0), strict=True)) > 1]
    assert walked  # the rest of them after the walk
