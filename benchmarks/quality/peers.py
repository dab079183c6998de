"""Other samplers, each with the coding of parameters that suits it."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler

from quality.landscapes import Landscape, Point, Value

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)


class OptunaSearcher:
    """A sampler of Optuna. A free rejection is told as the worst value so far, or as that of the
    point's twin: a sampler told of a failure alone proposes the same point again.
    """

    def again(self) -> bool:
        return False

    def answer(self) -> None: ...

    def __init__(self, landscape: Landscape, sampler: BaseSampler, *, coded: str) -> None:
        """`coded`: "numbers" are given as the places of their values in order, to samplers that
        know distances; "all" parameters, to those that know no categories.
        """
        self._landscape = landscape
        self._coded = {
            name
            for name, values in landscape.parameters.items()
            if len(values) > 1 and (coded == "all" or (coded == "numbers" and _is_ordered(values)))
        }
        self._distributions: dict[str, BaseDistribution] = {
            name: IntDistribution(0, len(values) - 1)
            if name in self._coded
            else CategoricalDistribution(values)
            for name, values in landscape.parameters.items()
        }
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._asked: optuna.Trial | None = None
        self._worst = float("inf")

    def ask(self) -> Mapping[str, Value]:
        self._asked = self._study.ask(self._distributions)
        return {
            name: self._landscape.parameters[name][value] if name in self._coded else value
            for name, value in self._asked.params.items()
        }

    def reject(self, value: float | None) -> None:
        assert self._asked is not None
        self._study.tell(self._asked, self._worst if value is None else value)
        self._asked = None

    def tell(self, values: Mapping[str, Value], value: float | None) -> None:
        if value is not None:
            self._worst = min(self._worst, value)
        told = self._worst if value is None else value
        params = self._as_params(values)
        if self._asked is not None and self._asked.params == params:
            self._study.tell(self._asked, told)
        else:  # the default, or one that was drawn in its place
            if self._asked is not None:
                self._study.tell(self._asked, state=optuna.trial.TrialState.FAIL)
            self._study.add_trial(
                optuna.create_trial(params=params, distributions=self._distributions, value=told)
            )
        self._asked = None

    def _as_params(self, values: Mapping[str, Value]) -> dict[str, Value]:
        return {
            name: self._landscape.parameters[name].index(value) if name in self._coded else value
            for name, value in values.items()
        }


class CoordinateDescent:
    """As AutoCCL searches (NSDI 2025): one parameter after another, all its values, the best is
    kept, until a whole pass changes nothing. The order of parameters is drawn anew in each pass.
    """

    def again(self) -> bool:
        return False

    def answer(self) -> None: ...

    def __init__(self, landscape: Landscape, seed: int) -> None:
        self._landscape, self._rng = landscape, random.Random(seed)
        self._speeds: dict[Point, float] = {}
        self._moves = self._passes()

    def _passes(self) -> Iterator[Point]:
        names = list(self._landscape.parameters)
        current = self._landscape.default
        while True:
            start = current
            for i in self._rng.sample(range(len(names)), len(names)):
                values = list(self._landscape.parameters[names[i]])
                self._rng.shuffle(values)
                line = [(*current[:i], value, *current[i + 1 :]) for value in values]
                for point in line:
                    if point not in self._speeds:
                        yield point
                current = max(line, key=lambda p: self._speeds.get(p, float("-inf")))
            if current == start:
                return

    def ask(self) -> Mapping[str, Value] | None:
        point = next(self._moves, None)
        return None if point is None else self._landscape.values(point)

    def reject(self, value: float | None) -> None: ...

    def tell(self, values: Mapping[str, Value], value: float | None) -> None:
        if value is not None:
            self._speeds[tuple(values.values())] = value


def _is_ordered(values: tuple[Value, ...]) -> bool:
    """Numbers, with or without one that stands for unset."""
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return bool(numbers) and all(v in (None, "") for v in values if v not in numbers)


def _tpe(**options: object) -> Callable[[Landscape, int], OptunaSearcher]:
    def make(landscape: Landscape, seed: int) -> OptunaSearcher:
        sampler = optuna.samplers.TPESampler(seed=seed, **options)
        return OptunaSearcher(landscape, sampler, coded="")

    return make


def _gp(landscape: Landscape, seed: int) -> OptunaSearcher:
    return OptunaSearcher(landscape, optuna.samplers.GPSampler(seed=seed), coded="numbers")


def _cmaes(landscape: Landscape, seed: int) -> OptunaSearcher:
    start = {
        name: values.index(landscape.values(landscape.default)[name])
        for name, values in landscape.parameters.items()
    }
    sampler = optuna.samplers.CmaEsSampler(x0=start, with_margin=True, seed=seed)
    return OptunaSearcher(landscape, sampler, coded="all")


def _random(landscape: Landscape, seed: int) -> OptunaSearcher:
    return OptunaSearcher(landscape, optuna.samplers.RandomSampler(seed=seed), coded="")


PEERS: Mapping[str, Callable[[Landscape, int], OptunaSearcher | CoordinateDescent]] = {
    "random": _random,
    "tpe": _tpe(),
    "tpe-multivariate": _tpe(multivariate=True, n_startup_trials=8),  # as --sampler tpe
    "tpe-independent": _tpe(multivariate=False),
    "gp": _gp,
    "cmaes": _cmaes,
    "coordinate-descent": CoordinateDescent,
}
