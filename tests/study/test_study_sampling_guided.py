"""The guided sampler in studies of anyone, and what its model makes of measurements."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from nccltune.study.records import AGAIN
from nccltune.study.sampling.guide import Guide, Knob
from nccltune.study.sampling.guided import (
    LAUNCH,
    NOT_RUN,
    REJECTED,
    WITHDRAWN,
    GuidedSampler,
)
from nccltune.study.sampling.memory import Observation
from nccltune.study.sampling.model import Levels, Priors, fit

SPACE = {
    "word": CategoricalDistribution([None, "ring", "tree"]),
    "switch": CategoricalDistribution([False, True]),
    "bucket": CategoricalDistribution([None, 5, 25, 100]),
    "workers": IntDistribution(0, 4),
}
DEFAULT = {"word": None, "switch": False, "bucket": 25, "workers": 2}


def speed(values: Mapping[str, Any]) -> float:
    """tree is good, more so with small buckets; workers have their best at 3."""
    found = 1000.0
    found *= {None: 1.0, "ring": 0.97, "tree": 1.1}[values["word"]]
    found *= {None: 0.99, 5: 1.02, 25: 1.0, 100: 0.9}[values["bucket"]]
    if values["word"] == "tree" and values["bucket"] == 5:
        found *= 1.05
    return found * (1 - 0.03 * abs(values["workers"] - 3))


BEST = max(
    speed(dict(zip(SPACE, point, strict=True)))
    for point in itertools.product(
        [None, "ring", "tree"], [False, True], [None, 5, 25, 100], range(5)
    )
)


def sampler_of(seed: int = 0, **options: Any) -> GuidedSampler:
    return GuidedSampler(DEFAULT, seed=seed, **options)


def driven(
    sampler: GuidedSampler,
    trials: int,
    value: Callable[[Mapping[str, Any]], float | None] = speed,
    direction: str = "maximize",
) -> optuna.Study:
    """A study that asks and tells so many times; None is a failure."""
    study = optuna.create_study(sampler=sampler, direction=direction)
    for _ in range(trials):
        trial = study.ask(SPACE)
        found = value(trial.params)
        study.tell(trial, found, state=TrialState.FAIL if found is None else None)
    return study


def proposals(study: optuna.Study) -> list[dict[str, Any]]:
    return [trial.params for trial in study.trials]


def test_the_default_comes_first_then_presets_then_changes() -> None:
    presets = {"small": {"bucket": 5}, "unknown": {"sockets": 3}, "no such value": {"bucket": 7}}
    asked = proposals(driven(sampler_of(presets=presets), 3))
    assert asked[0] == DEFAULT
    assert asked[1] == DEFAULT | {"bucket": 5}
    assert asked[2] not in asked[:2]


def test_the_best_is_found_in_a_fraction_of_the_space() -> None:
    for seed in range(3):
        found = [t.value or 0.0 for t in driven(sampler_of(seed), 25).trials]
        assert max(found) > 0.99 * BEST  # of 120 configurations


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_values_of_any_sign_and_either_direction(direction: str) -> None:
    sign = 1 if direction == "maximize" else -1

    def centred(values: Mapping[str, Any]) -> float:
        return sign * (speed(values) - 1000)

    study = driven(sampler_of(), 30, centred, direction)
    assert sign * study.best_value > 0.95 * (BEST - 1000)


def test_the_same_seed_and_trials_give_the_same_proposals_resumed_or_not() -> None:
    whole = driven(sampler_of(3), 16)
    assert proposals(whole) == proposals(driven(sampler_of(3), 16))
    assert proposals(whole) != proposals(driven(sampler_of(4), 16))
    half = driven(sampler_of(3), 8)
    half.sampler = sampler_of(3)  # another process
    for _ in range(8):
        trial = half.ask(SPACE)
        half.tell(trial, speed(trial.params))
    assert proposals(half) == proposals(whole)


def test_nothing_that_failed_or_was_not_run_is_proposed_again() -> None:
    study = optuna.create_study(sampler=sampler_of(), direction="maximize")
    closed: list[dict[str, Any]] = []
    for number in range(40):
        trial = study.ask(SPACE)
        assert trial.params not in closed
        if number % 3 == 1:
            if number % 2:
                trial.set_user_attr(NOT_RUN, REJECTED)
            study.tell(trial, state=TrialState.FAIL)
            closed.append(trial.params)
        else:
            study.tell(trial, speed(trial.params))


def test_values_that_keep_failing_are_left_alone() -> None:
    def fails_with_tree(values: Mapping[str, Any]) -> float | None:
        return None if values["word"] == "tree" else speed(values)

    study = driven(sampler_of(), 40, fails_with_tree)
    failed = sum(t.state == TrialState.FAIL for t in study.trials)
    assert 1 <= failed <= 9  # a third of the space: 13 of 40 by chance


def test_what_is_running_is_not_proposed_to_another() -> None:
    study = driven(sampler_of(), 5)
    first, second = study.ask(SPACE), study.ask(SPACE)
    assert first.params != second.params


def test_illegal_proposals_are_never_made() -> None:
    def legal(values: Mapping[str, Any]) -> bool:
        return not (values["word"] == "tree" and values["bucket"] == 5)

    asked = proposals(driven(sampler_of(feasible=legal), 30))
    assert all(legal(values) for values in asked)


def test_a_lucky_measurement_is_measured_again_and_is_not_the_answer() -> None:
    def lucky(values: Mapping[str, Any]) -> float:
        """One configuration like the others, whose first measurement is far off."""
        times[repr(values)] = times.get(repr(values), 0) + 1
        luck = (
            1.15
            if values["word"] == "ring"
            and times[repr(values)] == 1
            and not any(k != repr(values) and "'ring'" in k for k in times)
            else 1.0
        )
        return 1000 * luck * float(np.exp(rng.normal(0, 0.01)))

    times: dict[str, int] = {}
    rng = np.random.default_rng(0)
    study = optuna.create_study(sampler=sampler_of(), direction="maximize")
    again = 0
    for _ in range(30):
        trial = study.ask(SPACE)
        assert isinstance(study.sampler, GuidedSampler)
        again += study.sampler.why == AGAIN
        study.tell(trial, lucky(trial.params))
    assert again >= 1
    raw = max(study.trials, key=lambda t: t.value or 0.0).params
    answer = study.sampler.answer(study, SPACE)
    assert raw["word"] == "ring"  # the lucky one
    assert answer is not None
    assert answer != raw or times[repr(raw)] > 1


def test_the_chance_of_a_gain_falls_when_nothing_is_left() -> None:
    sampler = sampler_of()

    def flat(values: Mapping[str, Any]) -> float:
        return 1000 * float(np.exp(0.002 * math.sin(hash(repr(sorted(map(repr, values.items())))))))

    study = optuna.create_study(sampler=sampler, direction="maximize")
    chances = []
    for _ in range(30):
        trial = study.ask(SPACE)
        study.tell(trial, flat(trial.params))
        chances.append(sampler.chance(study, SPACE, 0.05))
    assert chances[0] > 0.5
    assert chances[-1] < 0.05


def test_small_gains_are_looked_for_last() -> None:
    sampler = sampler_of()
    sampler.expect({"word": 1.001, "bucket": 1.001, "workers": 1.3, "switch": 1.001})
    asked = proposals(driven(sampler, 4))
    assert all(values["workers"] != DEFAULT["workers"] for values in asked[1:])


def test_left_out_parameters_keep_their_default() -> None:
    sampler = sampler_of()
    driven(sampler, 1)
    sampler.leave_out(["word"])
    study = optuna.create_study(sampler=sampler, direction="maximize")
    rest = {name: found for name, found in SPACE.items() if name != "word"}
    for _ in range(10):
        trial = study.ask(rest)
        study.tell(trial, speed({"word": None, **trial.params}))
    assert len({repr(p) for p in proposals(study)}) >= 9


def test_in_a_study_that_defines_its_space_as_it_runs() -> None:
    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", -5, 5)
        kind = trial.suggest_categorical("kind", ["a", "b"])
        return (x - 2) ** 2 + (kind == "a")

    study = optuna.create_study(sampler=GuidedSampler(seed=0))
    study.optimize(objective, n_trials=30)
    assert study.best_value < 0.5


def test_trials_of_one_launch_share_its_luck() -> None:
    """Two launches, the second all 10 % faster: that is the launch's, not the setting's."""
    study = optuna.create_study(sampler=sampler_of(), direction="maximize")
    neutral = [DEFAULT, DEFAULT | {"switch": True}, DEFAULT | {"bucket": None}]
    launches = {
        0: (1.0, [*neutral, DEFAULT | {"bucket": 5}]),
        1: (1.1, [*neutral, DEFAULT | {"word": "ring"}]),
    }
    for launch, (luck, points) in launches.items():
        for point in points:
            study.add_trial(
                create_trial(
                    params=point,
                    distributions=SPACE,
                    value=luck * speed(point),
                    user_attrs={LAUNCH: launch},
                )
            )
    sampler = study.sampler
    assert isinstance(sampler, GuidedSampler)
    assert sampler.answer(study, SPACE) == DEFAULT | {"bucket": 5}


# The model.


def test_the_default_itself_has_no_effect_and_others_one() -> None:
    kernel = Levels(4, 0, (None, 0.0, 1.0, 2.0)).kernel()
    assert np.allclose(kernel[0], 0)
    assert np.allclose(kernel, kernel.T)
    assert np.linalg.eigvalsh(kernel).min() > -1e-12
    assert kernel[1, 2] > kernel[1, 3]  # neighbours are more alike


def test_effects_add_up_and_are_told_from_noise() -> None:
    levels = [Levels(2, 0, (None, None)), Levels(3, 0, (None, None, None))]
    rng = np.random.default_rng(1)
    codes = np.array(list(itertools.product(range(2), range(3))) * 3, dtype=np.intp)
    truth = 0.2 * codes[:, 0] - 0.1 * (codes[:, 1] == 2)
    values = 7 + truth + rng.normal(0, 0.01, len(codes))
    model = fit(levels, codes, np.arange(len(codes)), values, Priors((0.1, 0.1)))
    mean, spread = model.predict(codes[:6])
    assert np.allclose(mean - mean[0], truth[:6], atol=0.02)
    assert (spread < 0.02).all()
    unseen = fit(levels, codes[:3], np.arange(3), values[:3], Priors((0.1, 0.1)))
    assert unseen.predict(codes[3:4])[1][0] > 2 * unseen.predict(codes[0:1])[1][0]
    covariance = model.covariance(codes[:6])
    assert np.allclose(np.sqrt(np.diag(covariance)), spread, rtol=1e-3, atol=1e-5)


def test_a_history_of_thousands_keeps_the_model_small() -> None:
    knobs = [Knob(f"k{i}", (None, 1, 2, 4), None) for i in range(6)]
    guide = Guide(knobs)
    rng = np.random.default_rng(0)
    history = [
        Observation(tuple(int(v) for v in rng.integers(0, 4, 6)), float(rng.normal(7, 0.05)))
        for _ in range(3000)
    ]
    assert len(guide.posterior(history).codes) <= 200
    assert guide.ranked(history, None)


# What goes wrong in studies of others.


def test_a_default_that_fails_is_not_proposed_for_ever() -> None:
    def only_with_switch(values: Mapping[str, Any]) -> float | None:
        return speed(values) if values["switch"] else None

    study = driven(sampler_of(), 25, only_with_switch)
    asked = [repr(p) for p in proposals(study)]
    assert asked.count(repr(DEFAULT)) == 1
    assert sum(t.state == TrialState.COMPLETE for t in study.trials) > 10

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_int("x", 0, 10)
        return float("nan") if x == 5 else float(x)  # the middle comes first

    study = optuna.create_study(sampler=GuidedSampler(seed=0), direction="maximize")
    study.optimize(objective, n_trials=12)
    assert study.best_value == 10


def test_parameters_that_trials_do_not_share_vary_too() -> None:
    def objective(trial: optuna.Trial) -> float:
        kind = trial.suggest_categorical("kind", ["a", "b"])
        return float(trial.suggest_int(f"of_{kind}", 0, 9))

    study = optuna.create_study(sampler=GuidedSampler(seed=0), direction="maximize")
    study.optimize(objective, n_trials=30)
    assert len({repr(sorted(t.params.items())) for t in study.trials}) > 8


def test_threads_do_not_measure_the_same_at_the_same_time() -> None:
    running: set[str] = set()
    twice: list[str] = []

    def objective(trial: optuna.Trial) -> float:
        values = {name: trial._suggest(name, found) for name, found in SPACE.items()}
        name = repr(values)
        if name in running:
            twice.append(name)
        running.add(name)
        time.sleep(0.005)
        running.discard(name)
        return speed(values)

    study = optuna.create_study(sampler=sampler_of(), direction="maximize")
    study.enqueue_trial(DEFAULT)
    study.optimize(objective, n_trials=1)
    study.optimize(objective, n_trials=40, n_jobs=4)
    assert twice == []


@pytest.mark.parametrize(
    "value",
    [
        lambda n: 10.0 ** (-n),
        lambda n: -1e160 if n == 0 else float(n),
        lambda n: 5.0,
        lambda n: 0.0,
        lambda n: 1e300,
    ],
)
def test_values_of_any_size(value: Callable[[int], float]) -> None:
    study = optuna.create_study(sampler=sampler_of(), direction="maximize")
    for number in range(25):
        trial = study.ask(SPACE)
        study.tell(trial, value(number))
    assert len({repr(p) for p in proposals(study)}) > 10


def test_several_objectives_are_refused() -> None:
    study = optuna.create_study(sampler=sampler_of(), directions=["maximize", "minimize"])
    with pytest.raises(ValueError, match="one objective"):
        for _ in range(2):
            trial = study.ask(SPACE)
            study.tell(trial, [1.0, 2.0])


def test_withdrawn_proposals_may_come_again_rejected_ones_not() -> None:
    for why, comes in ((WITHDRAWN, True), (REJECTED, False)):
        study = driven(sampler_of(), 6)
        trial = study.ask(SPACE)
        trial.set_user_attr(NOT_RUN, why)
        study.tell(trial, state=TrialState.FAIL)
        assert (study.ask(SPACE).params == trial.params) is comes


def test_what_a_left_out_value_did_is_not_the_rests() -> None:
    sampler = sampler_of()
    study = optuna.create_study(sampler=sampler, direction="maximize")
    for values, state in ((DEFAULT, None), (DEFAULT | {"word": "ring"}, TrialState.FAIL)):
        study.enqueue_trial(values)
        trial = study.ask(SPACE)
        study.tell(trial, None if state else 1000.0, state=state)
    sampler.leave_out(["word"])
    rest = {name: found for name, found in SPACE.items() if name != "word"}
    assert sampler.answer(study, rest) == {n: v for n, v in DEFAULT.items() if n != "word"}


def test_illegal_configurations_give_no_chance_of_a_gain() -> None:
    def legal(values: Mapping[str, Any]) -> bool:
        return values in done

    done: list[Mapping[str, Any]] = [DEFAULT, DEFAULT | {"word": "tree"}]
    sampler = sampler_of(feasible=legal)
    study = driven(sampler, 2)
    assert {repr(p) for p in proposals(study)} == {repr(p) for p in done}
    assert sampler.chance(study, SPACE, 0.02) == 0.0


def test_of_many_measurements_those_of_a_configuration_stay_together() -> None:
    """All are equal, and launches scatter: the best seems no better the more there are."""
    knobs = [Knob(f"k{i}", (None, 1, 2), None) for i in range(3)]
    guide, rng = Guide(knobs), np.random.default_rng(0)
    history = [
        Observation(tuple(int(v) for v in rng.integers(0, 3, 3)), float(rng.normal(7, 0.02)), n)
        for n in range(600)
    ]
    best = guide.answer(history)
    mean, _ = guide.posterior(history).predict(np.array([best], dtype=np.intp))
    assert abs(float(mean[0]) - 7) < 0.02


def test_a_used_up_space_has_an_end() -> None:
    sampler = GuidedSampler({"a": False}, seed=0)
    space = {"a": CategoricalDistribution([False, True])}
    study = optuna.create_study(sampler=sampler, direction="maximize")
    for _ in range(12):
        trial = study.ask(space)
        study.tell(trial, 100.0 + trial.params["a"])
    assert sampler.best_next(study, space) is None
