"""Limits from the baseline's own time, and the budget."""

from __future__ import annotations

from dataclasses import replace

from study_jobs import measurement, result

from nccltune.launch.protocol import Limits
from nccltune.study.budget import Budget, limits_from, trial_seconds
from nccltune.study.records import Trial


def trials(*seconds: float) -> list[Trial]:
    return [
        replace(Trial.of(measurement(number)), seconds=spent)
        for number, spent in enumerate(seconds)
    ]


def slow_baseline() -> dict[str, object]:
    whole = result(100.0)
    whole["seconds"] = {"build": 20.0, "first_step": 30.0, "check": 10.0}
    whole["windows"] = [
        {**whole["windows"][0], "rank_seconds": [4.0, 5.0]},
        {**whole["windows"][0], "rank_seconds": [6.0, 3.0]},
    ]
    return whole


def test_generous_constants_before_the_baseline_is_known() -> None:
    assert limits_from(None) == Limits()
    assert limits_from(measurement(0, None)) == Limits()


def test_floors_keep_a_short_baseline_from_making_timeouts() -> None:
    # start 8 x 6 = 48, build 12, first step 18, check 6, window 12 x 1: all below their floors.
    assert limits_from(measurement(0)) == Limits(
        start=60.0, build=30.0, first_step=30.0, check=30.0, window=20.0
    )


def test_limits_are_six_times_what_the_baseline_needed() -> None:
    baseline = measurement(0, seconds={"start": 20.0}, result=slow_baseline())
    assert limits_from(baseline) == Limits(
        start=120.0, build=120.0, first_step=180.0, check=60.0, window=72.0
    )


def test_steps_of_a_larger_batch_may_take_longer_but_the_rest_may_not() -> None:
    baseline = measurement(0, seconds={"start": 20.0}, result=slow_baseline())
    assert limits_from(baseline, 4.0) == Limits(
        start=120.0, build=120.0, first_step=720.0, check=60.0, window=288.0
    )


def test_a_cold_start_has_at_least_five_minutes() -> None:
    warm = limits_from(measurement(0))
    assert limits_from(measurement(0), cold=True) == replace(warm, start=300.0)
    slow = measurement(0, seconds={"start": 80.0}, result=slow_baseline())
    assert limits_from(slow, cold=True) == limits_from(slow)
    assert limits_from(slow).start == 480.0


def test_limits_by_phase() -> None:
    limits = Limits(start=1, build=2, first_step=3, check=4, window=5)
    phases = ("start", "build", "first_step", "check", "warmup", "measure", "verify")
    assert [limits.of(phase) for phase in phases] == [1, 2, 3, 4, 5, 5, 5]


def test_a_trial_costs_the_median() -> None:
    assert trial_seconds([]) is None
    assert trial_seconds(trials(100.0, 8.0, 10.0)) == 10.0
    assert trial_seconds(trials(8.0, 10.0)) == 9.0


def test_without_a_time_budget_everything_fits() -> None:
    budget = Budget(10, None)
    assert budget.fits(trials(1e9))
    assert (budget.remaining(), budget.share_spent()) == (None, 0.0)
    assert budget.forecast([]) is None
    assert budget.forecast(trials(10.0, 20.0)) == 8 * 15.0
    assert budget.forecast(trials(*[10.0] * 12)) == 0.0


def test_a_trial_that_would_end_later_does_not_fit_but_the_baseline_does() -> None:
    budget = Budget(10, 1000.0)
    assert budget.fits([])
    assert budget.fits(trials(900.0))
    assert not budget.fits(trials(1001.0))
    spent = Budget(10, 1e-9)
    assert spent.fits([])
    assert not spent.fits(trials(0.1))
    assert spent.share_spent() == 1.0
    assert spent.remaining() == 0.0
    assert spent.forecast(trials(5.0)) == 0.0


def test_the_forecast_ends_with_the_earlier_of_trials_and_time() -> None:
    budget = Budget(10, 1000.0)
    assert budget.forecast(trials(10.0, 10.0)) == 80.0
    by_time = budget.forecast(trials(500.0))
    assert by_time is not None and 0 < by_time <= 1000.0
    before = budget.forecast([])
    assert before is not None and 0 < before <= 1000.0
