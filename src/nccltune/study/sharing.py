"""One study that several tuners work on: who measures what, and what the others found out."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from nccltune.errors import StudyError, UsageError
from nccltune.space import Parameter, key
from nccltune.study import heartbeat
from nccltune.study.claims import TUNER, Claims, attributes, open_study, running, say
from nccltune.study.definition import Definition, differences
from nccltune.study.folder import StudyPaths, has_records, write_text
from nccltune.study.heartbeat import Heartbeat, Watch, states
from nccltune.study.partners import Confirmer, Elsewhere, Wanted
from nccltune.study.records import AGAIN, Measurement
from nccltune.study.sampling.coding import distribution
from nccltune.study.sampling.estimates import as_proposed
from nccltune.study.shared_storage import Shared

_COMPARED = ("workload", "sampler", "seed", "machine", "site", "unpinned", "space")
_BASELINE = "baseline"
_RECORD, _STATE, _RESULT = "record", "state", "result"


class Exchange:
    """This tuner's side of a shared study. Trials have the number of their claim, with gaps where
    claims were given up; the baseline has 0 whatever its claim's number.
    """

    def __init__(
        self,
        shared: Shared,
        name: str,
        definition: Definition,
        tuner: str,
        folder: str,
        *,
        beat_seconds: float | None = None,
        lost_seconds: float | None = None,
    ) -> None:
        """Join the study of that name, as the tuner that owns the local folder `folder`. What this
        tuner had claimed when it was killed is given up.

        Raises: UsageError listing the differences where it is another study, StudyError.
        """
        self.shared, self.tuner = shared, tuner
        self._parameters: tuple[Parameter, ...] = tuple(definition.space.parameters)
        whole = definition.to_dict()
        about = {part: whole[part] for part in _COMPARED if part in whole}
        self._study, stored = open_study(shared, name, about)
        _refuse_another(shared, name, stored, definition)
        self._ending, _ = open_study(shared, f"{name} (confirmation)", {})
        self._watch = watch = Watch(lost_seconds or heartbeat.LOST_SECONDS)
        self._claims = Claims(shared, self._study, tuner, watch)
        self._confirmations = Claims(shared, self._ending, tuner, watch, self._study)
        self._mine: dict[int, int] = {}
        self._confirming: int | None = None
        for claims in (self._claims, self._confirmations):
            claims.give_up_own("its tuner was killed")
        every = beat_seconds or heartbeat.BEAT_SECONDS
        self._heart = Heartbeat(shared, self._study, tuner, folder, watch, every)

    # Trials.

    def claim(self, wanted: Wanted, limit: int) -> int | None:
        """The number of a trial of ours, if nobody else has claimed that configuration, or one with
        the same effect, before, and fewer than `limit` trials were claimed before it.
        """
        configuration = dict(wanted.configuration)
        mine = self._claims.put(
            {**asdict(wanted), "configuration": configuration},
            {p.name: as_proposed(p, configuration[p.name]) for p in self._parameters},
            {p.name: distribution(p) for p in self._parameters},
        )
        whole = key(configuration)
        # What was asked twice, since no answer came, may have been done twice.
        self._claims.give_up_own("asked twice", but={*self._mine.values(), mine})
        for place, trial in enumerate(self._claims.valid()):
            if trial._trial_id == mine:
                if place >= limit:
                    break
                number = _number(trial)
                self._mine[number] = mine
                return number
            told = trial.user_attrs
            alike = told["effect"] == wanted.effect or key(told["configuration"]) == whole
            # A repetition on purpose is of what was measured already.
            if alike and (wanted.origin != AGAIN or trial.state == TrialState.RUNNING):
                break
        self._claims.give_up(mine, "another tuner was first")
        return None

    def publish(self, number: int, measurement: Measurement) -> bool:
        """Tell the others what came of a trial of ours. False where they have given it up as lost:
        then it may be measured anew, and does not count.
        """
        told = {
            _RECORD: replace(measurement, tuner=self.tuner).to_dict(),
            _STATE: measurement.state,
        }
        value = measurement.value
        if value is None:  # as bad as the worst seen, so that plots and samplers stay away from it
            known = [t.value for t in self._finished() if t.value is not None]
            value = min(known, default=0.0)
        return self._claims.finish(self._mine.pop(number), value, told)

    def withdraw(self, number: int, why: str = "interrupted") -> None:
        """Give a trial of ours up, so that others may measure it."""
        self._claims.give_up(self._mine.pop(number), why)

    def taken(self) -> int:
        """Trials that are finished or under way, of all tuners."""
        return len(self._claims.valid())

    def elsewhere(self) -> list[Elsewhere]:
        """What other tuners measure now. Those that are lost measure nothing."""
        found = running(self._claims.foreign(self._claims.valid()))
        return [
            Elsewhere(
                _number(trial),
                trial.user_attrs[TUNER],
                trial.user_attrs["stage"],
                trial.user_attrs["configuration"],
            )
            for trial in found
        ]

    def news(self, known: Collection[int]) -> list[Measurement]:
        """Finished trials whose numbers are not known yet, the baseline first. Those of other
        tuners have their tuner's name, and no log: that lies with them.

        Raises: StudyError for a record that is none of ours.
        """
        return [
            self._record(trial)
            for trial in sorted(self._finished(), key=_number)
            if _number(trial) not in known
        ]

    def refuse_other_trials(self, known: Collection[int]) -> None:
        """Raises UsageError when the storage lacks trials that the study's own records have."""
        lost = sorted(set(known) - {_number(trial) for trial in self._finished()})
        if lost:
            listed = ", ".join(map(str, lost[:10]))
            raise UsageError(
                f"--storage {self.shared.where}: lacks trials {listed}, which this study has: it "
                "is damaged, or not the storage that they were shared in; give that one as it was, "
                "or another --study name"
            )

    def _finished(self) -> list[FrozenTrial]:
        return [t for t in self._claims.valid() if t.state == TrialState.COMPLETE]

    def _record(self, trial: FrozenTrial) -> Measurement:
        try:
            found = Measurement.from_dict(trial.user_attrs[_RECORD])
        except (AttributeError, TypeError, KeyError, ValueError):
            raise StudyError(
                f"--storage {self.shared.where}: trial {trial.number} has no record of ours"
            ) from None
        failure = found.failure
        if found.tuner != self.tuner and failure is not None:
            failure = {**failure, "log": None}
        tuner = None if found.tuner == self.tuner else found.tuner
        return replace(found, trial=_number(trial), tuner=tuner, failure=failure)

    # The end.

    def at_work(self, searching: bool) -> None:
        """Say whether this tuner still finds something to try. Until it says so, it does."""
        self._heart.at_work(searching)

    def others_at_work(self) -> bool:
        """Whether another tuner, that is not lost, still finds something to try."""
        told = states(self.shared, self._study)
        return any(
            state.get("searching") and not self._watch.lost(tuner, state)
            for tuner, state in told.items()
            if tuner != self.tuner
        )

    def claim_confirmation(self) -> Confirmer | None:
        """None where it is ours to confirm the result, else who does."""
        mine = self._confirmations.put({})
        holder = running(self._confirmations.valid())[0]
        if holder._trial_id == mine:
            self._confirming = mine
            return None
        self._confirmations.give_up(mine, "another tuner was first")
        name = holder.user_attrs[TUNER]
        folder = states(self.shared, self._study).get(name, {}).get("folder", "")
        return Confirmer(name, folder)

    def publish_result(self, result: Mapping[str, Any]) -> None:
        """What the study came to with so many `trials`; it holds until more are finished."""
        say(self.shared, self._ending, _RESULT, {**result, TUNER: self.tuner})
        self.leave_confirmation()

    def leave_confirmation(self) -> None:
        """Others may confirm."""
        if self._confirming is not None:
            self._confirmations.give_up(self._confirming, "done")
            self._confirming = None

    def result(self) -> dict[str, Any] | None:
        """What the study came to, if that was confirmed with all the trials there are."""
        told = attributes(self.shared, self._ending).get(_RESULT)
        if told is None or told["trials"] != len(self._finished()):
            return None
        return dict(told)

    def close(self) -> None:
        """Leave: what is open is given up, and the others need not wait for this tuner. Where the
        storage cannot be reached, they will find that out.
        """
        with contextlib.suppress(StudyError):
            self.leave_confirmation()
            for number in tuple(self._mine):
                self.withdraw(number)
        with contextlib.suppress(StudyError):
            self._heart.stop()


def _number(trial: FrozenTrial) -> int:
    """The first claim of a study is one of the baseline, so no other trial has the number 0."""
    return 0 if trial.user_attrs["origin"] == _BASELINE else trial.number


def _refuse_another(
    shared: Shared, name: str, stored: Mapping[str, Any], definition: Definition
) -> None:
    found = [f"  {line}" for line in differences(stored, definition)]
    if found:
        raise UsageError(
            "\n".join([f"--storage {shared.where}: study {name} is another study:", *found])
            + "\ngive all its tuners the same command, or this one another --study name"
        )


def own_tuner(paths: StudyPaths) -> str:
    """The name under which this study folder takes part, drawn at random when it is begun. Only
    under the lock.

    Raises: UsageError where the study was begun without others.
    """
    if paths.tuner.exists():
        return paths.tuner.read_text(encoding="utf-8").strip()
    if has_records(paths):
        raise UsageError(
            f"{paths.folder}: this study was begun without --storage, and goes on without; give "
            "another --study name to share one"
        )
    name = secrets.token_hex(4)
    write_text(paths.tuner, f"{name}\n")
    return name
