"""What the same configuration differs by from launch to launch, and the gain that is lost in it."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from nccltune.stats.ratios import logarithms

SMALLEST = 0.005
"""A threshold is never below this: a setting that gains less is not worth carrying."""
_SPREADS = 2.2
_NORMAL = 2 / math.sqrt(math.pi)  # mean of |a - b| of two standard normal values
_MOST_WINDOWS = 16


def launch_spread(runs: Sequence[Sequence[float]]) -> float:
    """Standard deviation of the logarithm of the speed over launches, by Gini's mean difference of
    two launches of the same run, scaled to a normal law (H. A. David, Gini's mean difference
    rediscovered, Biometrika 55, 1968). Unlike a median it sees a slow mode that few launches are
    in. `runs` are launches close in time each; a drift from one run to the next does not count.

    Raises: ValueError when no run has two launches, or a speed is not above 0.
    """
    logs = [logarithms(run) for run in runs if run]
    differences = [abs(a - b) for run in logs for a, b in itertools.combinations(run, 2)]
    if not differences:
        raise ValueError("the spread of launches needs two launches of the same configuration")
    return statistics.fmean(differences) / _NORMAL


def noise_threshold(runs: Sequence[Sequence[float]]) -> float:
    """The gain, as a fraction, below which a difference is lost in this machine's noise.

    2.2 standard deviations of a launch: with 12 launches of each side two equal configurations are
    then shown to be equal in nine comparisons of ten, and a gain of twice that is found in nine of
    ten (benchmarks/trust.py). It is the smallest gain that can be shown here.
    """
    return max(SMALLEST, math.expm1(_SPREADS * launch_spread(runs)))


def window_spread(rates: Sequence[float]) -> float:
    """Standard deviation of the logarithm of the speed over the windows of a launch."""
    return statistics.stdev(logarithms(rates)) if len(rates) > 1 else 0.0


def windows_needed(spread: float, window_spread: float, usual: int) -> int:
    """Windows of a launch for which their own spread adds little to that of launches: its standard
    error at most half of it; at least the usual number.
    """
    if spread <= 0:
        return usual
    wanted = math.ceil((2 * window_spread / spread) ** 2)
    return max(usual, min(_MOST_WINDOWS, wanted))
