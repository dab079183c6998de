"""Parameters as numbers, for samplers that know distances: `gp` and `cmaes`.

Choices such as null, 1, 5, 25, 100 are places 0 to 4 in order, so that what lies between two good
values is tried before what lies far away. Words and switches have no distance: `gp` takes them as
they are; `cmaes` knows numbers alone, and gets their places too.
"""

from __future__ import annotations

from dataclasses import dataclass

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import CmaEsSampler, RandomSampler

from nccltune.space import Parameter, Value
from nccltune.space.scalars import is_number
from nccltune.study.sampling.extras import require
from nccltune.study.sampling.guide import equal

_CMAES_STARTUP = 8


@dataclass(frozen=True)
class Coding:
    """How a sampler sees one parameter."""

    distribution: BaseDistribution
    """What the sampler proposes codes from."""
    places: tuple[Value, ...] | None = None
    """The values in the order of their codes 0, 1, ...; None: a value is its own code."""

    def to_value(self, code: Value) -> Value:
        if self.places is None:
            return code
        assert isinstance(code, (int, float))
        return self.places[int(code)]

    def to_code(self, value: Value) -> Value:
        """Raises ValueError for a value that the parameter does not have."""
        if self.places is None:
            if not _holds(self.distribution, value):
                raise ValueError(f"{value!r} is not one of {self.distribution}")
            return value
        for code, own in enumerate(self.places):
            if equal(own, value):
                return code
        raise ValueError(f"{value!r} is none of {self.places}")


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


def coded(parameter: Parameter, everything: bool) -> Coding:
    """The coding of a parameter; `everything`: words and switches become places too."""
    return coded_distribution(distribution(parameter), everything)


def coded_distribution(found: BaseDistribution, everything: bool) -> Coding:
    """The same from Optuna's distribution of a parameter. A range is its own coding."""
    if not isinstance(found, CategoricalDistribution):
        return Coding(found)
    numbers = sorted(c for c in found.choices if is_number(c))  # type: ignore[type-var]
    others = [c for c in found.choices if not is_number(c)]
    if everything or (numbers and others in ([], [None])):
        places = (*others, *numbers)
        return Coding(IntDistribution(0, len(places) - 1), places)
    return Coding(found)


def cmaes_sampler(seed: int) -> CmaEsSampler:
    """Optuna's CMA-ES, for a study whose parameters are coded with `everything`.

    Raises: UsageError without the package cmaes.
    """
    require("--sampler cmaes")
    return CmaEsSampler(
        n_startup_trials=_CMAES_STARTUP,
        independent_sampler=RandomSampler(seed=seed),
        warn_independent_sampling=False,
        seed=seed,
    )


def _holds(distribution: BaseDistribution, value: Value) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return any(equal(choice, value) for choice in distribution.choices)
    return is_number(value) and distribution._contains(value)  # type: ignore[arg-type]
