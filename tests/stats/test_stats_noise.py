"""The spread of launches and the smallest gain, against values worked out by hand."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from nccltune.stats.noise import SMALLEST, launch_spread, noise_threshold, windows_needed

NORMAL = 1.12838  # mean difference of two standard normal values: 2 / sqrt(pi)


def speeds(*logs: float) -> list[float]:
    return [1000 * math.exp(value) for value in logs]


def test_the_spread_worked_out_by_hand() -> None:
    # Differences of 0, 1 and 3 %: 1, 2, 3; their mean is 2 %.
    assert launch_spread([speeds(0, 0.01, 0.03)]) == pytest.approx(0.02 / NORMAL, rel=1e-4)


def test_two_launches_are_enough() -> None:
    assert launch_spread([speeds(0, 0.01)]) == pytest.approx(0.01 / NORMAL, rel=1e-4)


def test_a_drift_from_run_to_run_is_no_spread() -> None:
    runs = [speeds(0, 0.01, 0.02), speeds(0.5, 0.51, 0.52), speeds(-0.9)]
    # 1, 2, 1 in one run, the same in the other: 8 in 6
    assert launch_spread(runs) == pytest.approx(0.08 / 6 / NORMAL, rel=1e-4)


def test_the_unit_of_speed_does_not_matter() -> None:
    run = speeds(0, 0.012, 0.03, -0.02)
    assert launch_spread([run]) == pytest.approx(launch_spread([[s / 7 for s in run]]))


def test_a_mode_that_few_launches_are_in_widens_it() -> None:
    assert launch_spread([speeds(0, 0, 0, 0, 0, 0)]) == 0
    # five pairs of 15 differ by 6 %
    assert launch_spread([speeds(0, 0, 0, 0, 0, -0.06)]) == pytest.approx(0.02 / NORMAL, rel=1e-4)


@pytest.mark.parametrize("spread", [0.005, 0.05])
def test_the_spread_of_a_normal_law_is_found(spread: float) -> None:
    draw = random.Random(2)
    many = [launch_spread([speeds(*(draw.gauss(0, spread) for _ in range(200)))]) for _ in range(9)]
    assert statistics.fmean(many) == pytest.approx(spread, rel=0.05)
    few = [launch_spread([speeds(*(draw.gauss(0, spread) for _ in range(6)))]) for _ in range(2000)]
    assert statistics.median(few) == pytest.approx(spread, rel=0.12)


@pytest.mark.parametrize("runs", [[], [[]], [[100.0]], [[100.0], [101.0], []]])
def test_the_spread_needs_two_launches_of_a_run(runs: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="two launches"):
        launch_spread(runs)


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_speed(speed: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        launch_spread([[100.0, 101.0], [100.0, speed]])
    with pytest.raises(ValueError, match="above 0"):
        noise_threshold([[100.0, 101.0], [speed]])


def test_the_threshold_is_a_gain_in_spreads() -> None:
    spread = 0.02
    found = noise_threshold([speeds(0, spread * NORMAL)])
    assert found == pytest.approx(math.exp(2.2 * spread) - 1, rel=1e-4)


def test_the_threshold_has_a_floor() -> None:
    assert noise_threshold([[100.0, 100.0, 100.0]]) == SMALLEST == 0.005
    assert noise_threshold([speeds(0, 0.002)]) == SMALLEST
    assert noise_threshold([speeds(0, 0.003)]) > SMALLEST


@pytest.mark.parametrize(
    ("spread", "window_spread", "usual", "windows"),
    [
        (0.01, 0.005, 4, 4),  # (2 x 0.5 / 1)^2 = 1
        (0.01, 0.01, 4, 4),
        (0.01, 0.015, 4, 9),
        (0.01, 0.016, 4, 11),  # 10.24
        (0.01, 0.05, 4, 16),  # 100: not worth it
        (0.01, 0.05, 20, 20),
        (0.0, 0.05, 4, 4),
        (0.01, 0.0, 4, 4),
    ],
)
def test_windows_whose_spread_adds_little(
    spread: float, window_spread: float, usual: int, windows: int
) -> None:
    assert windows_needed(spread, window_spread, usual) == windows
