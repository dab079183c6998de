"""One parameter at a time, as a sampler of Optuna: usable in any study.

    sampler = WalkSampler(default={"bucket_cap_mb": 25, "workers": 2}, seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)

From the default on, it proposes each other value of one parameter beside the best configuration so
far, goes on with the best, takes the next parameter, and passes through all of them again until a
whole pass changes nothing. What it proposes then is drawn from what was not tried.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from nccltune.space import Value
from nccltune.study.quiet import optuna
from nccltune.study.sampling.grid import default_of, values_of
from nccltune.study.sampling.pure import PureSampler

_FEW = 2000  # configurations of which all can be looked at
_DRAWS = 1000

Key = tuple[tuple[bool, Value], ...]
"""Of a configuration: True and 1 are two values."""


class WalkSampler(PureSampler):
    """See the module. Its proposals follow from the seed and the study's trials alone, so that a
    study that goes on later proposes the same. What was proposed once, failed or was never run is
    not proposed again.
    """

    def __init__(
        self,
        default: Mapping[str, Value] | None = None,
        *,
        order: Sequence[str] | None = None,
        feasible: Callable[[Mapping[str, Value]], bool] | None = None,
        seed: int | None = None,
    ) -> None:
        """`default`: where the walk begins; parameters that it lacks begin at their first choice or
        in the middle of their range. `order`: the parameters as they are gone through, those that
        it lacks after the others; None: shuffled by the seed. `feasible`: whether a configuration
        may be proposed.
        """
        super().__init__()
        self._default = dict(default or {})
        self._order = None if order is None else list(order)
        self._feasible = feasible
        self._seed = random.randrange(1 << 31) if seed is None else seed

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        return dict(self.best_next(study, search_space) or {}) if search_space else {}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        values = values_of(param_distribution, self._default.get(param_name))
        return default_of(values, self._default, param_name)

    def best_next(
        self, study: optuna.Study, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Value] | None:
        """The next proposal; None when nothing new is left."""
        trials = study.get_trials(deepcopy=False)
        walk = _Walk(self._values(search_space), self._ordered(search_space), self._feasible)
        for trial in trials:
            if trial.params.keys() >= search_space.keys():
                walk.tell(trial, larger=study.direction == StudyDirection.MAXIMIZE)
        start = {n: default_of(v, self._default, n) for n, v in walk.values.items()}
        if walk.is_open(start):
            return start
        found = next(walk.beside_the_best(), None)
        return found or walk.drawn(random.Random(f"{self._seed} {len(trials)}"))

    def _values(self, space: Mapping[str, BaseDistribution]) -> dict[str, tuple[Value, ...]]:
        return {name: values_of(d, self._default.get(name)) for name, d in space.items()}

    def _ordered(self, names: Collection[str]) -> list[str]:
        if self._order is None:
            shuffled = sorted(names)
            random.Random(f"{self._seed}").shuffle(shuffled)
            return shuffled
        first = [name for name in self._order if name in names]
        return [*first, *sorted(set(names) - set(first))]


class _Walk:
    """Where the walk stands after some trials, told in the order of their numbers."""

    def __init__(
        self,
        values: Mapping[str, tuple[Value, ...]],
        order: Sequence[str],
        feasible: Callable[[Mapping[str, Value]], bool] | None,
    ) -> None:
        self.values, self._order, self._feasible = values, order, feasible
        self._seen: set[Key] = set()
        self._measured: dict[Key, list[float]] = {}
        self._best: tuple[dict[str, Value], float] | None = None
        self._place = 0

    def tell(self, trial: FrozenTrial, *, larger: bool) -> None:
        """Of one more trial; one that runs is known by its configuration alone, and one that was
        cut short is none to go on from.
        """
        configuration = {name: trial.params[name] for name in self.values}
        key = _key(configuration)
        self._seen.add(key)
        if trial.state == TrialState.COMPLETE and trial.value is not None:
            several = self._measured.setdefault(key, [])
            several.append(trial.value if larger else -trial.value)
            value = statistics.fmean(several)
            if self._best is None or value > self._best[1]:
                self._best = configuration, value
            elif key == _key(self._best[0]):  # it was lucky before: another may be the best now
                first = max(self._measured, key=lambda k: statistics.fmean(self._measured[k]))
                known = {name: value for name, (_, value) in zip(self.values, first, strict=True)}
                self._best = known, statistics.fmean(self._measured[first])
        next(self.beside_the_best(), None)  # the place in the pass moves on

    def is_open(self, configuration: Mapping[str, Value]) -> bool:
        new = _key(configuration) not in self._seen
        return new and (self._feasible is None or self._feasible(configuration))

    def beside_the_best(self) -> Iterator[dict[str, Value]]:
        """New configurations that differ from the best in one parameter, from that of the current
        place in the pass on.
        """
        if self._best is None:
            return
        best = self._best[0]
        for step in range(len(self._order)):
            place = (self._place + step) % len(self._order)
            name = self._order[place]
            for value in self.values[name]:
                found = {**best, name: value}
                if self.is_open(found):
                    self._place = place
                    yield found

    def drawn(self, source: random.Random) -> dict[str, Value] | None:
        """Any new configuration; None where none was found."""
        if math.prod(len(v) for v in self.values.values()) <= _FEW:
            products = itertools.product(*self.values.values())
            everything = [dict(zip(self.values, each, strict=True)) for each in products]
            left = [c for c in everything if self.is_open(c)]
            return source.choice(left) if left else None
        for _ in range(_DRAWS):
            found = {name: source.choice(values) for name, values in self.values.items()}
            if self.is_open(found):
                return found
        return None


def _key(configuration: Mapping[str, Value]) -> Key:
    return tuple((isinstance(value, bool), value) for value in configuration.values())
