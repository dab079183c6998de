"""What trials are worth by all that is known, not by the luck of one launch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from nccltune.space import Parameter, ResolvedSpace, Value, key
from nccltune.study.records import Measurement, Trial
from nccltune.study.sampling.guide import Guide, Knob, Observation

_DIGITS = 6  # that another machine's arithmetic has too


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
    """The trials with the values that finalists are chosen by: what the sampler makes of them."""
    return estimated(trials, measurements, space) if sampler == "guided" else list(trials)


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
    knobs = [_knob(p, own, space) for p in parameters]
    guide = Guide(knobs)
    launches = {m.id: (m.tuner, m.launch) for m in measurements}
    history = [
        Observation(
            _code(guide, parameters, t.parameters),
            math.log(t.value),
            launches.get(t.measurements[-1]) if t.measurements else None,
        )
        for t in trials
        if t.stage == "search" and t.state != "failed" and t.value
    ]
    noise = [m for m in measurements if m.purpose == "noise" and m.value and m.tuner is None]
    history += [
        Observation(guide.default, math.log(m.value or 1.0), (m.tuner, m.launch)) for m in noise
    ]
    first: dict[str, Trial] = {}
    for trial in own:
        first.setdefault(key(trial.parameters), trial)
    kept = list(first.values())
    codes = np.array([_code(guide, parameters, t.parameters) for t in kept], dtype=np.intp)
    mean, _ = guide.posterior(history).predict(codes)
    told = [replace(t, value=_rounded(math.exp(m))) for t, m in zip(kept, mean, strict=True)]
    return sorted([*told, *others], key=lambda t: t.number)


def _knob(parameter: Parameter, trials: Sequence[Trial], space: ResolvedSpace) -> Knob:
    seen = [as_proposed(parameter, t.parameters[parameter.name]) for t in trials]
    default = as_proposed(parameter, space.baseline[parameter.name])
    values = parameter.choices or tuple(dict.fromkeys([default, *seen]))
    return Knob(parameter.name, tuple(values), default)


def _code(
    guide: Guide, parameters: Sequence[Parameter], values: Mapping[str, Value]
) -> tuple[int, ...]:
    return guide.code({p.name: as_proposed(p, values[p.name]) for p in parameters})


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
