"""The guided sampler, as a sampler of Optuna: usable in any study.

    sampler = GuidedSampler(default={"bucket_cap_mb": 25, "workers": 2}, seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)

It proposes the default, then the presets, then what the model of `model.py` expects most of for its
cost, until the model sees nothing left to win (`GuidedSampler.chance`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.trial import FrozenTrial, TrialState

from nccltune.study.records import Value
from nccltune.study.sampling.guide import Code, Guide, Knob, Observation

NOT_RUN = "not run"
"""User attribute of a failed trial that was never run: rejected, withdrawn, lost. Nothing is known
of its configuration, and it is not proposed again.
"""
LAUNCH = "launch"
"""User attribute: equal for trials that were measured in the same launch, and so share its luck."""

_MOST_VALUES = 33  # of a range: a longer one is looked at in so many places


class GuidedSampler(BaseSampler):
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
        self._default = dict(default or {})
        self._presets, self._together = dict(presets or {}), list(together)
        self._costly, self._feasible = frozenset(costly), feasible
        self._seed = int(np.random.default_rng().integers(1 << 31)) if seed is None else seed
        self._space = IntersectionSearchSpace()
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

    # What is told beside the trials.

    def expect(self, gains: Mapping[str, float]) -> None:
        """The most that parameters can win, as ratios above 1: those of large gains go first."""
        self._gains = dict(gains)
        self._guide = None

    def leave_out(self, names: Collection[str]) -> None:
        """Parameters that are not varied any more."""
        self._left_out.update(names)

    def repeated(self, values: Mapping[str, Value], value: float, launch: Any) -> None:
        """A configuration measured once more, outside the study's trials."""
        self._repeats.append((dict(values), value, launch))

    # As Optuna asks.

    def reseed_rng(self) -> None:
        """Proposals follow from seed and trials alone."""

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        found = self._space.calculate(study)
        return {n: d for n, d in found.items() if not d.single() and n not in self._left_out}

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        if not search_space:
            return {}
        return dict(self.best_next(study, search_space) or {})

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        values = _values(param_distribution, self._default.get(param_name))
        return _default(values, self._default, param_name)

    # What else can be asked.

    def best_next(
        self, study: optuna.Study, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Value] | None:
        """The next proposal, None when nothing new is left."""
        guide = self._prepared(study, search_space)
        if self._ranked is None or self._ranked[0] != len(self._history):
            live = self._history[-1].code if self._history else None
            self._ranked = (len(self._history), guide.ranked(self._history, live))
        for proposal in self._ranked[1]:
            values = guide.values(proposal.code)
            if proposal.code not in self._closed and (
                self._feasible is None or self._feasible(values)
            ):
                self.why = proposal.why
                return values
        return None

    why = ""
    """Of the last proposal: see `guide.Proposal`."""

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
        return guide.chance(self._history, threshold, self._closed)

    def _prepared(self, study: optuna.Study, search_space: Mapping[str, BaseDistribution]) -> Guide:
        """The guide for this space, with all that the study's trials say."""
        trials = study.get_trials(deepcopy=False)
        if self._guide is None or self._asked_for != dict(search_space):
            self._begin(search_space)
        if not self._catch_up(trials, study):  # the values are no ratios after all
            self._begin(search_space)
            self._catch_up(trials, study)
        assert self._guide is not None
        return self._guide

    def _begin(self, search_space: Mapping[str, BaseDistribution]) -> None:
        knobs = []
        for name, distribution in search_space.items():
            values = _values(distribution, self._default.get(name))
            default = _default(values, self._default, name)
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
            return all(n in known and _has(known[n].values, v) for n, v in preset.items())

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
            if (code := _code(self._guide, configuration)) is not None:
                self._history.append(Observation(code, scale(value), launch))
        self._told = len(self._repeats)
        for trial in new:
            code = _code(self._guide, trial.params)
            if not trial.state.is_finished():
                self._open.append(trial.number)
            if code is None:
                continue
            if not trial.state.is_finished() or trial.user_attrs.get(NOT_RUN):
                self._closed.add(code)
            else:
                found = _value_of(trial)
                told = None if found is None else scale(found)
                self._history.append(Observation(code, told, trial.user_attrs.get(LAUNCH)))
                self._closed.discard(code)
        return True

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


def _values(distribution: BaseDistribution, default: Value) -> tuple[Value, ...]:
    """The values that are looked at."""
    if isinstance(distribution, CategoricalDistribution):
        return tuple(distribution.choices)
    assert isinstance(distribution, (optuna.distributions.IntDistribution, FloatDistribution))
    low, high, whole = (
        distribution.low,
        distribution.high,
        not isinstance(distribution, FloatDistribution),
    )
    if distribution.log:
        places = np.geomspace(low, high, _MOST_VALUES)
    elif distribution.step and (high - low) / distribution.step < _MOST_VALUES:
        places = np.arange(low, high + distribution.step / 2, distribution.step)
    else:
        places = np.linspace(low, high, _MOST_VALUES)
    found = {_on_step(float(p), distribution) for p in places} | {low, high}
    if isinstance(default, (int, float)) and distribution._contains(default):
        found.add(default)
    return tuple(sorted(int(v) if whole else float(v) for v in found))


def _on_step(value: float, distribution: Any) -> float:
    if not distribution.step:
        return value
    steps = round((value - distribution.low) / distribution.step)
    return float(min(distribution.low + steps * distribution.step, distribution.high))


def _default(values: Sequence[Value], given: Mapping[str, Value], name: str) -> Value:
    if name in given and _has(values, given[name]):
        return given[name]
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    return values[len(values) // 2] if numbers and len(values) > 2 else values[0]


def _has(values: Sequence[Value], value: Value) -> bool:
    return any(v == value and isinstance(v, bool) == isinstance(value, bool) for v in values)


def _code(guide: Guide, values: Mapping[str, Value]) -> Code | None:
    """Of a configuration whose values lie between those looked at the nearest; None where a
    parameter is missing.
    """
    places = []
    for knob in guide.knobs:
        if knob.name not in values:
            return None
        value = values[knob.name]
        try:
            places.append(knob.place(value))
        except ValueError:
            if not isinstance(value, (int, float)):
                return None
            near = [
                (abs(v - value), i)
                for i, v in enumerate(knob.values)
                if isinstance(v, (int, float))
            ]
            if not near:
                return None
            places.append(min(near)[1])
    return tuple(places)
