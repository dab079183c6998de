"""Ratios of speeds from repeated, paired launches.

A ratio is analysed by its logarithm, so that A/B and B/A say the same. The interval is Student's t
for the mean of a normal sample (Student, The probable error of a mean, Biometrika 6, 1908); that
two things are equal is shown when it lies within the margins on both sides (Schuirmann, A
comparison of the two one-sided tests procedure..., J. Pharmacokinet. Biopharm. 15, 1987).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Equality = Literal["equal", "different", "unknown"]

_MOST_REPETITIONS = 10_000


@dataclass(frozen=True)
class RatioInterval:
    """The geometric mean of `count` ratios and the interval that covers the true one."""

    ratio: float
    low: float
    high: float
    count: int


def ratio_interval(ratios: Sequence[float], level: float = 0.95) -> RatioInterval:
    """The interval of the true ratio; from 0 to infinity for fewer than two ratios.

    Raises: ValueError for no ratio at all, or one that is not above 0.
    """
    logs = logarithms(ratios)
    middle = statistics.fmean(logs)
    if len(logs) < 2:
        return RatioInterval(math.exp(middle), 0.0, math.inf, len(logs))
    half = _half_width(statistics.stdev(logs), len(logs), level)
    return RatioInterval(
        math.exp(middle), math.exp(middle - half), math.exp(middle + half), len(logs)
    )


def equality(interval: RatioInterval, margin: float) -> Equality:
    """Whether the true ratio is shown to lie within 1 +- `margin`, or outside, or neither."""
    if interval.low >= 1 - margin and interval.high <= 1 + margin:
        return "equal"
    if interval.low > 1 + margin or interval.high < 1 - margin:
        return "different"
    return "unknown"


def repetitions_needed(ratios: Sequence[float], margin: float, level: float = 0.95) -> int | None:
    """How many ratios of this spread it takes until the interval, if it stays around the present
    ratio, lies within 1 +- `margin`. None where the ratio itself is outside, or that is far away.
    """
    logs = logarithms(ratios)
    middle = statistics.fmean(logs)
    room = min(math.log1p(margin) - middle, middle - math.log1p(-margin))
    if room <= 0 or len(logs) < 2:
        return None
    spread = statistics.stdev(logs)
    for count in range(2, _MOST_REPETITIONS):
        if _half_width(spread, count, level) <= room:
            return count
    return None


def logarithms(ratios: Sequence[float]) -> list[float]:
    if not ratios or not all(math.isfinite(ratio) and ratio > 0 for ratio in ratios):
        raise ValueError("ratios must be finite, above 0, and one at least")
    return [math.log(ratio) for ratio in ratios]


def _half_width(spread: float, count: int, level: float) -> float:
    from scipy.stats import t  # half a second, which only those who ask for an interval pay

    return float(t.ppf((1 + level) / 2, count - 1)) * spread / math.sqrt(count)
