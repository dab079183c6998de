"""The guided sampler, as a sampler of Optuna: usable in any study.

    sampler = GuidedSampler(default={"bucket_cap_mb": 25, "workers": 2}, seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)

It proposes the default, then the presets, then what the model of `model.py` expects most of for its
cost, until the model sees nothing left to win (`GuidedSampler.chance`).
"""

from __future__ import annotations

import math
import statistics
import threading
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from nccltune.study.quiet import optuna
from nccltune.study.records import Value
from nccltune.study.sampling.grid import code_of, default_of, has_value, values_of
from nccltune.study.sampling.guide import Guide, Knob
from nccltune.study.sampling.memory import Code, Observation
from nccltune.study.sampling.pure import PureSampler

NOT_RUN = "nccltune:not_run"
"""User attribute of a failed trial that was never run: REJECTED, which is not proposed again, or
WITHDRAWN, which may be.
"""
REJECTED, WITHDRAWN = "rejected", "withdrawn"
LAUNCH = "nccltune:launch"
"""User attribute: equal for trials that were measured in the same launch, and so share its luck."""


class GuidedSampler(PureSampler):
    """See the module. Values are maximised or minimised as the study says; positive ones are taken
    as speeds or times, whose ratios count.
    """

    def __init__(
        self,
        default: Mapping[str, Value] | None = None,
        *,
        presets: Mapping[str, Mapping[str, Value]] | None = None,
        together: Sequence[Collection[str]] = (),
        costly: Collection[str] = (),
        feasible: Callable[[Mapping[str, Value]], bool] | None = None,
        seed: int | None = None,
    ) -> None:
        """`default`: where the search begins; parameters that it lacks begin at their first choice
        or in the middle of their range. `presets`: what to try next, by name, each a change of some
        parameters. `together`: parameters that act on each other. `costly`: parameters whose
        change makes a trial more expensive. `feasible`: whether a configuration may be proposed.
        """
        super().__init__(include_pruned=True)
        self._default = dict(default or {})
        self._presets, self._together = dict(presets or {}), list(together)
        self._costly, self._feasible = frozenset(costly), feasible
        self._seed = int(np.random.default_rng().integers(1 << 31)) if seed is None else seed
        self._lock = threading.RLock()
        self._given: dict[int, Code] = {}
        self._gains: dict[str, float] = {}
        self._left_out: set[str] = set()
        self._repeats: list[tuple[Mapping[str, Value], float, Any]] = []
        self._guide: Guide | None = None
        self._asked_for: dict[str, BaseDistribution] = {}
        self._history: list[Observation] = []
        self._closed: set[Code] = set()
        self._ranked: tuple[int, Any] | None = None
        self._read, self._told = 0, 0
        self._open: list[int] = []
        self._ratios, self._sized, self._unit = True, 1, 1.0
        self.why = ""
        """Of the last proposal: see `guide.Proposal`."""

    # What is told beside the trials.

    def expect(self, gains: Mapping[str, float]) -> None:
        """The most that parameters can win, as ratios above 1: those of large gains go first."""
        self._gains = dict(gains)
        self._guide = None

    def leave_out(self, names: Collection[str]) -> None:
        """Parameters that are not varied any more."""
        self._left_out.update(names)
        self._guide = None

    def repeated(self, values: Mapping[str, Value], value: float, launch: Any) -> None:
        """A configuration measured once more, outside the study's trials."""
        self._repeats.append((dict(values), value, launch))

    # As Optuna asks.

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        found = super().infer_relative_search_space(study, trial)
        return {n: d for n, d in found.items() if n not in self._left_out}

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        with self._lock:  # optimize(n_jobs=...) asks in several threads
            values = self.best_next(study, search_space)
            assert self._guide is not None
            if values is None:  # nothing new is left
                return self._guide.values(self._guide.default)
            # The study does not know its parameters yet: nobody else is to get the same.
            code = self._given[trial.number] = self._guide.code(values)
            self._closed.add(code)
            return values

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """The default, until a trial has had it; then anything, by the seed: a parameter that
        trials do not have in common, or nothing new is left.
        """
        values = values_of(param_distribution, self._default.get(param_name))
        tried = any(param_name in t.params for t in study.get_trials(deepcopy=False))
        if not tried:
            return default_of(values, self._default, param_name)
        key = (self._seed, trial.number, zlib.crc32(param_name.encode()))
        return values[int(np.random.default_rng(key).integers(len(values)))]

    # What else can be asked.

    def best_next(
        self, study: optuna.Study, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Value] | None:
        """The next proposal, None when nothing new is left."""
        self.why = ""
        guide = self._prepared(study, search_space)
        if not guide.knobs:
            return None
        if self._ranked is None or self._ranked[0] != len(self._history):
            live = self._history[-1].code if self._history else None
            self._ranked = (len(self._history), guide.ranked(self._history, live))
        for proposal in self._ranked[1]:
            if self._is_open(proposal.code):
                self.why = proposal.why
                return guide.values(proposal.code)
        return None

    def answer(
        self, study: optuna.Study, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Value] | None:
        """The measured configuration that is best by all that is known: one lucky measurement does
        not make it. None before any has a value.
        """
        guide = self._prepared(study, search_space)
        if all(o.value is None for o in self._history):
            return None
        return guide.values(guide.answer(self._history))

    def chance(
        self,
        study: optuna.Study,
        search_space: Mapping[str, BaseDistribution],
        threshold: float,
    ) -> float:
        """The probability, 0 to 1, that some configuration is better than the best one measured by
        more than the share `threshold` (0.02 is 2 %). 1 before anything is known.
        """
        guide = self._prepared(study, search_space)
        if all(o.value is None for o in self._history):
            return 1.0
        return guide.chance(self._history, self._share(threshold), self._is_open)

    def _is_open(self, code: Code) -> bool:
        """Whether it may be proposed."""
        assert self._guide is not None
        if code in self._closed:
            return False
        return self._feasible is None or self._feasible(self._guide.values(code))

    def _share(self, threshold: float) -> float:
        """The threshold in what the model adds up, where values are no ratios."""
        if self._ratios:
            return threshold
        best = max(abs(o.value) for o in self._history if o.value is not None)
        return threshold * best

    def _prepared(self, study: optuna.Study, search_space: Mapping[str, BaseDistribution]) -> Guide:
        """The guide for this space, with all that the study's trials say."""
        if len(study.directions) > 1:
            raise ValueError("GuidedSampler is for studies with one objective")
        trials = study.get_trials(deepcopy=False)
        varied = {n: d for n, d in search_space.items() if not d.single()}
        if self._guide is None or self._asked_for != varied:
            self._begin(varied)
        if not self._catch_up(trials, study):  # the values are no ratios after all
            self._begin(varied)
            self._catch_up(trials, study)
        assert self._guide is not None
        return self._guide

    def _begin(self, search_space: Mapping[str, BaseDistribution]) -> None:
        knobs = []
        for name, distribution in search_space.items():
            values = values_of(distribution, self._default.get(name))
            default = default_of(values, self._default, name)
            gain = self._gains.get(name)
            knobs.append(Knob(name, values, default, name in self._costly, gain))
        self._guide = Guide(knobs, self._usable(knobs), self._together, seed=self._seed)
        self._asked_for = dict(search_space)
        self._read, self._open, self._told = 0, [], 0
        self._history, self._closed, self._ranked = [], set(), None

    def _usable(self, knobs: Sequence[Knob]) -> dict[str, Mapping[str, Value]]:
        """The presets, as far as all their parameters are searched with these values."""
        known = {k.name: k for k in knobs}

        def fits(preset: Mapping[str, Value]) -> bool:
            return all(n in known and has_value(known[n].values, v) for n, v in preset.items())

        return {name: values for name, values in self._presets.items() if fits(values)}

    def _catch_up(self, trials: Sequence[FrozenTrial], study: optuna.Study) -> bool:
        """Take in what is new. False where a value asks for another scale than those before."""
        assert self._guide is not None
        new = [*(trials[n] for n in self._open), *trials[self._read :]]
        if not self._fits(trials, new):
            return False
        self._read, self._open = len(trials), []
        scale = self._scale(study)
        for configuration, value, launch in self._repeats[self._told :]:
            if (code := code_of(self._guide, configuration)) is not None:
                self._history.append(Observation(code, scale(value), repr(launch)))
        self._told = len(self._repeats)
        for trial in new:
            code = code_of(self._guide, trial.params)
            if not trial.state.is_finished():
                self._open.append(trial.number)
            elif (given := self._given.pop(trial.number, None)) is not None:
                self._closed.discard(given)
            if code is None or self._elsewhere(trial):
                continue
            why = trial.user_attrs.get(NOT_RUN)
            if not trial.state.is_finished() or why == REJECTED:
                self._closed.add(code)
            elif why != WITHDRAWN:
                found = _value_of(trial)
                told = None if found is None else scale(found)
                launch = trial.user_attrs.get(LAUNCH)
                known = None if launch is None else repr(launch)
                self._history.append(Observation(code, told, known))
                self._closed.discard(code)
        return True

    def _elsewhere(self, trial: FrozenTrial) -> bool:
        """Whether a parameter that is left out now was not at its default: of what came of it
        nothing is known for the rest.
        """
        return any(
            trial.params[name] != self._default.get(name, trial.params[name])
            for name in self._left_out & trial.params.keys()
        )

    def _scale(self, study: optuna.Study) -> Callable[[float], float]:
        """Turns a value into what the model adds up: the log of a positive one, else a share of
        how far values are apart; larger is better.
        """
        sign = 1.0 if study.direction == optuna.study.StudyDirection.MAXIMIZE else -1.0
        if self._ratios:
            return lambda value: sign * math.log(value)
        unit = self._unit
        return lambda value: sign * value / unit

    def _fits(self, trials: Sequence[FrozenTrial], new: Sequence[FrozenTrial]) -> bool:
        """Whether the scale suits the values; where not, it does from now on."""
        if self._ratios and all((v := _value_of(t)) is None or v > 0 for t in new):
            return True
        values = [v for t in trials if (v := _value_of(t)) is not None]
        if not self._ratios and (self._sized > 64 or len(values) < 2 * self._sized):
            return True
        # About as far apart as log speeds are, by the values so far: again when there are twice
        # as many, while they are few.
        self._ratios, self._sized = False, len(values)
        self._unit = 10 * (statistics.pstdev(values) or 1.0)
        return False


def _value_of(trial: FrozenTrial) -> float | None:
    """What is known of a finished trial; None where it failed, or gave no finite number."""
    if trial.state == TrialState.COMPLETE:
        value = trial.value
    elif trial.state == TrialState.PRUNED and trial.intermediate_values:
        value = trial.intermediate_values[max(trial.intermediate_values)]
    else:
        return None
    return value if value is not None and math.isfinite(value) else None
