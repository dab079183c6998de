"""Which parameters cannot win as much as this machine's noise hides."""

from __future__ import annotations

from nccltune.space import Parameter, ResolvedSpace
from nccltune.stats.step import Diagnosis
from nccltune.stats.verdict import TOO_NOISY

_OF_COMMUNICATION = ("NCCL_", "TORCH_NCCL_", "GLOO_", "FI_", "OFI_NCCL_", "UCX_")


def left_out(
    space: ResolvedSpace, found: Diagnosis, threshold: float
) -> dict[str, tuple[str, ...]]:
    """Parameters that cannot win as much as noise hides here, by what they are about: communication
    (NCCL and DDP) and the loader. None where noise would hide nearly everything.
    """
    leave = {}
    for name, (limit, names) in _groups(space, found).items():
        if names and limit < threshold <= TOO_NOISY:
            leave[name] = names
    return leave


def gains(space: ResolvedSpace, found: Diagnosis) -> dict[str, float]:
    """The most that each parameter can win, as a ratio above 1, where a bound speaks of it."""
    groups = _groups(space, found).values()
    return {name: 1 + limit for limit, names in groups for name in names}


def _groups(space: ResolvedSpace, found: Diagnosis) -> dict[str, tuple[float, tuple[str, ...]]]:
    groups = {
        "communication": (found.communication_limit, ("env", "ddp")),
        "loader": (found.loader_limit, ("loader",)),
    }
    return {
        about: (
            limit,
            tuple(p.name for p in space.parameters if p.target in targets and _bounded(p)),
        )
        for about, (limit, targets) in groups.items()
    }


def _bounded(parameter: Parameter) -> bool:
    """Whether a bound speaks of it: other variables, such as OMP_NUM_THREADS, act on computing."""
    return parameter.target != "env" or parameter.name.startswith(_OF_COMMUNICATION)
