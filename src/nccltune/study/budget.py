"""How long things may take: limits from the baseline's own time, and the budget of a search."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nccltune.launch.protocol import Limits
from nccltune.study.records import Measurement, Trial

_PATIENCE = 6.0  # times what the baseline needed
_NOT_ITS_OWN = ("host", "disturbed before", "failed before")
FLOOR_TRIALS = 4
"""So many candidates are measured before the search leaves time to a confirmation."""


def limits_from(
    baseline: Measurement | None, batch_factor: float = 1.0, *, cold: bool = False
) -> Limits:
    """Limits for a candidate; generous constants before the baseline is known.

    `batch_factor` is its batch size over the baseline's: steps take that much longer. `cold`: the
    first launch of a run, which may have to read everything from the disk again. The floors
    keep a short baseline from turning a busy moment of the machine into a timeout.
    """
    if baseline is None or baseline.result is None:
        return Limits()
    spent = {**baseline.seconds, **baseline.result["seconds"]}
    windows: Sequence[Mapping[str, Any]] = baseline.result["windows"]
    window = max(max(w["rank_seconds"]) for w in windows) * batch_factor
    return Limits(
        start=max(Limits.start if cold else 60.0, _PATIENCE * spent.get("start", 0.0)),
        build=max(30.0, _PATIENCE * spent["build"]),
        first_step=max(30.0, _PATIENCE * spent["first_step"] * batch_factor),
        check=max(30.0, _PATIENCE * spent["check"]),
        window=max(20.0, 2 * _PATIENCE * window),
    )


def patient(limits: Limits) -> Limits:
    """For a script of the user's own, which may read its data anew, or validate in a window."""
    return replace(
        limits,
        start=max(limits.start, 300.0),
        build=max(limits.build, 600.0),
        first_step=max(limits.first_step, 300.0),
        window=max(limits.window, 300.0),
    )


def trial_seconds(trials: Sequence[Trial]) -> float | None:
    """What a trial has cost so far, median wall seconds; None before the first."""
    return statistics.median(t.seconds for t in trials) if trials else None


def own_seconds(measurement: Measurement) -> float:
    """What a launch took by itself: without the warm host's start and attempts before it."""
    return measurement.spent - sum(measurement.seconds.get(name, 0.0) for name in _NOT_ITS_OWN)


def launch_seconds(measurements: Sequence[Measurement]) -> float | None:
    """What a fresh launch of the baseline costs, wall seconds."""
    spent = [
        own_seconds(m)
        for m in measurements
        if m.purpose in ("noise", "confirm") or (m.purpose == "search" and m.trial == 0)
    ]
    return statistics.median(spent) if spent else None


class Budget:
    """Trials in all and wall time of this run. Says whether one more trial fits."""

    def __init__(
        self,
        trials: int,
        seconds: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trials = trials
        self._seconds = seconds
        self._clock, self._began = clock, clock()
        self.reserved = 0.0
        """Seconds of the budget that the search leaves to the confirmation."""
        self.tuners = 1
        """So many share the trials."""

    @property
    def spent(self) -> float:
        return self._clock() - self._began

    def remaining(self) -> float | None:
        return None if self._seconds is None else max(0.0, self._seconds - self.spent)

    def share_spent(self) -> float:
        """Of the time budget, 0 to 1; 0 where there is none."""
        own = self.search_seconds
        return 0.0 if own is None else 1.0 if own <= 0 else min(1.0, self.spent / own)

    @property
    def seconds(self) -> float | None:
        return self._seconds

    @property
    def search_seconds(self) -> float | None:
        """What the search itself may spend of it."""
        return None if self._seconds is None else max(0.0, self._seconds - self.reserved)

    def fits(self, trials: Sequence[Trial]) -> bool:
        """Whether a trial of the usual length still ends in time. The baseline always fits."""
        kept = 0.0 if len(trials) <= FLOOR_TRIALS else self.reserved
        cost = trial_seconds(trials)
        return cost is None or self.fits_launch(cost + kept)

    def fits_launch(self, cost: float | None) -> bool:
        """Whether what takes so many seconds ends in time."""
        remaining = self.remaining()
        return remaining is None or cost is None or cost <= remaining

    def forecast(self, trials: Sequence[Trial]) -> float | None:
        """Seconds until the search is done: by trials, or by time where that ends first."""
        cost = trial_seconds(trials)
        remaining = self.remaining()
        if cost is None:
            return remaining
        left = max(0, self.trials - len(trials)) / self.tuners
        by_trials = cost * left + self.reserved
        return by_trials if remaining is None else min(by_trials, remaining)
