"""Whether a job stays behind what its settings promise: decided from report to report, from numbers
alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SUCCESSIVE = 3
"""Reports that have to agree: a checkpoint or a neighbour's burst is in one of them or two."""

MOST_EXPOSED = 0.30
"""Of a step, for communication that computing does not hide."""

_UNJUDGED = 5  # reports in succession, before it is told why


@dataclass(frozen=True)
class Promise:
    """Samples/s of all ranks: what one more launch of the settings is expected to reach."""

    speed: float
    low: float
    high: float

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Promise:
        return cls(float(data["speed"]), float(data["low"]), float(data["high"]))


@dataclass(frozen=True)
class Report:
    """Steps `step` - `steps` + 1 to `step`, which took `seconds`. `samples` are those of all ranks,
    None where they cannot be counted; `exposed` is communication that computing does not hide, as
    a share of a step, None where it is not known. `interrupted`: an epoch began, or validation ran.
    """

    step: int
    steps: int
    seconds: float
    samples: int | None
    exposed: float | None
    interrupted: bool
    first: bool = False

    @property
    def speed(self) -> float | None:
        """Samples/s of all ranks."""
        return None if self.samples is None else self.samples / self.seconds

    @property
    def judged(self) -> bool:
        """The first one has the warm-up in it, and an interrupted one what is no training."""
        return not (self.first or self.interrupted)


class Judge:
    """Reports in their order, against one promise; None where there is none."""

    def __init__(self, promise: Promise | None, next_step: str) -> None:
        """`next_step`: what a warning tells to do, a sentence."""
        self.promise = promise
        self._next = next_step
        self._slow = self._exposed = self._unjudged = 0
        self._told: set[str] = set()

    @property
    def below(self) -> bool:
        """Whether the last reports that are judged are all below the promise."""
        return self._slow >= SUCCESSIVE

    def warnings(self, report: Report) -> Iterator[str]:
        """What is to be said after this report: each warning once in a job."""
        if not report.judged:
            return
        if self.promise is not None and report.speed is not None:
            self._slow = self._slow + 1 if report.speed < self.promise.low else 0
            if self.below and self._once("speed"):
                yield self._too_slow(report.speed, self.promise)
        if report.exposed is not None:
            self._exposed = self._exposed + 1 if report.exposed > MOST_EXPOSED else 0
            if self._exposed >= SUCCESSIVE and self._once("exposed"):
                yield self._too_exposed(report.exposed)

    def nothing_judged(self, report: Report, rhythm: int) -> str | None:
        """Told once, where each report has an interruption in it. `rhythm`: steps from one
        interruption to the next, 0 where that is not known.
        """
        self._unjudged = 0 if report.judged else self._unjudged + 1
        if self._unjudged < _UNJUDGED or not self._once("unjudged"):
            return None
        shorter = rhythm // 3
        advice = f"; --watch-every {shorter} has reports between them" if shorter > 1 else ""
        return (
            f"the last {_UNJUDGED} reports had an epoch's beginning or validation in them, and "
            f"none is judged{advice}"
        )

    def _once(self, what: str) -> bool:
        found = what not in self._told
        self._told.add(what)
        return found

    def _too_slow(self, speed: float, promise: Promise) -> str:
        return (
            f"slower than promised in {SUCCESSIVE} reports in a row: {number(speed)} samples/s "
            f"now, and at least {number(promise.low)} were expected. {self._next}"
        )

    def _too_exposed(self, exposed: float) -> str:
        return (
            f"communication that computing does not hide is {percent(exposed)} of a step, above "
            f"{percent(MOST_EXPOSED)} in {SUCCESSIVE} reports in a row. {self._next}"
        )


def line(report: Report, promise: Promise | None, ranks: int) -> str:
    """A report in words."""
    text = f"step {report.step}: {_speed(report, ranks)}"
    if report.speed is not None and promise is not None:
        share = percent(report.speed / promise.speed)
        between = f"{number(promise.low)} .. {number(promise.high)}"
        text += f", {share} of the {number(promise.speed)} promised ({between})"
    if report.exposed is not None:
        text += f"; communication that computing does not hide: {percent(report.exposed)} of a step"
    if report.first:
        text += " (the first steps, not judged)"
    elif report.interrupted:
        text += " (an epoch began or validation ran, not judged)"
    return text


def _speed(report: Report, ranks: int) -> str:
    if report.speed is None:
        return f"{number(report.steps / report.seconds)} steps/s"
    return f"{number(report.speed)} samples/s of {ranks} rank{'' if ranks == 1 else 's'}"


def number(value: float) -> str:
    """With as many digits as carry meaning."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def percent(share: float) -> str:
    return f"{100 * share:.0f}%"
