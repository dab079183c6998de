"""Intervals of ratios, against values worked out by hand."""

from __future__ import annotations

import math
import random

import pytest

from nccltune.stats.ratios import RatioInterval, equality, ratio_interval, repetitions_needed


def test_an_interval_worked_out_by_hand() -> None:
    # Logs -0.02, 0.00, 0.02: mean 0, standard deviation 0.02, t(0.975, 2) = 4.302653,
    # half width 4.302653 x 0.02 / sqrt(3) = 0.0496828.
    found = ratio_interval([math.exp(-0.02), 1.0, math.exp(0.02)])
    assert found.ratio == pytest.approx(1.0)
    assert found.low == pytest.approx(math.exp(-0.0496828), rel=1e-6)
    assert found.high == pytest.approx(math.exp(0.0496828), rel=1e-6)
    assert found.count == 3


def test_the_other_way_round_says_the_same() -> None:
    ratios = [1.02, 0.97, 1.05, 1.01]
    one, other = ratio_interval(ratios), ratio_interval([1 / r for r in ratios])
    assert one.ratio == pytest.approx(1 / other.ratio)
    assert (one.low, one.high) == pytest.approx((1 / other.high, 1 / other.low))


def test_one_ratio_alone_says_nothing_about_the_true_one() -> None:
    found = ratio_interval([1.1])
    assert (found.low, found.high) == (0.0, math.inf)
    assert found.ratio == pytest.approx(1.1)


@pytest.mark.parametrize("ratios", [[], [0.0], [1.0, -1.0], [math.nan], [math.inf, 1.0]])
def test_what_is_no_ratio(ratios: list[float]) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        ratio_interval(ratios)


def test_the_interval_covers_as_often_as_it_says() -> None:
    draw = random.Random(1)
    covered = 0
    for _ in range(2000):
        found = ratio_interval([math.exp(draw.gauss(0.05, 0.03)) for _ in range(6)])
        covered += found.low <= math.exp(0.05) <= found.high
    assert 0.935 <= covered / 2000 <= 0.965  # 95 %, +- 3 standard errors of the simulation


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.98, 1.02, "equal"),
        (0.97, 1.03, "equal"),
        (0.969, 1.0, "unknown"),
        (1.0, 1.031, "unknown"),
        (1.031, 1.1, "different"),
        (0.8, 0.969, "different"),
        (0.5, 1.5, "unknown"),
    ],
)
def test_equal_different_or_unknown(low: float, high: float, said: str) -> None:
    assert equality(RatioInterval(1.0, low, high, 4), 0.03) == said


def test_how_many_it_takes() -> None:
    # Standard deviation of the logs 0.02, mean 0; within +- 3 % there is room for log(1.03) =
    # 0.029559 (above) and 0.030459 (below). t x 0.02 / sqrt(n): n = 4 gives 0.03182, n = 5 0.02483.
    ratios = [math.exp(-0.02), 1.0, math.exp(0.02)]
    assert repetitions_needed(ratios, 0.03) == 5
    assert repetitions_needed([1.05, 1.06], 0.03) is None  # more would not bring it inside
    assert repetitions_needed([1.0], 0.03) is None
    assert repetitions_needed([1.0, 1.0], 0.03) == 2
