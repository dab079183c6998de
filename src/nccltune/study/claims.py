"""Claims of several tuners in a shared storage, one Optuna trial each: of those in each other's way
the first one holds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from nccltune.study.heartbeat import Watch, states
from nccltune.study.shared_storage import Shared

_FIRST_WORDS_SECONDS = 10.0
TUNER = "tuner"
_WHY = "given up"


def open_study(
    shared: Shared, name: str, about: Mapping[str, Any], *, patience: float = _FIRST_WORDS_SECONDS
) -> tuple[int, dict[str, Any]]:
    """The id of the Optuna study of that name, made if need be, and what it is about: by whoever
    made it. A maker that was killed before it could say so is waited for `patience` seconds.

    Raises: StudyError.
    """
    storage = shared.storage
    try:
        study = shared.ask(lambda: storage.create_new_study([StudyDirection.MAXIMIZE], name))
        made = True
    except DuplicatedStudyError:
        study, made = shared.ask(lambda: storage.get_study_id_from_name(name)), False
    until = time.monotonic() + patience
    while not made:
        said = attributes(shared, study).get("definition")
        if said is not None:
            return study, dict(said)
        made = time.monotonic() > until
        time.sleep(0.1)
    say(shared, study, "definition", about)
    return study, dict(attributes(shared, study)["definition"])


def attributes(shared: Shared, study: int) -> dict[str, Any]:
    """What was said of a study."""
    return shared.ask(lambda: shared.storage.get_study_user_attrs(study))


def say(shared: Shared, study: int, name: str, what: Mapping[str, Any]) -> None:
    """Something of a study, in place of what was said before under that name."""
    shared.ask(lambda: shared.storage.set_study_user_attr(study, name, dict(what)))


class Claims:
    """Those in one Optuna study. A trial there is running while its tuner works on it, complete
    when it was published, and failed when it was given up: by its tuner, or by others when that was
    lost. A state that has ended never changes again, so nothing else has to be agreed upon.
    """

    def __init__(
        self, shared: Shared, study: int, tuner: str, watch: Watch, beats: int | None = None
    ) -> None:
        """`beats`: the study in which tuners count, if not this one."""
        self._shared, self._study, self._tuner, self._watch = shared, study, tuner, watch
        self._beats = study if beats is None else beats

    def put(
        self,
        attributes: Mapping[str, Any],
        parameters: Mapping[str, Any] | None = None,
        distributions: Mapping[str, BaseDistribution] | None = None,
    ) -> int:
        """A claim of ours, as the last one; returns the id of its trial."""
        template = create_trial(
            state=TrialState.RUNNING,
            params=dict(parameters or {}),
            distributions=dict(distributions or {}),
            user_attrs={**attributes, TUNER: self._tuner},
        )
        create = self._shared.storage.create_new_trial
        return self._shared.ask(lambda: create(self._study, template))

    def valid(self) -> list[FrozenTrial]:
        """All that were not given up, oldest first. Those of lost tuners are given up here."""
        read = self._shared.storage.get_all_trials
        trials = self._shared.ask(lambda: read(self._study, deepcopy=False))
        living: list[FrozenTrial] = []
        told: dict[str, Mapping[str, Any]] | None = None
        for trial in sorted(trials, key=lambda t: t._trial_id):
            if trial.state == TrialState.RUNNING and not self._own(trial):
                told = states(self._shared, self._beats) if told is None else told
                name = trial.user_attrs[TUNER]
                if self._watch.lost(name, told.get(name)):
                    self.give_up(trial._trial_id, "its tuner was lost")
                    continue
            if trial.state != TrialState.FAIL:
                living.append(trial)
        return living

    def _own(self, trial: FrozenTrial) -> bool:
        return bool(trial.user_attrs[TUNER] == self._tuner)

    def give_up(self, trial: int, why: str) -> None:
        """End a claim without a result; nothing where it has ended already."""
        with contextlib.suppress(UpdateFinishedTrialError):
            self._end(trial, TrialState.FAIL, None, {_WHY: why})

    def finish(self, trial: int, value: float, attributes: Mapping[str, Any]) -> bool:
        """Publish what came of it; False where others have given it up meanwhile."""
        try:
            self._end(trial, TrialState.COMPLETE, [value], attributes)
        except UpdateFinishedTrialError:
            return False
        return True

    def _end(
        self,
        trial: int,
        state: TrialState,
        values: Sequence[float] | None,
        attributes: Mapping[str, Any],
    ) -> None:
        storage = self._shared.storage

        def end() -> None:
            for name, found in attributes.items():
                storage.set_trial_user_attr(trial, name, found)
            storage.set_trial_state_values(trial, state, values)

        self._shared.ask(end)

    def give_up_own(self, why: str, but: Collection[int] = ()) -> None:
        """All that this tuner has open, for instance since it was killed, `but` for these."""
        for trial in running(self.valid()):
            if self._own(trial) and trial._trial_id not in but:
                self.give_up(trial._trial_id, why)

    def foreign(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Those of other tuners."""
        return [trial for trial in trials if not self._own(trial)]


def running(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Those that are still worked on."""
    return [trial for trial in trials if trial.state == TrialState.RUNNING]
