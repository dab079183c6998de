"""What trials are worth by all that is known, not by the luck of one launch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from nccltune.space import Parameter, ResolvedSpace, Value, key
from nccltune.study.records import Measurement, Trial, merged
from nccltune.study.sampling.guide import Guide, Knob
from nccltune.study.sampling.memory import Observation

_DIGITS = 6  # that another machine's arithmetic has too
_AT_ONCE = 256  # configurations that the model is asked for: its tables grow with them


def as_proposed(parameter: Parameter, value: Value) -> Value:
    """A value that a sampler can have proposed. One that does nothing in a configuration is null
    there, whether or not null is among the choices: any legal value stands for the same job.
    """
    if parameter.legal(value):
        return value
    if parameter.legal(parameter.default):
        return parameter.default
    if parameter.range is not None:
        return parameter.range.low
    assert parameter.choices  # one of the two is there
    return parameter.choices[0]


def candidates(
    trials: Sequence[Trial],
    measurements: Sequence[Measurement],
    space: ResolvedSpace,
    sampler: str,
) -> list[Trial]:
    """The trials with the values that finalists are chosen by: what our sampler makes of them, with
    others the mean of those of a configuration.
    """
    if sampler == "guided":
        return estimated(trials, measurements, space)
    complete = [t for t in trials if t.stage == "search" and t.state == "complete"]
    others = [t for t in trials if t.stage != "search" or t.state != "complete"]
    return sorted([*merged(complete), *others], key=lambda t: t.number)


def estimated(
    trials: Sequence[Trial], measurements: Sequence[Measurement], space: ResolvedSpace
) -> list[Trial]:
    """The trials of the stage `search` with the value that the model gives their configuration, so
    that the luck of one launch makes no winner; others, and those without a value, as they are. Of
    trials that repeat a configuration the first stands for all.
    """
    own = [t for t in trials if t.stage == "search" and t.state == "complete"]
    numbers = {t.number for t in own}
    others = [t for t in trials if t.number not in numbers]
    parameters = [p for p in space.parameters if p.target != "batch"]
    if len(own) < 2 or not parameters:
        return list(trials)
    searched = [t for t in trials if t.stage == "search" and t.state != "failed"]
    knobs = [_knob(p, searched, space) for p in parameters]
    guide, coder = Guide(knobs), _Coder(parameters, knobs)
    launches = {m.id: (m.tuner, m.launch) for m in measurements}
    of = {t.number: coder.code(t.parameters) for t in searched}
    history = [
        Observation(
            of[t.number],
            math.log(t.value),
            launches.get(t.measurements[-1]) if t.measurements else None,
        )
        for t in searched
        if t.value
    ]
    noise = [m for m in measurements if m.purpose == "noise" and m.value and m.tuner is None]
    history += [
        Observation(guide.default, math.log(m.value or 1.0), (m.tuner, m.launch)) for m in noise
    ]
    first: dict[str, Trial] = {}
    for trial in own:
        first.setdefault(key(trial.parameters), trial)
    kept = list(first.values())
    codes = np.array([of[t.number] for t in kept], dtype=np.intp)
    model = guide.posterior(history)
    parts = [codes[i : i + _AT_ONCE] for i in range(0, len(codes), _AT_ONCE)]
    means = np.concatenate([model.predict(part)[0] for part in parts])
    told = [replace(t, value=_rounded(math.exp(m))) for t, m in zip(kept, means, strict=True)]
    return sorted([*told, *others], key=lambda t: t.number)


def _knob(parameter: Parameter, trials: Sequence[Trial], space: ResolvedSpace) -> Knob:
    different = dict.fromkeys((type(v), v) for v in (t.parameters[parameter.name] for t in trials))
    seen = [as_proposed(parameter, value) for _, value in different]
    default = as_proposed(parameter, space.baseline[parameter.name])
    values = parameter.choices or tuple(dict.fromkeys([default, *seen]))
    return Knob(parameter.name, tuple(values), default)


class _Coder:
    """Codes of configurations. The place of a value is worked out once: few differ."""

    def __init__(self, parameters: Sequence[Parameter], knobs: Sequence[Knob]) -> None:
        self._parts = list(zip(parameters, knobs, strict=True))
        self._places: list[dict[tuple[type, Value], int]] = [{} for _ in knobs]

    def code(self, values: Mapping[str, Value]) -> tuple[int, ...]:
        code = []
        for (parameter, knob), places in zip(self._parts, self._places, strict=True):
            value = values[parameter.name]
            place = places.get((type(value), value))
            if place is None:
                place = knob.place(as_proposed(parameter, value))
                places[type(value), value] = place
            code.append(place)
        return tuple(code)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
