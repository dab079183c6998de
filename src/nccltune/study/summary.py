"""A study as it stands, read from its records."""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nccltune.errors import StudyError
from nccltune.space import ResolvedSpace, Value, changes, key
from nccltune.stats.verdict import MOST
from nccltune.study.blocks import CandidateFailed, recorded
from nccltune.study.confirm import Answer, Confirmation
from nccltune.study.effects import acting, without_trace
from nccltune.study.folder import StudyPaths, read_definition
from nccltune.study.proving import Proof, proof_in
from nccltune.study.records import (
    Measurement,
    Stage,
    Trial,
    best_of,
    larger_winner,
    merged,
    noise_speeds,
)
from nccltune.study.sampling.estimates import candidates
from nccltune.study.store import Store


@dataclass(frozen=True)
class Ranked:
    """A configuration and what it is worth by all its measurements in the search: the value that
    the choice goes by, samples/s. `trials` are the numbers of those that measured it.
    """

    trial: Trial
    value: float
    trials: tuple[int, ...]
    measured: int
    """How often, the baseline's launches for the noise included."""


@dataclass(frozen=True)
class Summary:
    """A study as it stands. Everything that `search` and `show` tell is in here."""

    paths: StudyPaths
    definition: Mapping[str, Any]
    space: ResolvedSpace
    trials: tuple[Trial, ...]
    measurements: Mapping[str, Measurement]

    @classmethod
    def read(cls, paths: StudyPaths) -> Summary:
        """From the folder; does not change it. Raises UsageError when no study is there."""
        definition = read_definition(paths)
        return cls.of(Store(paths, repair=False), definition)

    @classmethod
    def of(cls, store: Store, definition: Mapping[str, Any]) -> Summary:
        return cls(
            paths=store.paths,
            definition=definition,
            space=ResolvedSpace.from_dict(definition["space"]),
            trials=tuple(store.trials),
            measurements={m.id: m for m in store.measurements},
        )

    @functools.cached_property
    def noise(self) -> list[float]:
        """Samples/s of the baseline's launches in the search."""
        return noise_speeds(self.measurements.values())

    @functools.cached_property
    def own(self) -> Answer | None:
        """What confirmation says at the user's batch size; None before the baseline is measured.
        Newer trials that were not compared yet do not undo what was confirmed before.
        """
        if not self.trials:
            return None
        confirmation = self._confirmation
        answer = confirmation.own_batch()
        if answer.settled:
            return answer
        found = self.measurements.values()
        confirmed = {key(m.configuration) for m in found if m.compared is not None}
        if not confirmed:
            return answer
        # As measured too: earlier versions confirmed what had no effect along with the rest.
        whole = [t for t, acts in zip(self.trials, self.acting, strict=True) if t != acts]
        for trial in [*reversed(self.acting), *reversed(whole)]:
            sound = trial.stage == "search" and trial.state == "complete"
            if sound and key(trial.parameters) in confirmed:
                with contextlib.suppress(CandidateFailed):
                    earlier = confirmation.of_trial(trial)
                    if earlier.faster:
                        return earlier
        return answer

    @functools.cached_property
    def with_larger(self) -> Answer | None:
        """What it says of the fastest larger batch, if one is faster in the search."""
        own, larger = self.own, larger_winner(self.acting)
        if own is None or larger is None:
            return None
        return self._confirmation.larger_batch(own, larger)

    @functools.cached_property
    def _confirmation(self) -> Confirmation:
        found = list(self.measurements.values())
        seed = int(self.definition["seed"])
        return Confirmation(self.space, self._candidates, self.noise, MOST, recorded(found), seed)

    @functools.cached_property
    def _candidates(self) -> list[Trial]:
        """The trials with the values that finalists are chosen by."""
        found = list(self.measurements.values())
        return candidates(self.acting, found, self.space, self.definition["sampler"])

    @functools.cached_property
    def acting(self) -> list[Trial]:
        """The trials without the variables that had no effect in their launches."""
        return acting(self.trials, self.measurements.values(), self.space)

    @functools.cached_property
    def proof(self) -> Proof | None:
        """What NCCL's log says of the winner at the user's batch size, if it was asked."""
        if self.own is None or not self.own.faster:
            return None
        found = list(self.measurements.values())
        return proof_in(found, self.trials[0].parameters, self.own.configuration)

    def without_effect(self, measurement: Measurement) -> list[str]:
        """Searched variables that were set and that NCCL never came to read in that launch."""
        searched = [p.name for p in self.space.parameters if p.target == "env"]
        silent = without_trace(measurement)
        return [name for name in searched if name in silent]

    def given_to(self, configuration: Mapping[str, Value]) -> Measurement:
        """A measurement of that configuration: what ranks were given for it.

        Raises: KeyError where it was never measured.
        """
        name = key(configuration)
        for measurement in self.measurements.values():
            if key(measurement.configuration) == name:
                return measurement
        raise KeyError(name)

    def check(self) -> None:
        """Raises StudyError when records hold something else than what we write."""
        try:
            for trial in self.trials:
                measurement = self.measurement(trial)
                text = f"{trial.seconds:.1f} {trial.value or 0.0:.1f} {trial.state.upper()}"
                assert text and isinstance(trial.number, int) and key(trial.parameters)
                assert isinstance(measurement.effective["env"], dict)
                assert isinstance(measurement.nccl, (dict, type(None)))
                if measurement.result is not None:
                    windows = measurement.result["windows"]
                    assert isinstance(windows, Sequence) and not isinstance(windows, str)
            self.ranking("search"), self.ranking("batch"), self.failures(), self.time_spent()
            _ = self.winner, self.larger
            assert (self.own is None) == (not self.trials)
            assert self.with_larger is None or self.larger is not None
        except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError) as why:
            raise StudyError(
                f"{self.paths.folder}: its records are damaged ({type(why).__name__}: {why}); "
                "restore the files"
            ) from why

    @property
    def unpinned(self) -> list[str]:
        """Variables of the site that no launch had."""
        return list(self.definition.get("unpinned", ()))

    @property
    def baseline(self) -> Trial | None:
        return self.trials[0] if self.trials else None

    def best(self, stage: Stage) -> Trial | None:
        return best_of(list(self.trials), stage)

    @property
    def winner(self) -> Trial | None:
        """The fastest at the user's own batch size; the baseline itself when nothing beat it."""
        return self.best("search")

    @property
    def larger(self) -> Trial | None:
        """The fastest with a larger batch, if it is faster than the winner."""
        return larger_winner(self.trials)

    def measurement(self, trial: Trial) -> Measurement:
        return self.measurements[trial.measurements[-1]]

    def changes(self, trial: Trial) -> dict[str, Value]:
        return changes(trial.parameters, self.space.baseline)

    @functools.cached_property
    def usual(self) -> float | None:
        """Samples/s of the baseline that candidates are held against in the search."""
        if self.noise:
            return statistics.median(self.noise)
        return self.trials[0].value if self.trials else None

    def ranking(self, stage: Stage) -> list[Ranked]:
        """The configurations that were measured to the end, fastest first."""
        alike: dict[str, list[int]] = {}
        for trial in self.acting:
            if trial.stage == stage and trial.value is not None:
                alike.setdefault(key(trial.parameters), []).append(trial.number)
        told = [t for t in self._candidates if t.stage == stage and t.state == "complete"]
        told = merged(told) if stage == "batch" else told  # the choice goes by the mean
        found = self.measurements.values()
        repeated = sum(m.purpose == "noise" and m.value is not None for m in found)
        ranked = [
            Ranked(trial, value, tuple(numbers), len(numbers) + (0 in numbers) * repeated)
            for trial in told
            for numbers in [alike[key(trial.parameters)]]
            if (value := self.usual if 0 in numbers else trial.value) is not None
        ]
        return sorted(ranked, key=lambda each: -each.value)

    def failures(self) -> dict[str, int]:
        kinds = [t.failure for t in self.trials if t.failure]
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}

    def time_spent(self) -> dict[str, float]:
        """Seconds of all trials: launching, warming up, measuring, checking, everything else."""
        phases = ("launching", "warming up", "measuring", "checking", "other")
        spent = dict.fromkeys(phases, 0.0)
        names = {
            "host": "launching",
            "start": "launching",
            "close": "launching",
            "check": "checking",
            "verify": "checking",
            "build": "warming up",
            "first_step": "warming up",
            "warmup": "warming up",
            "measure": "measuring",
        }
        for measurement in self.measurements.values():
            for phase, seconds in measurement.seconds.items():
                if phase != "wait":  # the other group measured then
                    spent[names.get(phase, "other")] += seconds
        return spent
