"""Optuna's part: ask for configurations, tell what came of them. Its journal follows ours."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from optuna.samplers import BaseSampler
from optuna.storages import JournalStorage
from optuna.trial import TrialState, create_trial

from nccltune.space import Parameter, Value
from nccltune.study.journal import Journal
from nccltune.study.quiet import optuna
from nccltune.study.records import AGAIN, Stage, Trial
from nccltune.study.sampling.choosing import Choice
from nccltune.study.sampling.estimates import as_proposed
from nccltune.study.sampling.gp import GpSampler
from nccltune.study.sampling.guided import (
    LAUNCH,
    NOT_RUN,
    REJECTED,
    WITHDRAWN,
    GuidedSampler,
)

_TRIAL = "trial"


@dataclass(frozen=True)
class Proposal:
    """What the sampler proposes: values of the parameters that its stage searches."""

    stage: Stage
    values: Mapping[str, Value]
    trial: optuna.Trial
    why: str = ""
    """What the guided sampler has it from: a preset, its walk, or to measure it again."""

    @property
    def again(self) -> bool:
        """Whether a configuration that was measured is to be measured once more, on purpose."""
        return self.why == AGAIN


class Proposer:
    """One Optuna study a stage, in one journal: samples/s at different batch sizes do not compare,
    and a sampler shown both would learn nothing but that large batches are fast.
    """

    def __init__(
        self,
        journal: Path,
        parameters: Mapping[Stage, Sequence[Parameter]],
        trials: Sequence[Trial],
        choice: Choice,
        launch: Callable[[Trial], int | None] = lambda _trial: None,
    ) -> None:
        """`launch`: the number of the launch that measured a trial, where it is known."""
        self._parameters = {
            stage: {parameter.name: parameter for parameter in searched}
            for stage, searched in parameters.items()
        }
        self._codings = {
            stage: {parameter.name: choice.coding(parameter) for parameter in searched}
            for stage, searched in parameters.items()
        }
        self._distributions = {
            stage: {name: coding.distribution for name, coding in codings.items()}
            for stage, codings in self._codings.items()
        }
        self._choice, self._launch = choice, launch
        self._made: dict[Stage, BaseSampler] = {}
        try:
            self._studies, _ = self._open(journal, trials)
            agrees = self._agrees(trials)
        except Exception:  # damaged, in whatever way: the records are the truth
            agrees = False
        if not agrees:
            journal.unlink(missing_ok=True)
            self._studies, backend = self._open(journal, trials)
            with backend.at_once():
                for trial in trials:
                    self.tell(trial)

    def _open(
        self, journal: Path, trials: Sequence[Trial]
    ) -> tuple[dict[Stage, optuna.Study], Journal]:
        studies: dict[Stage, optuna.Study] = {}
        # Left by a killed tuner; the study's own lock says that nobody else writes here.
        journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            backend = Journal(journal)
            storage = JournalStorage(backend)
            for stage in self._distributions:
                # resumed: not the same draws again
                sampler = self._made[stage] = self._choice.sampler(stage, len(trials))
                studies[stage] = optuna.create_study(
                    storage=storage,
                    study_name=stage,
                    sampler=sampler,
                    direction="maximize",
                    load_if_exists=True,
                )
        return studies, backend

    def _agrees(self, trials: Sequence[Trial]) -> bool:
        """Whether Optuna has been told exactly what the records say."""
        told: set[tuple[str, int]] = set()
        for stage, study in self._studies.items():
            for frozen in study.get_trials(deepcopy=False):
                if not frozen.state.is_finished():
                    return False  # asked, then killed
                if _TRIAL in frozen.user_attrs:
                    if frozen.params.keys() != self._parameters[stage].keys():
                        return False  # some were left out then
                    told.add((stage, frozen.user_attrs[_TRIAL]))
        return told == {(trial.stage, trial.number) for trial in trials}

    def leave_out(self, names: Collection[str], stage: Stage) -> bool:
        """Propose these no more in a stage. Returns whether anything is left to propose."""
        for parts in (self._distributions, self._parameters):
            kept = {name: found for name, found in parts[stage].items() if name not in names}
            parts[stage] = kept  # type: ignore[assignment]
        if (sampler := self.guided(stage)) is not None:
            sampler.leave_out(names)
        return bool(self._distributions[stage])

    def ask(self, stage: Stage) -> Proposal:
        study = self._studies[stage]
        trial = study.ask(fixed_distributions=self._distributions[stage])
        sampler = self.guided(stage)
        why = "" if sampler is None else sampler.why
        codings = self._codings[stage]
        values = {name: codings[name].to_value(code) for name, code in trial.params.items()}
        return Proposal(stage, values, trial, why)

    @staticmethod
    def origin(proposal: Proposal) -> str:
        """Where a trial comes from, as records say it."""
        return proposal.why if proposal.why.startswith("preset") else "sampler"

    def as_params(self, values: Mapping[str, Value], stage: Stage) -> dict[str, Value]:
        """A configuration as the sampler of a stage would have proposed it."""
        codings = self._codings[stage]
        return {
            name: codings[name].to_code(as_proposed(parameter, values[name]))
            for name, parameter in self._parameters[stage].items()
        }

    def close(self) -> None:
        """End what samplers have started."""
        for sampler in self._made.values():
            if isinstance(sampler, GpSampler):
                sampler.close()

    def guided(self, stage: Stage) -> GuidedSampler | None:
        """The sampler of a stage, where it is ours."""
        sampler = self._made[stage]
        return sampler if isinstance(sampler, GuidedSampler) else None

    def chance(self, stage: Stage, threshold: float) -> float:
        """The probability that something is better by more than `threshold` than what was measured;
        1 where the sampler has no opinion.
        """
        sampler = self.guided(stage)
        if sampler is None:
            return 1.0
        return sampler.chance(self._studies[stage], self._distributions[stage], threshold)

    def reject(self, proposal: Proposal, value: float | None) -> None:
        """Tell of a proposal that was not run: `value` is that of its twin that was measured, None
        where it broke a rule (told as the worst seen, so that it is not proposed again).
        """
        study = self._studies[proposal.stage]
        if self.guided(proposal.stage) is not None:
            self._not_run(proposal, REJECTED)
            return
        study.tell(proposal.trial, value if value is not None else self._worst(study))

    def withdraw(self, proposal: Proposal) -> None:
        """Take back a proposal that was not run, without telling the sampler anything of it."""
        self._not_run(proposal, WITHDRAWN)

    def _not_run(self, proposal: Proposal, why: str) -> None:
        proposal.trial.set_user_attr(NOT_RUN, why)
        self._studies[proposal.stage].tell(proposal.trial, state=TrialState.FAIL)

    def tell(self, trial: Trial, proposal: Proposal | None = None) -> None:
        """Tell of a trial that is on record. One that the sampler did not propose (baseline,
        presets, batch sizes in turn) is added as it is.
        """
        study = self._studies[trial.stage]
        attributes = {_TRIAL: trial.number, "state": trial.state}
        if (launch := self._launch(trial)) is not None:
            attributes[LAUNCH] = launch
        value, state = trial.value, TrialState.COMPLETE
        if value is None and self.guided(trial.stage) is not None:
            state = TrialState.FAIL  # it knows what to make of a failure
        elif value is None:
            value = self._worst(study)
        if proposal is not None:
            for name, attribute in attributes.items():
                proposal.trial.set_user_attr(name, attribute)
            study.tell(proposal.trial, value, state=state)
            return
        distributions = self._distributions[trial.stage]
        study.add_trial(
            create_trial(
                state=state,
                params=self.as_params(trial.parameters, trial.stage),
                distributions=dict(distributions),
                value=value,
                user_attrs=attributes,
            )
        )

    @staticmethod
    def _worst(study: optuna.Study) -> float:
        values = [t.value for t in study.get_trials(deepcopy=False) if t.value is not None]
        return min(values, default=0.0)
