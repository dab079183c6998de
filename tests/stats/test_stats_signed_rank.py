"""The signed-rank interval, against published tables and an example from a textbook."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from nccltune.stats.signed_rank import outermost, signed_rank_interval, two_sided_error

NOT_RATIOS: list[list[float]] = [[], [0.0], [1.0, -1.0], [1.0, math.nan], [math.inf, 1.0]]


@pytest.mark.parametrize(
    ("count", "at_5", "at_2", "at_1"),
    [
        (5, None, None, None),
        (6, 0, None, None),
        (7, 2, 0, None),
        (8, 3, 1, 0),
        (9, 5, 3, 1),
        (10, 8, 5, 3),
        (11, 10, 7, 5),
        (12, 13, 9, 7),
        (13, 17, 12, 9),
        (14, 21, 15, 12),
        (15, 25, 19, 15),
        (20, 52, 43, 37),
        (25, 89, 76, 68),
    ],
)
def test_critical_values_as_published(
    count: int, at_5: int | None, at_2: int | None, at_1: int | None
) -> None:
    """Two-sided 5 %, 2 % and 1 %: F. Wilcoxon and R. A. Wilcox, Some rapid approximate statistical
    procedures, 1964, as in every textbook.
    """
    found = tuple(outermost(count, error) for error in (0.05, 0.02, 0.01))
    assert found == (at_5, at_2, at_1)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_the_error_is_counted_out_over_all_signs(count: int) -> None:
    sums = [
        sum(rank for rank, sign in zip(range(1, count + 1), signs, strict=True) if sign)
        for signs in itertools.product((0, 1), repeat=count)
    ]
    for outside in range(count * (count + 1) // 2 + 1):
        tail = sum(total <= outside for total in sums) / len(sums)
        assert two_sided_error(count, outside) == pytest.approx(2 * tail)


def test_six_values_err_in_one_of_32() -> None:
    assert two_sided_error(6, 0) == 1 / 32
    assert outermost(6, 1 / 32) == 0
    assert outermost(6, 0.03) is None


def test_an_example_from_a_textbook() -> None:
    """Nine patients' depression scores before and after: estimate -0.46, 96.1 % interval -0.786 to
    -0.010 (M. Hollander and D. A. Wolfe, Nonparametric Statistical Methods, 1973, chapter 3).
    """
    before = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]
    after = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]
    ratios = [math.exp(a - b) for a, b in zip(after, before, strict=True)]
    assert two_sided_error(9, 5) == pytest.approx(0.0390625)
    found = signed_rank_interval(ratios, 0.04)
    assert math.log(found.ratio) == pytest.approx(-0.460)
    assert math.log(found.low) == pytest.approx(-0.786)
    assert math.log(found.high) == pytest.approx(-0.010)
    assert found.count == 9


def test_the_estimate_worked_out_by_hand() -> None:
    # Averages of 1, 2 and 4 by pairs: 1, 1.5, 2, 2.5, 3, 4; their median lies between 2 and 2.5.
    # The mean would be 2.33, the median 2.
    found = signed_rank_interval([math.exp(value / 100) for value in (4, 1, 2)], 0.05)
    assert math.log(found.ratio) == pytest.approx(0.0225)
    assert (found.low, found.high, found.count) == (0.0, math.inf, 3)


def test_six_values_reach_from_the_least_to_the_greatest() -> None:
    ratios = [1.01, 0.99, 1.05, 1.02, 1.04, 1.03]
    found = signed_rank_interval(ratios, 0.05)
    assert (found.low, found.high) == pytest.approx((0.99, 1.05))


def test_the_order_of_values_says_nothing() -> None:
    ratios = [1.01, 0.97, 1.05, 1.02, 1.1, 1.03, 0.98]
    assert signed_rank_interval(ratios, 0.05) == signed_rank_interval(sorted(ratios), 0.05)


def test_the_other_way_round_says_the_same() -> None:
    ratios = [1.02, 0.97, 1.05, 1.01, 1.1, 0.99, 1.03]
    one = signed_rank_interval(ratios, 0.05)
    other = signed_rank_interval([1 / ratio for ratio in ratios], 0.05)
    assert one.ratio == pytest.approx(1 / other.ratio)
    assert (one.low, one.high) == pytest.approx((1 / other.high, 1 / other.low))


def test_one_value_that_went_wrong_does_not_move_the_interval_far() -> None:
    ratios = [1.00, 1.01, 1.02, 1.00, 1.01, 1.02, 1.00, 1.01, 1.02, 1.00, 1.01]
    sound = signed_rank_interval([*ratios, 1.02], 0.05)
    spoilt = signed_rank_interval([*ratios, 0.5], 0.05)
    assert spoilt.ratio == pytest.approx(sound.ratio, abs=0.006)
    assert spoilt.low > 0.995


@pytest.mark.parametrize("ratios", NOT_RATIOS)
def test_what_is_no_ratio(ratios: list[float]) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        signed_rank_interval(ratios, 0.05)


@pytest.mark.parametrize("law", ["normal", "two modes", "Student's t, 2 degrees of freedom"])
@pytest.mark.parametrize(("count", "error"), [(6, 0.05), (12, 0.05), (12, 0.01875)])
def test_the_interval_misses_as_often_as_counted(law: str, count: int, error: float) -> None:
    """Whatever the law is, as long as both sides follow the same; 4000 intervals, so three
    standard errors are 1 % at most.
    """
    draw = random.Random(f"{law} {count} {error}")
    outside = outermost(count, error)
    assert outside is not None

    def launch() -> float:
        if law == "normal":
            return draw.gauss(0, 0.03)
        if law == "two modes":
            return draw.gauss(0, 0.005) - 0.05 * (draw.random() < 0.25)
        return 0.01 * draw.gauss(0, 1) / math.sqrt(draw.expovariate(1))

    missed = 0
    for _ in range(4000):
        ratios = [1.04 * math.exp(launch() - launch()) for _ in range(count)]
        found = signed_rank_interval(ratios, error)
        missed += not found.low <= 1.04 <= found.high
    assert missed / 4000 == pytest.approx(two_sided_error(count, outside), abs=0.0105)
