"""Windows of steps, and the pure rules that say when they are steady and when they count.

Every rank sees the same gathered numbers and so takes the same decision without asking.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nccltune.worker.spec import Settings

QUEUE_TREND = 0.05
"""A loader queue that shrinks (or grows) by more than this share of the time misleads."""
_HIDDEN = 0.1
_BEHIND = 1.5  # times its share of the steps that a worker may take before it counts as behind
_TREND_WINDOWS = 5
_RARE = 5  # steps from one interruption to the next
_LONG_ROUND = 10.0  # windows; a round of many workers can be long where steps are slow
CUT_WINDOWS = 3
"""Fewest windows that a measurement is cut after: a standard error from two says nothing."""
_TREND_T = 3.182  # two-sided 95 % point of Student's t with 5 - 2 degrees of freedom


@dataclass(frozen=True)
class Window:
    """A timed run of steps.

    `rank_seconds` has each rank's time; the slowest counts. `data_wait` is the longest time a rank
    spent waiting for batches, `response` the mean time from asking a loader's workers for a batch
    to its being ready, of the rank where that took longest (both in seconds).
    """

    steps: int
    rank_seconds: tuple[float, ...]
    data_wait: float
    response: float
    warmup: bool
    counts: bool
    early: bool = False
    """It began before the batches were consumed that the loader had made before the start."""
    samples: int = 0
    """Of all ranks."""
    interrupted: bool = False
    """Something else than training happened in it: a validation, the start of an epoch."""

    @property
    def seconds(self) -> float:
        return max(self.rank_seconds)

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"rank_seconds": [round(s, 6) for s in self.rank_seconds]}


def window_steps(step_seconds: float, workers: int, wanted: float, settings: Settings) -> int:
    """Steps in a window of `wanted` seconds: long enough in time and in steps, and where that does
    not make it very long a whole number of rounds of the loader's workers, whose batches arrive in
    clumps.
    """
    steps = max(settings.window_steps, math.ceil(wanted / max(step_seconds, 1e-6)))
    round_seconds = workers * step_seconds
    if workers == 0 or round_seconds > _LONG_ROUND * settings.window_seconds:
        return steps
    return math.ceil(steps / workers) * workers


def queue_trend(windows: Sequence[Window]) -> float:
    """How fast the loader's queue fills (+) or drains (-), as a share of the time: minus the slope
    of the workers' response over the windows. Workers that make only 80 batches while 100 are
    taken fall behind by a quarter of the time: -0.25. Zero where the workers keep up, and where
    the queue is empty, so that training goes at their pace.
    """
    if len(windows) < 2:
        return 0.0
    middles, now = [], 0.0
    for window in windows:
        middles.append(now + window.seconds / 2)
        now += window.seconds
    return -statistics.linear_regression(middles, [w.response for w in windows]).slope


def is_draining(windows: Sequence[Window], workers: int) -> bool:
    """Whether these windows live on what the loader had made before: its workers are behind, and
    fall further behind.
    """
    if not windows or workers == 0:
        return False
    last = windows[-1]
    behind = last.response > _BEHIND * workers / last.steps_per_second
    hidden = last.data_wait < _HIDDEN * last.seconds  # an empty queue shows as waiting
    return behind and hidden and queue_trend(windows) < -QUEUE_TREND


def settled(windows: Sequence[Window]) -> list[Window]:
    """Those after what the loader had made ahead, in which nothing but training happened."""
    return [window for window in windows if not window.early and not window.interrupted]


@dataclass(frozen=True)
class Interruptions:
    """How training is interrupted: in every `gap`-th step or so, the last one `since` steps ago."""

    gap: int
    since: int

    @classmethod
    def of(cls, rows: Sequence[Sequence[float]]) -> Interruptions | None:
        """From (gap, since) of each rank, gap 0 where none was seen: the rank with most of them."""
        seen = [(int(gap), int(since)) for gap, since in rows if gap]
        return cls(*min(seen)) if seen else None

    @property
    def usual(self) -> bool:
        """They come so often that they are a part of training."""
        return self.gap < _RARE

    def fit(self, steps: int) -> tuple[int, int]:
        """(steps to take before a window, steps of the window), so that it lies between two
        interruptions; `steps` are wanted.
        """
        wanted = min(steps, max(1, self.gap - 1))
        room = self.gap - 1 - self.since
        if wanted <= room:
            return 0, wanted
        if room >= wanted / 2:
            return 0, room
        return max(0, room) + 1, wanted


def is_steady(windows: Sequence[Window], settings: Settings) -> bool:
    """Whether the speed has settled: the coefficient of variation of the last windows is small (the
    steady state of A. Georges, D. Buytaert and L. Eeckhout, Statistically rigorous Java performance
    evaluation, OOPSLA 2007), or, on a noisy machine, they show no trend; and the loader's queue
    neither drains nor fills.
    """
    later = settled(windows)
    last = later[-settings.steady_windows :]
    if len(last) < settings.steady_windows or abs(queue_trend(last)) > QUEUE_TREND:
        return False
    rates = [window.steps_per_second for window in last]
    if statistics.stdev(rates) / statistics.fmean(rates) <= settings.steady_variation:
        return True
    return trendless([window.steps_per_second for window in later[-_TREND_WINDOWS:]])


def trendless(rates: Sequence[float]) -> bool:
    """Whether a straight line through five rates has a slope that noise explains (t test of a
    regression slope, 95 %). False for fewer than five.
    """
    if len(rates) < _TREND_WINDOWS:
        return False
    fit = statistics.linear_regression(range(len(rates)), rates)
    residuals = [r - (fit.intercept + fit.slope * i) for i, r in enumerate(rates)]
    freedom = len(rates) - 2
    spread = math.sqrt(sum(r * r for r in residuals) / freedom)
    middle = (len(rates) - 1) / 2
    error = spread / math.sqrt(sum((i - middle) ** 2 for i in range(len(rates))))
    return abs(fit.slope) <= _TREND_T * error


def warmed_up(windows: Sequence[Window], settings: Settings) -> tuple[bool, bool]:
    """(warm-up is over, it is steady)."""
    if is_steady(windows, settings):
        return True, True
    later = settled(windows)
    too_long = sum(window.seconds for window in later) >= settings.max_warmup_seconds
    over = len(later) >= settings.max_warmup_windows or (too_long and len(later) >= 2)
    broken = sum(window.interrupted for window in windows)
    return over or broken >= 2 * settings.max_warmup_windows, False


def standard_error_of_median(rates: Sequence[float]) -> float:
    """Large-sample standard error of a median: sqrt(pi/2) times that of the mean (normal data)."""
    if len(rates) < 2:
        return math.inf
    return math.sqrt(math.pi / 2) * statistics.stdev(rates) / math.sqrt(len(rates))


def hopeless(samples_per_second: Sequence[float], settings: Settings) -> bool:
    """Whether this is surely slower than the incumbent: median + 3 standard errors lies below it by
    more than the margin.
    """
    if settings.cut_below is None or len(samples_per_second) < CUT_WINDOWS:
        return False
    bound = statistics.median(samples_per_second) + 3 * standard_error_of_median(samples_per_second)
    return bound < settings.cut_below * (1 - settings.cut_margin)
