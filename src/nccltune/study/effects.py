"""Which of the variables that were set can have acted, by NCCL's own log of each measurement."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nccltune.nccl.proof import Trace, traces
from nccltune.space import ResolvedSpace, Value, canonical, changes, key, violation
from nccltune.study.records import Measurement, Trial


def traces_of(measurement: Measurement) -> tuple[Trace, ...]:
    """What NCCL's log says of the variables of a measurement; empty where there is no log, or it
    does not reach as far as a communicator that was set up: an absence would say nothing.
    """
    facts = measurement.nccl
    if facts is None or measurement.state == "failed":
        return ()
    if not facts.get("version") or not facts.get("channels"):
        return ()
    foreign_net = "net" in facts.get("plugins", {})
    given, config = measurement.effective["env"], facts.get("config", {})
    return traces(given, facts["environment"], config, foreign_net=foreign_net)


def without_trace(measurement: Measurement) -> frozenset[str]:
    """Variables that NCCL never came to read in that launch: they did nothing."""
    return frozenset(t.name for t in traces_of(measurement) if t.meaning == "no trace")


def left_unset(
    configuration: Mapping[str, Value], names: Collection[str], space: ResolvedSpace
) -> dict[str, Value]:
    """The configuration with these variables as in the baseline. Fixed ones stay; so does the whole
    where another setting asks for one of them and would go too.
    """
    reset = {name: space.baseline[name] for name in _searched(space).intersection(names)}
    if not reset:
        return dict(configuration)
    reduced = canonical({**configuration, **reset}, space)
    apart = changes(reduced, configuration).keys() - reset.keys()
    return dict(configuration) if apart or violation(reduced, space) is not None else reduced


def acting(
    trials: Sequence[Trial], measurements: Iterable[Measurement], space: ResolvedSpace
) -> list[Trial]:
    """The trials, each without the variables that did nothing in its own launch: what is confirmed
    and written.
    """
    silent = {m.id: without_trace(m) for m in measurements}
    found = []
    for trial in trials:
        names = silent.get(trial.measurements[-1]) if trial.measurements else None
        if names:
            trial = replace(trial, parameters=left_unset(trial.parameters, names, space))
        found.append(trial)
    return found


@dataclass
class Silences:
    """Variables that did nothing, each beside the other variables that it was set with: under an
    algorithm, say, that does not look at it. `measurements` may grow.
    """

    measurements: Sequence[Measurement]
    space: ResolvedSpace
    _seen: int = 0
    _found: list[tuple[dict[str, Value], frozenset[str]]] = field(default_factory=list)

    def same_effect(self, configuration: Mapping[str, Value]) -> dict[str, Value]:
        """The configuration without what is known to do nothing beside its other variables."""
        self._catch_up()
        if not self._found:
            return dict(configuration)
        given = self._environment(configuration)
        for others, silent in self._found:
            names = silent & given.keys()
            if names and {n: v for n, v in given.items() if n not in names} == others:
                return left_unset(configuration, names, self.space)
        return dict(configuration)

    @property
    def known(self) -> int:
        """How many are known by now: with more of them more configurations are alike."""
        self._catch_up()
        return len(self._found)

    def _catch_up(self) -> None:
        for measurement in self.measurements[self._seen :]:
            self._seen += 1
            if silent := without_trace(measurement):
                given = self._environment(measurement.configuration)
                others = {name: value for name, value in given.items() if name not in silent}
                self._found.append((others, silent))

    def _environment(self, configuration: Mapping[str, Value]) -> dict[str, Value]:
        """The variables that it sets."""
        names = _searched(self.space)
        return {n: v for n, v in changes(configuration, self.space.baseline).items() if n in names}


class Effects:
    """Names that are equal for configurations with the same effect."""

    def __init__(self, silences: Silences) -> None:
        self._silences = silences
        self._kept: dict[int, tuple[Trial, int, str]] = {}

    def of(self, configuration: Mapping[str, Value]) -> str:
        return key(self._silences.same_effect(configuration))

    def of_trials(self, trials: Iterable[Trial]) -> list[str]:
        """Of each in turn. They are kept, as there may be thousands, until more is known to do
        nothing.
        """
        silences = self._silences.known
        found = []
        for trial in trials:
            kept = self._kept.get(trial.number)
            if kept is None or kept[0] is not trial or kept[1] != silences:
                kept = self._kept[trial.number] = (trial, silences, self.of(trial.parameters))
            found.append(kept[2])
        return found


def _searched(space: ResolvedSpace) -> set[str]:
    return {p.name for p in space.parameters if p.target == "env"}
