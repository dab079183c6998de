"""What a best.yaml lets a job expect, in samples/s: the speed of one more launch with it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nccltune.output.best import Best
from nccltune.stats.noise import noise_threshold
from nccltune.stats.verdict import FEWEST

_LEAST = 0.03
"""The interval is no narrower on either side: a job of hours runs warmer, logs more and shares the
machine more than launches of seconds, of which the file has the speeds.
"""
_ONE_LAUNCH = 2  # noise thresholds that two launches of the same settings may differ by


@dataclass(frozen=True)
class Promise:
    """Samples/s of all ranks: what a launch is expected to reach, and the least and most of it."""

    speed: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


class NotPromised(Exception):
    """The message says why."""


def promised(best: Best) -> Promise:
    """From the launches that confirmed the settings: the median of their speeds, and on both sides
    of it the noise threshold of those launches, which is 2.2 standard deviations: nine launches of
    ten lie inside, and more. That of the ratio to the defaults is no such interval: it is of the
    typical launch, and a job is one.

    Raises: NotPromised where the file has no such launches, or they were not of a job like this.
    """
    verdict = best.verdict
    if not isinstance(verdict, Mapping):
        raise NotPromised("nothing in it is confirmed")
    workload = best.workload
    if workload.get("data") != "script":
        raise NotPromised(
            f"it was measured with {workload.get('model')} in a loop of nccltune's own; "
            "`nccltune search -- SCRIPT` measures a script"
        )
    if workload.get("emulate_hosts"):
        raise NotPromised("it was measured on emulated hosts")
    # Where the verdict is another one the file keeps the defaults, and it is their speed.
    side = "with" if verdict.get("word") == "FASTER" else "without"
    launches = _speeds(verdict.get("speeds"), side)
    if len(launches) >= FEWEST:
        return _around(statistics.median(launches), noise_threshold([launches]))
    plain, threshold = _speeds(verdict.get("files"), side), _speed(verdict.get("threshold"))
    if plain and threshold is not None:
        return _around(plain[0], (1 + threshold) ** _ONE_LAUNCH - 1)
    raise NotPromised("it has no speeds of launches that confirm it")


def _around(speed: float, noise: float) -> Promise:
    wide = 1 + max(_LEAST, noise)
    return Promise(speed, speed / wide, speed * wide)


def _speeds(section: Any, side: str) -> list[float]:
    """A file may hold anything; empty where these are no speeds."""
    found = section.get(side) if isinstance(section, Mapping) else None
    speeds = [_speed(value) for value in (found if isinstance(found, list) else [found])]
    known = [speed for speed in speeds if speed is not None]
    return known if len(known) == len(speeds) else []


def _speed(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None
