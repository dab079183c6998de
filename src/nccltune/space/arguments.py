"""What is known of DDP's, the DataLoader's and the batch's own parameters: kinds of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from nccltune.nccl import accepted
from nccltune.space.scalars import Value, is_number, is_whole

Target = Literal["env", "ddp", "loader", "batch"]
TARGETS: tuple[Target, ...] = ("env", "ddp", "loader", "batch")


class Kind(NamedTuple):
    """Which values an argument can have."""

    target: Target
    rule: str
    holds: Callable[[Value], bool]


def _at_least(limit: int) -> Callable[[Value], bool]:
    return lambda value: isinstance(value, int) and is_whole(value) and value >= limit


def _or_null(holds: Callable[[Value], bool]) -> Callable[[Value], bool]:
    return lambda value: value is None or holds(value)


def _positive(value: Value) -> bool:
    return isinstance(value, int | float) and is_number(value) and value > 0


def _switch(value: Value) -> bool:
    return isinstance(value, bool)


DDP_DEFAULTS: dict[str, Value] = {
    "broadcast_buffers": True,
    "find_unused_parameters": False,
    "gradient_as_bucket_view": False,
    "static_graph": False,
}
"""What holds in DDP where nothing is passed (torch.nn.parallel.DistributedDataParallel)."""

KINDS: dict[str, Kind] = {
    "batch_size": Kind("batch", "must be a whole number of at least 1", _at_least(1)),
    "num_workers": Kind("loader", "must be a whole number of at least 0", _at_least(0)),
    "prefetch_factor": Kind(
        "loader", "must be null or a whole number of at least 1", _or_null(_at_least(1))
    ),
    "bucket_cap_mb": Kind("ddp", "must be null or a number above 0", _or_null(_positive)),
    **{name: Kind("ddp", "must be true or false", _switch) for name in DDP_DEFAULTS},
}

OF_LOADER = tuple(name for name, kind in KINDS.items() if kind.target == "loader")
"""DataLoader arguments that are searched."""

SET_BY_RULE = frozenset({"pin_memory", "persistent_workers"})
"""DataLoader arguments that follow from the others and are no choice."""

NOT_OURS = frozenset(
    {
        "module",
        "device_ids",
        "output_device",
        "dim",
        "process_group",
        "device_mesh",
        "mixed_precision",
    }
)
"""DDP arguments that belong to the job or the launch, or hold no plain value."""

LAUNCHERS_OWN = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "GROUP_RANK",
        "HOME",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NCCL_CONF_FILE",  # another file could undo what the site's file keeps off
        "NCCL_ENV_PLUGIN",
        "PATH",
        "PYTHONHOME",
        "PYTHONPATH",
        "PYTHONUNBUFFERED",
        "RANK",
        "WORLD_SIZE",
    }
)

ALWAYS_UNSAFE = frozenset({"static_graph"})
"""With no_sync() it breaks, and it can stop reducing gradients without a word."""

USERS_OWN = frozenset({"num_workers", "batch_size"})
"""What every job has a value of; null as a default in a file means that value."""


NAMES_INTERFACES = frozenset({"NCCL_SOCKET_IFNAME"})
"""Variables whose choices can be made of the machine's interfaces, each as `=name`: without `=`
NCCL takes a name for the beginning of others too.
"""


def _launchers_own(name: str) -> bool:
    """Variables that say how ranks are started and what they read: never a setting."""
    prefixes = ("LD_", "TORCHELASTIC_", "NCCLTUNE_", "NCCL_DEBUG")
    return name in LAUNCHERS_OWN or name.startswith(prefixes)


def target_problem(name: str, target: Target) -> str | None:
    """Why a parameter of that name cannot have that target, or None."""
    if target == "env" and _launchers_own(name):
        return f"{name} belongs to the launch and cannot be searched or held"
    if target == "env" and name.isupper() and (text := accepted.name_problem(name)):
        return f"{name} {text}; export it before nccltune starts, and it holds in every launch"
    if name in SET_BY_RULE:
        return f"{name} is set by rule and cannot be searched"
    if target == "ddp" and name in NOT_OURS:
        return f"DDP's {name} belongs to the job and cannot be searched"
    if name in KINDS and KINDS[name].target != target:
        return f"{name} belongs to target {KINDS[name].target}, got {target}"
    known = [known for known, kind in KINDS.items() if kind.target == target]
    if target in ("loader", "batch") and name not in known:
        return f"target {target} knows {', '.join(known)}, got {name}"
    return None


def value_problem(name: str, target: Target, value: Value) -> str | None:
    """The rule that `value` breaks as a value of that parameter, or None."""
    if target == "env" and isinstance(value, bool):
        # str(True) is "True", which NCCL reads as 0.
        return "must be written as 1 or 0 (or in quotes), a variable has no true and false"
    if target == "env" and value is not None:
        if text := accepted.value_problem(name, str(value)):
            return f"{text}; no result may hold that"
    kind = KINDS.get(name)
    return None if kind is None or kind.holds(value) else kind.rule
