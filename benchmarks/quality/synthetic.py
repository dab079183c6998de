"""Made-up landscapes: another one for each seed, of a kind that real ones were seen to be of.

Nine parameters as a search space has them, 129,600 configurations. What a setting does to the log
speed is drawn: by itself a smooth hump over the places of a number, or anything for a word;
together with another whatever the kind says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quality.landscapes import Landscape, Point, Value

_PARAMETERS: Mapping[str, tuple[Value, ...]] = {
    "word_a": (None, "ring", "tree"),
    "word_b": (None, "simple", "low", "mixed"),
    "switch_a": (False, True),
    "switch_b": (None, 0),
    "number_a": (None, 1, 2, 4, 8),
    "number_b": (None, 1, 2, 4, 8),
    "number_c": (None, 4, 8, 16, 24, 32),
    "number_d": (5, 10, 25, 50, 100, 250),
    "number_e": (0, 2, 4),
}
_DEFAULT: Point = (None, None, False, None, None, None, None, 25, 2)
_PROCESS = frozenset({"switch_b", "number_a", "number_b"})


@dataclass(frozen=True)
class Kind:
    """What the settings of a kind of landscape do. Effects are standard deviations of log speed."""

    matter: int
    """Parameters that matter; the others hardly do."""
    effect: float
    pair_effect: float
    tilt: float
    """Mean effect of a change: below 0 the default is good already."""
    failing: float
    """Share of the configurations that fail."""


KINDS: Mapping[str, Kind] = {
    "sparse": Kind(matter=3, effect=0.12, pair_effect=0.01, tilt=0.0, failing=0.0),
    "many": Kind(matter=7, effect=0.06, pair_effect=0.02, tilt=0.0, failing=0.05),
    "pairs": Kind(matter=5, effect=0.05, pair_effect=0.10, tilt=0.0, failing=0.05),
    "failing": Kind(matter=4, effect=0.10, pair_effect=0.03, tilt=-0.02, failing=0.30),
    "settled": Kind(matter=5, effect=0.03, pair_effect=0.01, tilt=-0.06, failing=0.05),
}


class _Grid(Mapping[Point, Any]):
    """Numbers for all points of the grid, looked up by the point."""

    def __init__(self, values: NDArray[Any], left_out: NDArray[np.bool_]) -> None:
        self.values_array = values
        self._left_out = left_out
        self._places = [
            {repr(v): i for i, v in enumerate(levels)} for levels in _PARAMETERS.values()
        ]

    def _index(self, point: Point) -> tuple[int, ...]:
        return tuple(p[repr(v)] for p, v in zip(self._places, point, strict=True))

    def __getitem__(self, point: Point) -> float:
        index = self._index(point)
        if self._left_out[index]:
            raise KeyError(point)
        return float(self.values_array[index])

    def __iter__(self) -> Iterator[Point]:
        levels = list(_PARAMETERS.values())
        for index in np.argwhere(~self._left_out):
            yield tuple(levels[i][place] for i, place in enumerate(index))

    def __len__(self) -> int:
        return int((~self._left_out).sum())


class _Failing(_Grid):
    """The points that fail, as a set is asked."""


def synthetic(name: str, seed: int) -> Landscape:
    """The landscape of kind `name` that belongs to a seed."""
    kind = KINDS[name]
    rng = np.random.default_rng((seed, sorted(KINDS).index(name)))
    log_speed = _effects(kind, rng)
    failing = _failing(kind, rng)
    speed = 3000 * np.exp(log_speed)
    seconds = np.full(speed.shape, 2.0)
    truth = _Grid(speed, failing)
    return Landscape(
        name=f"synthetic-{name}",
        parameters=_PARAMETERS,
        process=_PROCESS,
        default=_DEFAULT,
        truth=truth,
        failing=_Failing(speed, ~failing),  # type: ignore[arg-type]
        launch_spread=0.015,
        spread=0.01,
        seconds=_Grid(seconds, np.zeros(speed.shape, dtype=bool)),
        launch_seconds=2.2,
        best=float(speed[~failing].max()),
    )


def _shape() -> tuple[int, ...]:
    return tuple(len(levels) for levels in _PARAMETERS.values())


def _along(axis: int, effect: NDArray[Any]) -> NDArray[Any]:
    shape = [1] * len(_PARAMETERS)
    shape[axis] = len(effect)
    return effect.reshape(shape)


def _effects(kind: Kind, rng: np.random.Generator) -> NDArray[Any]:
    total = np.zeros(_shape())
    matter = rng.permutation(len(_PARAMETERS))[: kind.matter]
    names = list(_PARAMETERS)
    for axis, name in enumerate(names):
        levels, default = _PARAMETERS[name], _DEFAULT[axis]
        size = kind.effect if axis in matter else 0.003
        effect = size * _single(levels, rng)
        effect += kind.tilt * (0.5 if axis not in matter else 1.0)
        place = levels.index(default)
        effect -= effect[place]
        effect[place] = 0.0
        total = total + _along(axis, effect)
    for i, a in enumerate(matter):
        for b in matter[i + 1 :]:
            table = kind.pair_effect * rng.standard_normal((_shape()[a], _shape()[b]))
            table[_PARAMETERS[names[a]].index(_DEFAULT[a]), :] = 0
            table[:, _PARAMETERS[names[b]].index(_DEFAULT[b])] = 0
            shape = [1] * len(names)
            shape[a], shape[b] = table.shape
            total = total + (table if a < b else table.T).reshape(shape)
    return total


def _single(levels: tuple[Value, ...], rng: np.random.Generator) -> NDArray[Any]:
    """Standard effects of the values: a parabola over the places of numbers, else independent."""
    numbers = [v for v in levels if isinstance(v, int) and not isinstance(v, bool)]
    effect = rng.standard_normal(len(levels))
    if len(numbers) > 2:
        places = np.arange(len(numbers)) / (len(numbers) - 1)
        hump = -((places - rng.uniform(-0.2, 1.2)) ** 2)
        hump = (hump - hump.mean()) / hump.std() + 0.2 * rng.standard_normal(len(numbers))
        effect[len(levels) - len(numbers) :] = hump
        if len(levels) > len(numbers):  # unset is like one of the numbers
            effect[0] = hump[rng.integers(len(numbers))] + 0.1 * rng.standard_normal()
    return effect


def _failing(kind: Kind, rng: np.random.Generator) -> NDArray[np.bool_]:
    """A value of one parameter beside one of another fails, until the share is reached."""
    failing = np.zeros(_shape(), dtype=bool)
    default = tuple(
        levels.index(v) for levels, v in zip(_PARAMETERS.values(), _DEFAULT, strict=True)
    )
    while failing.mean() < kind.failing:
        a, b = rng.choice(len(_PARAMETERS), size=2, replace=False)
        where: list[Any] = [slice(None)] * len(_PARAMETERS)
        where[a], where[b] = rng.integers(_shape()[a]), rng.integers(_shape()[b])
        before = failing.copy()
        failing[tuple(where)] = True
        if failing[default] or failing.mean() > kind.failing + 0.1:
            failing = before
    return failing
