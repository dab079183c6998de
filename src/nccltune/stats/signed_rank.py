"""The interval of a ratio from paired launches, whatever law the launches follow.

Within a block baseline and candidate run in random order, so a drift of the machine and an unlucky
launch fall on either side alike, and the logarithm of their ratio is symmetric about the true one.
Wilcoxon's signed-rank test inverted then has a level that is known exactly (F. Wilcoxon, Individual
comparisons by ranking methods, Biometrics Bulletin 1, 1945; J. L. Hodges and E. L. Lehmann,
Estimates of location based on rank tests, Ann. Math. Stat. 34, 1963): the estimate is the median of
the averages of all pairs of values, the ends of the interval are two of these averages.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence

from nccltune.stats.ratios import RatioInterval, logarithms


def signed_rank_interval(ratios: Sequence[float], error: float) -> RatioInterval:
    """The interval that misses the true ratio with a probability of `error` at most, and the
    estimate; from 0 to infinity where there are too few ratios for that.

    Raises: ValueError for no ratio at all, or one that is not above 0.
    """
    logs = logarithms(ratios)
    averages = sorted((a + b) / 2 for i, a in enumerate(logs) for b in logs[i:])
    middle = math.exp(statistics.median(averages))
    outside = outermost(len(logs), error)
    if outside is None:
        return RatioInterval(middle, 0.0, math.inf, len(logs))
    low, high = averages[outside], averages[-1 - outside]
    return RatioInterval(middle, math.exp(low), math.exp(high), len(logs))


def outermost(count: int, error: float) -> int | None:
    """How many of the sorted averages lie outside the interval on each side; None where even the
    whole range misses the truth more often than `error`.
    """
    tails = _cumulative(count)
    fitting = [number for number, tail in enumerate(tails) if 2 * tail <= error]
    return max(fitting, default=None)


def two_sided_error(count: int, outside: int) -> float:
    """The exact probability that an interval with so many averages outside misses the truth."""
    return 2 * _cumulative(count)[outside]


@functools.lru_cache(maxsize=64)
def _cumulative(count: int) -> tuple[float, ...]:
    """P(W <= w) of the signed-rank statistic for w = 0, 1, ...: each of the ranks 1 to `count` is
    in the sum or not, with equal probability.
    """
    ways = [1]
    for rank in range(1, count + 1):
        longer = ways + [0] * rank
        for total, number in enumerate(ways):
            longer[total + rank] += number
        ways = longer
    below, tails = 0, []
    for number in ways:
        below += number
        tails.append(below / 2**count)
    return tuple(tails)
