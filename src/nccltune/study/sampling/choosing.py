"""Samplers by name, set up for a search space."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import optuna
from optuna.samplers import BaseSampler

from nccltune.space import Parameter, ResolvedSpace, Value, canonical, violation
from nccltune.space.configuration import scope
from nccltune.study.records import Stage
from nccltune.study.sampling.estimates import as_proposed
from nccltune.study.sampling.guided import GuidedSampler

SAMPLERS = ("guided", "tpe", "random", "gp", "cmaes", "walk")
DEFAULT = "guided"
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

    def feasible(values: Mapping[str, Value]) -> bool:
        """Legal, and not another way to write a configuration whose values all act."""
        configuration = canonical(values, space)
        if violation(configuration, space) is not None:
            return False
        return all(
            as_proposed(p, configuration[p.name]) == values[p.name]
            for p in parameters
            if p.name in values
        )

    return GuidedSampler(
        {p.name: as_proposed(p, space.baseline[p.name]) for p in parameters},
        presets={p.name: p.values for p in space.presets if p.values.keys() <= names},
        together=[pair for pair in TOGETHER if names.issuperset(pair)],
        costly={p.name for p in parameters if scope(p.name, p.target) == "process"},
        feasible=feasible,
        seed=seed,
    )


def samplers(name: str, space: ResolvedSpace, seed: int) -> Callable[[Stage, int], BaseSampler]:
    """Makes the sampler of a stage of a study with so many trials. Larger batches are few and come
    from the winner on: they are TPE's where the search itself is guided.
    """
    parameters = [p for p in space.parameters if p.target != "batch"]

    def make(stage: Stage, done: int) -> BaseSampler:
        if name == "guided" and stage == "search":
            return guided(space, parameters, seed)
        return of_optuna("tpe" if name == "guided" else name, (seed + done) % (1 << 32))

    return make


def of_optuna(name: str, seed: int) -> BaseSampler:
    """`tpe` or `random`, as Optuna has them."""
    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    assert name == "tpe", name
    return optuna.samplers.TPESampler(multivariate=True, n_startup_trials=STARTUP_TRIALS, seed=seed)
