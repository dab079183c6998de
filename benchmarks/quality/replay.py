"""The rules of a replayed search, the same for every sampler.

Trial 0 is the default configuration. A proposal that cannot be measured there is rejected for
free, and so is one that was measured already, unless the sampler asks for it to be repeated. After
`ATTEMPTS` free rejections in a row a point is drawn at random instead. The answer of a search is
what its sampler recommends; those without an opinion have the highest mean of its measurements.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from quality.landscapes import Landscape, Point, Value

ATTEMPTS = 12


class Searcher(Protocol):
    """A sampler at work in one replay."""

    def ask(self) -> Mapping[str, Value] | None:
        """The next proposal; None when it has no more."""

    def reject(self, value: float | None) -> None:
        """The last proposal was not measured: `value` is that of an equal one that was."""

    def tell(self, values: Mapping[str, Value], value: float | None) -> None:
        """What came of a measured point: samples/s, or None where it failed."""

    def again(self) -> bool:
        """Whether the last proposal, of a point that was measured, asks for a repetition."""

    def answer(self) -> Point | None:
        """What the sampler recommends; None: it has no opinion."""


@dataclass(frozen=True)
class Step:
    """A measured trial: regret of the answer after it, and the seconds that all took until then."""

    regret: float
    seconds: float


@dataclass
class _State:
    values: dict[Point, list[float]] = field(default_factory=lambda: defaultdict(list))
    failed: set[Point] = field(default_factory=set)
    environment: Point | None = None
    seconds: float = 0.0


def replay(landscape: Landscape, searcher: Searcher, trials: int, seed: int) -> list[Step]:
    """One search of so many trials. Luck depends on the seed and the point alone, so that samplers
    of one seed are a matched pair.
    """
    state, steps = _State(), []
    rng = np.random.default_rng((seed, 1))
    following: Point | None = landscape.default
    while len(steps) < trials and following is not None:
        value = _measure(landscape, state, following, seed)
        searcher.tell(landscape.values(following), value)
        answer = searcher.answer() or max(
            state.values, key=lambda p: float(np.mean(state.values[p]))
        )
        steps.append(Step(landscape.regret(answer), state.seconds))
        following = _next(landscape, searcher, state, rng)
    return steps


def _next(
    landscape: Landscape,
    searcher: Searcher,
    state: _State,
    rng: np.random.Generator,
) -> Point | None:
    for _ in range(ATTEMPTS):
        proposed = searcher.ask()
        if proposed is None:
            return None
        point = tuple(proposed[name] for name in landscape.parameters)
        if point in state.failed:
            searcher.reject(None)
        elif point in state.values:
            if searcher.again():
                return point
            searcher.reject(float(np.mean(state.values[point])))
        elif point in landscape.truth or point in landscape.failing:
            return point
        else:
            searcher.reject(None)
    measurable = [*landscape.truth, *landscape.failing]
    left = [p for p in measurable if p not in state.values and p not in state.failed]
    return left[rng.integers(len(left))] if left else None


def _measure(landscape: Landscape, state: _State, point: Point, seed: int) -> float | None:
    environment = landscape.environment(point)
    again = len(state.values[point]) if point in state.values else 0
    if environment != state.environment or again:
        state.seconds += landscape.launch_seconds
    state.environment = environment
    state.seconds += landscape.seconds[point]
    if point in landscape.failing:
        state.failed.add(point)
        return None
    luck = _normal(seed, again, environment) * landscape.launch_spread
    luck += _normal(seed, again, point) * landscape.spread
    value = landscape.truth[point] * math.exp(luck)
    state.values[point].append(value)
    return value


def _normal(seed: int, again: int, what: Point) -> float:
    key = zlib.crc32(repr((again, what)).encode())
    return float(np.random.default_rng((seed, key)).standard_normal())
