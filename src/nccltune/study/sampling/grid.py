"""The values of a distribution of Optuna that are looked at, and their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from nccltune.space.scalars import is_number
from nccltune.study.quiet import optuna
from nccltune.study.records import Value
from nccltune.study.sampling.guide import Guide, equal
from nccltune.study.sampling.memory import Code

_MOST_VALUES = 33  # of a range: a longer one is looked at in so many places


def values_of(distribution: BaseDistribution, default: Value) -> tuple[Value, ...]:
    """The values that are looked at."""
    if isinstance(distribution, CategoricalDistribution):
        return tuple(distribution.choices)
    assert isinstance(distribution, (optuna.distributions.IntDistribution, FloatDistribution))
    low, high, whole = (
        distribution.low,
        distribution.high,
        not isinstance(distribution, FloatDistribution),
    )
    if distribution.log:
        places = np.geomspace(low, high, _MOST_VALUES)
    elif distribution.step and (high - low) / distribution.step < _MOST_VALUES:
        places = np.arange(low, high + distribution.step / 2, distribution.step)
    else:
        places = np.linspace(low, high, _MOST_VALUES)
    found = {_on_step(float(p), distribution) for p in places} | {low, high}
    if isinstance(default, (int, float)) and distribution._contains(default):
        found.add(default)
    return tuple(sorted(int(v) if whole else float(v) for v in found))


def _on_step(value: float, distribution: Any) -> float:
    if not distribution.step:
        return value
    steps = round((value - distribution.low) / distribution.step)
    return float(round(min(distribution.low + steps * distribution.step, distribution.high), 12))


def default_of(values: Sequence[Value], given: Mapping[str, Value], name: str) -> Value:
    if name in given and has_value(values, given[name]):
        return given[name]
    numbers = all(is_number(v) for v in values)
    return values[len(values) // 2] if numbers and len(values) > 2 else values[0]


def has_value(values: Sequence[Value], value: Value) -> bool:
    return any(equal(v, value) for v in values)


def code_of(guide: Guide, values: Mapping[str, Value]) -> Code | None:
    """Of a configuration whose values lie between those looked at the nearest; None where a
    parameter is missing.
    """
    places = []
    for knob in guide.knobs:
        if knob.name not in values:
            return None
        value = values[knob.name]
        try:
            places.append(knob.place(value))
        except ValueError:
            if not isinstance(value, (int, float)):
                return None
            near = [
                (abs(v - value), i)
                for i, v in enumerate(knob.values)
                if isinstance(v, (int, float))
            ]
            if not near:
                return None
            places.append(min(near)[1])
    return tuple(places)
