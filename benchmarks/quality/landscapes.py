"""Landscapes to search: recorded ones with their truth worked out, and synthetic ones.

A landscape says how fast each configuration truly is, how far measurements scatter about that, and
what measuring costs. Values are native JSON values; None and "" mean "not set".
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Value = None | bool | int | float | str
Point = tuple[Value, ...]
"""A value for each parameter, in the order of `Landscape.parameters`."""

LAUNCH_SECONDS = 2.2
"""What a new worker group costs where a recording does not say: 2.87 s outside warm-up and windows
with a new group, 0.67 s in a live one (results/trial_cost-h200x2-9.json).
"""
_USUAL: Mapping[str, Value] = {"bucket_cap_mb": 25, "gradient_as_bucket_view": False}
_LAST_WINDOWS = 3


@dataclass(frozen=True)
class Landscape:
    """What a replay draws from. `truth` holds samples/s; what it lacks cannot be measured."""

    name: str
    parameters: Mapping[str, tuple[Value, ...]]
    process: frozenset[str]
    """Parameters whose change needs a new worker group."""
    default: Point
    truth: Mapping[Point, float]
    failing: Collection[Point]
    """Points that cost a trial and give no value."""
    launch_spread: float
    """Standard deviation of the log speed between launches of one configuration."""
    spread: float
    """The same, between measurements within a launch."""
    seconds: Mapping[Point, float]
    """What measuring a point costs in a live worker group."""
    launch_seconds: float
    best: float
    """Samples/s of the fastest point."""
    presets: tuple[Mapping[str, Value], ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    """Parameters of which a search space says that they are best moved together."""

    def regret(self, point: Point) -> float:
        """How much slower than the best a point truly is: 0.03 is 3 % less samples/s."""
        return 1 - self.truth[point] / self.best

    def environment(self, point: Point) -> Point:
        """What ranks that measure the point must have been started with."""
        pairs = zip(self.parameters, point, strict=True)
        return tuple(value for name, value in pairs if name in self.process)

    def values(self, point: Point) -> dict[str, Value]:
        return dict(zip(self.parameters, point, strict=True))


# Recorded landscapes.


@dataclass
class _Recording:
    names: list[str]
    points: list[Point] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    seconds: dict[Point, list[float]] = field(default_factory=lambda: defaultdict(list))
    failed: Counter[Point] = field(default_factory=Counter)
    set_up: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds of each launch's start and set-ups, row by row."""

    def launch_seconds(self) -> float:
        """What the first measurement of a launch costs more than those after it: its start, and
        what libraries do once. LAUNCH_SECONDS where no launch has two.
        """
        more = [each[0] - statistics.median(each[1:]) for each in self.set_up.values() if each[1:]]
        return max(0.0, statistics.median(more)) if more and self.says_starts else LAUNCH_SECONDS

    says_starts: bool = False


def recorded(file: Path) -> Landscape:
    """A recording (`record_landscape.py` describes the format) as a landscape.

    Raises: ValueError naming file and line for what is no such recording.
    """
    recording = _read(file)
    process = _process_parameters(recording)
    default = _default(recording)
    if default not in recording.points:
        raise ValueError(f"{file}: the default configuration {default} was not measured")
    fit = _fit(recording, process)
    levels = {
        name: _ordered({point[i] for point in [*recording.points, *recording.failed]})
        for i, name in enumerate(recording.names)
    }
    return Landscape(
        name=file.stem,
        parameters=levels,
        process=frozenset(process),
        default=default,
        truth=fit.truth,
        failing=frozenset(p for p in recording.failed if p not in fit.truth),
        launch_spread=fit.launch_spread,
        spread=fit.spread,
        seconds={
            point: statistics.median(recording.seconds[point])
            for point in [*fit.truth, *recording.failed]
        },
        launch_seconds=recording.launch_seconds(),
        best=max(fit.truth.values()),
    )


def _read(file: Path) -> _Recording:
    found: _Recording | None = None
    for number, text in enumerate(file.read_text().splitlines(), start=1):
        try:
            row: dict[str, Any] = json.loads(text)
            if found is None:
                found = _Recording([k for k in row if _is_parameter(k)])
            point = tuple(row[name] for name in found.names)
            cost = sum(float(row.get(f"{part}_s") or 0.0) for part in ("setup", "warm", "measure"))
            found.seconds[point].append(cost)
            start = float(row.get("launch_s") or 0.0) + float(row.get("setup_s") or 0.0)
            found.set_up[int(row["launch"])].append(start)
            found.says_starts |= "launch_s" in row
            if row.get("failed"):
                found.failed[point] += 1
                continue
            speed = statistics.median(row["windows"][-_LAST_WINDOWS:])
            if not (math.isfinite(speed) and speed > 0):
                raise ValueError(f"a speed of {speed}")
            found.points.append(point)
            found.launches.append(int(row["launch"]))
            found.speeds.append(math.log(speed))
        except (KeyError, TypeError, ValueError, statistics.StatisticsError) as error:
            raise ValueError(f"{file}: line {number} is no recorded measurement: {error}") from None
    if found is None or not found.points:
        raise ValueError(f"{file}: holds no measurement")
    return found


def _is_parameter(key: str) -> bool:
    return key not in ("launch", "windows", "failed") and not key.endswith("_s")


def _process_parameters(recording: _Recording) -> list[str]:
    """Those that never change within a launch, in a file where others do."""
    values: dict[int, dict[str, set[Value]]] = defaultdict(lambda: defaultdict(set))
    for launch, point in zip(recording.launches, recording.points, strict=True):
        for name, value in zip(recording.names, point, strict=True):
            values[launch][name].add(value)
    many = {n: len({p[i] for p in recording.points}) for i, n in enumerate(recording.names)}
    return [
        name
        for name in recording.names
        if many[name] > 1 and all(len(seen[name]) == 1 for seen in values.values())
    ]


def _default(recording: _Recording) -> Point:
    """Nothing set, DDP's usual values; of others the value that most launches have."""
    launches: dict[Point, set[int]] = defaultdict(set)
    for point, launch in zip(recording.points, recording.launches, strict=True):
        launches[point].add(launch)
    most = max(launches.values(), key=len)
    often = next(p for p in recording.points if len(launches[p]) == len(most))
    found: list[Value] = []
    for i, name in enumerate(recording.names):
        seen = {point[i] for point in recording.points}
        usual = _USUAL.get(name)
        unset = next((v for v in (None, "") if v in seen), usual if usual in seen else often[i])
        found.append(unset)
    return tuple(found) if tuple(found) in launches else often


def _ordered(values: set[Value]) -> tuple[Value, ...]:
    def rank(value: Value) -> tuple[int, float, str]:
        number = isinstance(value, (int, float))
        order = 0 if value in (None, "") and not number else 1 if number else 2
        return order, float(value) if isinstance(value, (int, float)) else 0.0, str(value)

    return tuple(sorted(values, key=rank))


@dataclass(frozen=True)
class _Fit:
    truth: dict[Point, float]
    launch_spread: float
    spread: float


def _fit(recording: _Recording, process: Sequence[str]) -> _Fit:
    """Log speed = configuration + luck of the launch + luck of the measurement, as a mixed model.

    The two spreads come from configurations that were measured in several launches. The effect of a
    configuration has parts of its own (each parameter, each pair, the rest), whose variances
    are those of the greatest likelihood; the truth is its best linear unbiased prediction
    (Robinson, Statistical Science 1991), so that what launches explain is not in it.
    """
    y = np.array(recording.speeds)
    launches = np.array(recording.launches)
    launch_spread, spread = _spreads(recording.points, launches, y)
    columns = [
        np.array([repr(p[i]) for p in recording.points]) for i in range(len(recording.names))
    ]
    same = [(c[:, None] == c[None, :]).astype(float) for c in columns]
    pairs = [a * b for i, a in enumerate(same) for b in same[i + 1 :]]
    whole = np.prod(same, axis=0)
    parts = [sum(same) / len(same), sum(pairs) / len(pairs) if pairs else whole, whole]
    noise = launch_spread**2 * (launches[:, None] == launches[None, :])
    noise = noise + spread**2 * np.eye(len(y))
    variances = _likeliest(parts, noise, y - y.mean())
    signal = sum(v * part for v, part in zip(variances, parts, strict=True))
    covariance = signal + noise
    ones = np.ones(len(y))
    weights = np.linalg.solve(covariance, ones)
    mean = float(weights @ y / (weights @ ones))
    predicted = mean + signal @ np.linalg.solve(covariance, y - mean)
    truth = {p: math.exp(v) for p, v in zip(recording.points, predicted, strict=True)}
    return _Fit(truth, launch_spread, spread)


def _spreads(
    points: Sequence[Point], launches: NDArray[Any], y: NDArray[Any]
) -> tuple[float, float]:
    """Standard deviations between launches and within one, from the repeats: in each set of
    launches that measured the same configurations, a table of configuration by launch is taken
    apart by rows and columns.
    """
    table: dict[Point, dict[int, float]] = defaultdict(dict)
    for point, launch, value in zip(points, launches, y, strict=True):
        table[point].setdefault(int(launch), float(value))
    sets: dict[frozenset[int], list[Point]] = defaultdict(list)
    for point, found in table.items():
        if len(found) > 1:
            sets[frozenset(found)].append(point)
    between, within, freedom, launch_freedom = 0.0, 0.0, 0, 0
    for used, members in sets.items():
        cells = np.array([[table[p][launch] for launch in sorted(used)] for p in members])
        rows, columns = cells.shape
        centred = cells - cells.mean(axis=1, keepdims=True)
        luck = centred.mean(axis=0)
        between += float((luck**2).sum())
        launch_freedom += columns - 1
        within += float(((centred - luck) ** 2).sum())
        freedom += (rows - 1) * (columns - 1)
    if not launch_freedom:
        raise ValueError("no configuration was measured in two launches: its noise is not known")
    residual = within / freedom if freedom else between / launch_freedom / 2
    sizes = [len(members) for members in sets.values()]
    variance = between / launch_freedom - residual / statistics.mean(sizes)
    return math.sqrt(max(variance, residual / 4)), math.sqrt(max(residual, 1e-8))


def _likeliest(parts: Sequence[NDArray[Any]], noise: NDArray[Any], y: NDArray[Any]) -> list[float]:
    """Variances of the parts of greatest likelihood, by the multiplicative updates of Zhou, Hu,
    Qiao and Sobel (MM algorithms for variance components models, 2019).
    """
    variances = [float(y.var()) / len(parts)] * len(parts)
    for _ in range(200):
        inverse = np.linalg.inv(
            sum(v * part for v, part in zip(variances, parts, strict=True)) + noise
        )
        weights = inverse @ y
        variances = [
            v * math.sqrt(float(weights @ part @ weights) / float((inverse * part).sum()))
            for v, part in zip(variances, parts, strict=True)
        ]
    return variances
