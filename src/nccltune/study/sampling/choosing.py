"""Samplers by name, set up for a search space."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from optuna.samplers import BaseSampler

from nccltune.space import Parameter, ResolvedSpace, Value, canonical, violation
from nccltune.space.configuration import scope
from nccltune.study.quiet import optuna
from nccltune.study.records import Stage
from nccltune.study.sampling.coding import Coding, cmaes_sampler, coded, distribution
from nccltune.study.sampling.estimates import as_proposed
from nccltune.study.sampling.gp import GpSampler
from nccltune.study.sampling.guided import GuidedSampler
from nccltune.study.sampling.walk import WalkSampler

STARTUP_TRIALS = 8

TOGETHER = (
    ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"),
    ("NCCL_ALGO", "NCCL_PROTO"),
    ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
    ("NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS"),
    ("bucket_cap_mb", "NCCL_MAX_CTAS"),
    ("bucket_cap_mb", "NCCL_BUFFSIZE"),
    ("num_workers", "prefetch_factor"),
    ("num_workers", "batch_size"),
)
"""Parameters that act on each other, and are moved together."""


def guided(space: ResolvedSpace, parameters: Sequence[Parameter], seed: int) -> GuidedSampler:
    """The guided sampler for some parameters of a space."""
    names = {parameter.name for parameter in parameters}
    return GuidedSampler(
        _defaults(space, parameters),
        presets={p.name: p.values for p in space.presets if p.values.keys() <= names},
        together=[pair for pair in TOGETHER if names.issuperset(pair)],
        costly={p.name for p in parameters if scope(p.name, p.target) == "process"},
        feasible=_rule(space, parameters),
        seed=seed,
    )


def _defaults(space: ResolvedSpace, parameters: Sequence[Parameter]) -> dict[str, Value]:
    return {p.name: as_proposed(p, space.baseline[p.name]) for p in parameters}


def _rule(
    space: ResolvedSpace, parameters: Sequence[Parameter]
) -> Callable[[Mapping[str, Value]], bool]:
    """Whether values are legal, and no other way to write a configuration of which all act."""

    def feasible(values: Mapping[str, Value]) -> bool:
        configuration = canonical(values, space)
        if violation(configuration, space) is not None:
            return False
        return all(
            as_proposed(p, configuration[p.name]) == values[p.name]
            for p in parameters
            if p.name in values
        )

    return feasible


@dataclass(frozen=True)
class Choice:
    """A sampler by its name, for a space."""

    name: str
    space: ResolvedSpace
    seed: int = 0

    def sampler(self, stage: Stage, done: int) -> BaseSampler:
        """That of a stage of a study with so many trials. Larger batches are few and come from the
        winner on: they are TPE's where the search itself is guided or a walk.

        Raises: UsageError where a package is missing.
        """
        parameters = [p for p in self.space.parameters if p.target != "batch"]
        if stage == "search" and self.name == "guided":
            return guided(self.space, parameters, self.seed)
        if stage == "search" and self.name == "walk":
            defaults = _defaults(self.space, parameters)
            return WalkSampler(
                defaults,
                order=list(defaults),
                feasible=_rule(self.space, parameters),
                seed=self.seed,
            )
        seed = (self.seed + done) % (1 << 32)  # resumed: not the same draws again
        if self.name == "gp":
            return GpSampler(seed=self.seed, startup=STARTUP_TRIALS)
        if self.name == "cmaes":
            return cmaes_sampler(seed)
        if self.name == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        return optuna.samplers.TPESampler(
            multivariate=True, n_startup_trials=STARTUP_TRIALS, seed=seed
        )

    def coding(self, parameter: Parameter) -> Coding:
        """How the sampler sees a parameter."""
        if self.name in ("gp", "cmaes"):
            return coded(parameter, everything=self.name == "cmaes")
        return Coding(distribution(parameter))
