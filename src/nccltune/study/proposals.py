"""Optuna's part: ask for configurations, tell what came of them. Its journal follows ours."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

from nccltune.space import Parameter, Value
from nccltune.study.records import Stage, Trial

_STARTUP_TRIALS = 8
_TRIAL = "trial"

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Proposal:
    """What the sampler proposes: values of the parameters that its stage searches."""

    stage: Stage
    values: Mapping[str, Value]
    trial: optuna.Trial


class Proposer:
    """One Optuna study a stage, in one journal: samples/s at different batch sizes do not compare,
    and a sampler shown both would learn nothing but that large batches are fast.
    """

    def __init__(
        self,
        journal: Path,
        parameters: Mapping[Stage, Sequence[Parameter]],
        trials: Sequence[Trial],
        seed: int,
    ) -> None:
        self._parameters = {
            stage: {parameter.name: parameter for parameter in searched}
            for stage, searched in parameters.items()
        }
        self._distributions = {
            stage: {parameter.name: distribution(parameter) for parameter in searched}
            for stage, searched in parameters.items()
        }
        self._seed = seed
        try:
            self._studies = self._open(journal, trials)
            agrees = self._agrees(trials)
        except Exception:  # damaged, in whatever way: the records are the truth
            agrees = False
        if not agrees:
            journal.unlink(missing_ok=True)
            self._studies = self._open(journal, trials)
            for trial in trials:
                self.tell(trial)

    def _open(self, journal: Path, trials: Sequence[Trial]) -> dict[Stage, optuna.Study]:
        studies: dict[Stage, optuna.Study] = {}
        # Left by a killed tuner; the study's own lock says that nobody else writes here.
        journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            storage = JournalStorage(JournalFileBackend(str(journal)))
            for stage in self._distributions:
                sampler = optuna.samplers.TPESampler(
                    multivariate=True,
                    n_startup_trials=_STARTUP_TRIALS,
                    # resumed: not the same draws again
                    seed=(self._seed + len(trials)) % (1 << 32),
                )
                studies[stage] = optuna.create_study(
                    storage=storage,
                    study_name=stage,
                    sampler=sampler,
                    direction="maximize",
                    load_if_exists=True,
                )
        return studies

    def _agrees(self, trials: Sequence[Trial]) -> bool:
        """Whether Optuna has been told exactly what the records say."""
        told: set[tuple[str, int]] = set()
        for stage, study in self._studies.items():
            for frozen in study.get_trials(deepcopy=False):
                if not frozen.state.is_finished():
                    return False  # asked, then killed
                if _TRIAL in frozen.user_attrs:
                    told.add((stage, frozen.user_attrs[_TRIAL]))
        return told == {(trial.stage, trial.number) for trial in trials}

    def leave_out(self, names: Collection[str], stage: Stage) -> bool:
        """Propose these no more in a stage. Returns whether anything is left to propose."""
        for parts in (self._distributions, self._parameters):
            kept = {name: found for name, found in parts[stage].items() if name not in names}
            parts[stage] = kept  # type: ignore[assignment]
        return bool(self._distributions[stage])

    def ask(self, stage: Stage) -> Proposal:
        study = self._studies[stage]
        trial = study.ask(fixed_distributions=self._distributions[stage])
        return Proposal(stage, dict(trial.params), trial)

    def reject(self, proposal: Proposal, value: float | None) -> None:
        """Tell of a proposal that was not run: `value` is that of its twin that was measured, None
        where it broke a rule (told as the worst seen, so that it is not proposed again).
        """
        study = self._studies[proposal.stage]
        study.tell(proposal.trial, value if value is not None else self._worst(study))

    def withdraw(self, proposal: Proposal) -> None:
        """Take back a proposal that was not run, without telling the sampler anything of it."""
        self._studies[proposal.stage].tell(proposal.trial, state=TrialState.FAIL)

    def tell(self, trial: Trial, proposal: Proposal | None = None) -> None:
        """Tell of a trial that is on record. One that the sampler did not propose (baseline,
        presets, batch sizes in turn) is added as it is.
        """
        study = self._studies[trial.stage]
        value = trial.value if trial.value is not None else self._worst(study)
        if proposal is not None:
            proposal.trial.set_user_attr(_TRIAL, trial.number)
            proposal.trial.set_user_attr("state", trial.state)
            study.tell(proposal.trial, value)
            return
        distributions = self._distributions[trial.stage]
        study.add_trial(
            create_trial(
                state=TrialState.COMPLETE,
                params={
                    name: _as_proposed(parameter, trial.parameters[name])
                    for name, parameter in self._parameters[trial.stage].items()
                },
                distributions=dict(distributions),
                value=value,
                user_attrs={_TRIAL: trial.number, "state": trial.state},
            )
        )

    @staticmethod
    def _worst(study: optuna.Study) -> float:
        values = [t.value for t in study.get_trials(deepcopy=False) if t.value is not None]
        return min(values, default=0.0)


def _as_proposed(parameter: Parameter, value: Value) -> Value:
    """A value that the sampler can have proposed. One that does nothing in a configuration is null
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


def distribution(parameter: Parameter) -> BaseDistribution:
    """Optuna's distribution for a parameter of the space."""
    if parameter.choices is not None:
        return CategoricalDistribution(list(parameter.choices))
    span = parameter.range
    assert span is not None
    if span.type == "int":
        step = 1 if span.step is None else int(span.step)
        return IntDistribution(int(span.low), int(span.high), log=span.log, step=step)
    return FloatDistribution(span.low, span.high, log=span.log, step=span.step)
