"""Which of the variables that were set can have acted, by NCCL's own log of each measurement."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from nccltune.nccl.proof import Trace, traces
from nccltune.space import ResolvedSpace, Value, canonical, violation
from nccltune.study.records import Measurement, Trial


def traces_of(measurement: Measurement) -> tuple[Trace, ...]:
    """What NCCL's log says of the variables of a measurement; empty where there is no log."""
    facts = measurement.nccl
    if facts is None or measurement.state == "failed":
        return ()
    return traces(measurement.effective["env"], facts["environment"], facts.get("config", {}))


def without_trace(measurement: Measurement) -> frozenset[str]:
    """Variables that NCCL never came to read in that launch: they did nothing."""
    return frozenset(t.name for t in traces_of(measurement) if t.meaning == "no trace")


def inert(measurements: Iterable[Measurement]) -> frozenset[str]:
    """Variables without a trace wherever they were set so far."""
    silent, heard = set[str](), set[str]()
    for measurement in measurements:
        for trace in traces_of(measurement):
            (silent if trace.meaning == "no trace" else heard).add(trace.name)
    return frozenset(silent - heard)


def left_unset(
    configuration: Mapping[str, Value], names: Collection[str], space: ResolvedSpace
) -> dict[str, Value]:
    """The configuration with these variables as in the baseline. Fixed ones stay."""
    searched = {p.name for p in space.parameters if p.target == "env"}
    reset = {name: space.baseline[name] for name in searched.intersection(names)}
    return canonical({**configuration, **reset}, space) if reset else dict(configuration)


def acting(
    trials: Sequence[Trial], measurements: Iterable[Measurement], space: ResolvedSpace
) -> list[Trial]:
    """The trials, each without the variables that did nothing in its own launch: what is confirmed
    and written.
    """
    silent = {m.id: without_trace(m) for m in measurements}
    found = []
    for trial in trials:
        names = silent.get(trial.measurements[-1], ()) if trial.measurements else ()
        reduced = left_unset(trial.parameters, names, space)
        legal = violation(reduced, space) is None  # another setting may ask for one of them
        found.append(replace(trial, parameters=reduced) if names and legal else trial)
    return found
