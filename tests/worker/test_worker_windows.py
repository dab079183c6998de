"""When windows are steady, when they count, when a measurement is hopeless."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from nccltune.worker.spec import Settings
from nccltune.worker.windows import (
    Window,
    hopeless,
    is_draining,
    is_steady,
    queue_trend,
    settled,
    standard_error_of_median,
    trendless,
    warmed_up,
    window_steps,
)

SETTINGS = Settings()  # windows of 0.3 s and 5 steps, steady: 3 windows within 2 %


def window(
    rate: float = 100.0, seconds: float = 1.0, response: float = 0.0, early: bool = False
) -> Window:
    """`rate` in steps/s; rank 1 is the slower one."""
    steps = round(rate * seconds)
    return Window(
        steps=steps,
        rank_seconds=(0.9 * steps / rate, steps / rate),
        data_wait=0.0,
        response=response,
        warmup=True,
        counts=False,
        early=early,
    )


def windows(*rates: float) -> list[Window]:
    return [window(rate) for rate in rates]


def test_the_slowest_rank_counts() -> None:
    found = Window(20, (0.5, 0.8, 0.7), 0.1, 0.0, False, True)
    assert (found.seconds, found.steps_per_second) == (0.8, 25.0)


def test_as_plain_values() -> None:
    found = Window(20, (0.1234567891, 0.8), 0.1, 0.5, False, True)
    assert found.to_dict() == {
        "steps": 20,
        "rank_seconds": [0.123457, 0.8],
        "data_wait": 0.1,
        "response": 0.5,
        "warmup": False,
        "counts": True,
        "early": False,
        "samples": 0,
        "interrupted": False,
    }


@pytest.mark.parametrize(
    ("step", "workers", "steps"),
    [
        (0.025, 0, 12),  # 0.3 s
        (0.1, 0, 5),  # 0.3 s would be 3 steps, and 5 are wanted
        (2.0, 0, 5),
        (0.0, 0, 300_000),  # no division by zero
        (0.025, 4, 12),  # three rounds of four
        (0.025, 5, 15),  # 12 steps filled up to whole rounds
        (0.025, 6, 12),
        (0.025, 1, 12),
        (0.025, 16, 16),  # one round: 0.4 s
        (0.1, 4, 8),
        (0.1, 5, 5),
        (0.2, 8, 8),
        (0.3, 5, 5),
        (0.5, 8, 5),  # even one would last 4 s, more than ten windows
        (0.5, 6, 6),  # 3.0 s are not more
        (0.75, 1, 5),  # a round of one worker is a step
        (0.125, 6, 6),
        (0.2, 3, 6),  # 5 steps filled up to two rounds
        (4.0, 16, 5),  # and 64 s here
        (0.5, 2, 6),  # three rounds, to have five steps
    ],
)
def test_steps_of_a_window(step: float, workers: int, steps: int) -> None:
    assert window_steps(step, workers, SETTINGS.window_seconds, SETTINGS) == steps


def responses(*seconds: float) -> list[Window]:
    """Windows of a second, 100 steps each."""
    return [window(response=one) for one in seconds]


def test_the_queues_trend_is_minus_the_slope_of_the_response() -> None:
    assert queue_trend([]) == queue_trend(responses(0.7)) == 0.0
    assert queue_trend(responses(0.3, 0.3, 0.3)) == 0.0
    assert queue_trend(responses(0.1, 0.3, 0.5)) == pytest.approx(-0.2)  # it drains
    assert queue_trend(responses(0.5, 0.3, 0.1)) == pytest.approx(0.2)  # it fills
    # A line through all: the middle one alone has no say.
    assert queue_trend(responses(0.1, 0.9, 0.3)) == pytest.approx(-0.1)


def test_the_queues_trend_is_over_time_not_over_windows() -> None:
    # From the middle of one second to the middle of the next three: 2 s.
    several = [window(seconds=1.0, response=0.1), window(seconds=3.0, response=0.6)]
    assert queue_trend(several) == pytest.approx(-0.25)


def test_of_100_batches_taken_80_made_is_a_trend_of_a_quarter() -> None:
    # 100 steps/s for 4 s; batch n is asked for at n/100 and ready at n/80: n/400 s later.
    middles = (50, 150, 250, 350)
    assert queue_trend(responses(*(n / 400 for n in middles))) == pytest.approx(-0.25)


@pytest.mark.parametrize(
    ("seconds", "workers", "draining"),
    [
        ([0.1, 0.2, 0.3], 4, True),
        ([0.1, 0.2, 0.3], 0, False),  # without workers there is no queue
        ([], 4, False),
        ([0.3], 4, False),
        # Four workers at 100 steps/s may take 0.04 s for each; behind is more than 0.06 s.
        ([-0.06, 0.0, 0.06], 3, True),
        ([-0.06, 0.0, 0.059], 4, False),
        ([-0.06, 0.0, 0.061], 4, True),
        ([0.9, 0.94, 0.98], 4, False),  # behind, but by no more than 0.04 s/s further
        ([0.9, 0.96, 1.02], 4, True),
        ([1.0, 0.8, 0.6], 4, False),  # it catches up
        ([0.3, 0.3, 0.3], 4, False),  # the queue is empty
    ],
)
def test_draining(seconds: list[float], workers: int, draining: bool) -> None:
    assert is_draining(responses(*seconds), workers) is draining


@pytest.mark.parametrize(
    ("rates", "steady"),
    [
        ([100, 100, 100], True),
        ([100, 100], False),  # too few
        ([98.1, 100, 101.9], True),  # a standard deviation of 1.9 %
        ([97.9, 100, 102.1], False),  # 2.1 %
        ([50, 98.6, 100, 101.5], True),  # only the last three
        ([90, 100, 91, 99, 92], True),  # noisy, without a trend
        ([60, 70, 80, 90, 100], False),  # still getting faster
        ([100, 90, 80, 70, 60], False),
        ([90, 100, 91, 99], False),  # four windows tell of no trend
    ],
)
def test_steady(rates: list[float], steady: bool) -> None:
    assert is_steady(windows(*rates), SETTINGS) is steady


@pytest.mark.parametrize(
    ("trend", "steady"), [(0.04, True), (-0.04, True), (0.06, False), (-0.06, False)]
)
def test_equal_windows_are_not_steady_while_the_queue_fills_or_drains(
    trend: float, steady: bool
) -> None:
    assert is_steady(responses(0.5, 0.5 - trend, 0.5 - 2 * trend), SETTINGS) is steady


# Residuals with sum 0 and no slope of their own; their squares add up to 2.7. With three degrees
# of freedom the spread is sqrt(2.7 / 3), and the slope's error sqrt(0.9) / sqrt(10) = 0.3.
RESIDUALS = (-0.6, 0.9, -0.6, 0.9, -0.6)


@pytest.mark.parametrize(
    ("slope", "explained"),
    [
        (0.0, True),
        (0.5, True),  # t = 1.67
        (0.95, True),  # t = 3.167, below 3.182
        (0.96, False),  # t = 3.2
        (-0.95, True),
        (-0.96, False),
        (10.0, False),
    ],
)
def test_a_slope_that_noise_explains(slope: float, explained: bool) -> None:
    rates = [100 + slope * i + residual for i, residual in enumerate(RESIDUALS)]
    assert trendless(rates) is explained


def test_a_perfect_line_is_a_trend_and_a_constant_is_none() -> None:
    assert not trendless([1, 2, 3, 4, 5])
    assert trendless([7, 7, 7, 7, 7])
    assert not trendless([7, 7, 7, 7])  # too few to tell


def early(count: int = 1, rate: float = 100.0) -> list[Window]:
    return [window(rate, early=True)] * count


def test_settled_are_those_after_what_was_made_ahead() -> None:
    first, second = windows(100, 90)
    assert settled([*early(2), first, *early(), second]) == [first, second]
    assert settled(early(3)) == settled([]) == []


def test_early_windows_are_never_steady_nor_part_of_what_is() -> None:
    assert not is_steady(early(5), SETTINGS)
    assert not is_steady([*early(), *windows(100, 100)], SETTINGS)
    assert is_steady([*early(rate=500.0), *windows(100, 100, 100)], SETTINGS)
    # A noisy run without a trend takes five windows, all of them late.
    noisy = windows(90, 100, 91, 99, 92)
    assert is_steady([*early(), *noisy], SETTINGS)
    assert not is_steady([*early(rate=90.0), *noisy[1:]], SETTINGS)


def test_warm_up_ends_when_windows_are_steady_and_the_first_batches_are_gone() -> None:
    assert warmed_up(windows(100, 100, 100), SETTINGS) == (True, True)
    assert warmed_up(windows(100, 100), SETTINGS) == (False, False)
    # What the loader had made ahead of time says nothing about its speed.
    assert warmed_up(early(4), SETTINGS) == (False, False)
    assert warmed_up([*early(), *windows(100, 100)], SETTINGS) == (False, False)
    assert warmed_up([*early(), *windows(100, 100, 100)], SETTINGS) == (True, True)


def test_warm_up_ends_unsteady_at_its_limits() -> None:
    rising = windows(*(100 * 1.1**i for i in range(12)))
    for count in (5, 11):
        assert warmed_up(rising[:count], SETTINGS) == (False, False)
    assert warmed_up(rising, SETTINGS) == (True, False)
    # Early windows do not count towards the limit, however many there are.
    assert warmed_up(early(40), SETTINGS) == (False, False)
    assert warmed_up([*early(40), *rising[:11]], SETTINGS) == (False, False)
    assert warmed_up([*early(), *rising], SETTINGS) == (True, False)


def test_warm_up_ends_unsteady_after_its_time() -> None:
    slow = [window(10.0, 6.0), window(12.0, 6.0)]
    assert sum(w.seconds for w in slow) == pytest.approx(12.0)
    limits = replace(SETTINGS, max_warmup_seconds=11.9)
    assert warmed_up(slow, limits) == (True, False)
    assert warmed_up(slow, replace(limits, max_warmup_seconds=12.1)) == (False, False)
    # One window alone never ends it, nor does time that went by with early ones.
    assert warmed_up([window(10.0, 60.0)], limits) == (False, False)
    long = window(10.0, 60.0, early=True)
    assert warmed_up([long, long, long], limits) == (False, False)
    assert warmed_up([long, slow[0]], limits) == (False, False)
    assert warmed_up([long, *slow], limits) == (True, False)


def test_the_error_of_a_median() -> None:
    assert standard_error_of_median([]) == standard_error_of_median([5.0]) == math.inf
    # Standard deviation 1, three values: 1.2533 / sqrt(3).
    assert standard_error_of_median([99, 100, 101]) == pytest.approx(0.72360, abs=1e-5)
    assert standard_error_of_median([100, 100]) == 0.0


@pytest.mark.parametrize(
    ("rates", "incumbent", "over"),
    [
        ([100, 100, 100], 110.0, True),  # 100 < 107.8
        ([100, 100, 100], 102.0, False),  # 100 > 99.96: within the margin of 2 %
        ([100, 100, 100], 102.1, True),  # 100 < 100.058
        # 100 + 3 x 0.7236 = 102.171, against 102.214 and 102.116.
        ([99, 100, 101], 104.3, True),
        ([99, 100, 101], 104.2, False),
        # Ten times as noisy: 121.71, against 121.52 and 122.5.
        ([90, 100, 110], 124.0, False),
        ([90, 100, 110], 125.0, True),
        ([50], 1000.0, False),
        ([50, 50], 1000.0, False),  # two windows tell too little
        ([50, 50, 50], 1000.0, True),
        ([], 1000.0, False),
        ([50, 50, 50], None, False),  # nothing to compare with
    ],
)
def test_hopeless(rates: list[float], incumbent: float | None, over: bool) -> None:
    assert hopeless(rates, replace(SETTINGS, cut_below=incumbent)) is over
