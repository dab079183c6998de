"""The user's --fix, --only and --exclude, checked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from nccltune.errors import UsageError
from nccltune.nccl import catalog, site, values
from nccltune.nccl.site import SiteVariable
from nccltune.space.arguments import (
    ALWAYS_UNSAFE,
    KINDS,
    NOT_OURS,
    TARGETS,
    Target,
    target_problem,
    value_problem,
)
from nccltune.space.facts import Facts, Selection
from nccltune.space.messages import suggestion
from nccltune.space.model import Space
from nccltune.space.resolved import Note
from nccltune.space.scalars import Value, quoted, show

ALWAYS_FIXABLE = (
    "num_workers",
    "prefetch_factor",
    "batch_size",
    "bucket_cap_mb",
    "gradient_as_bucket_view",
)
"""What --fix takes whether or not the space has it."""


def check_names(space: Space, selection: Selection, source: str) -> None:
    """Raise UsageError for the first name of --only or --exclude that the space does not have."""
    known = (*space.parameters, *TARGETS)
    for option, names in (("--only", selection.only), ("--exclude", selection.exclude)):
        for name in names:
            if name not in known:
                hint = suggestion(name, known) or ","
                raise UsageError(
                    f"{option}: unknown parameter or target {quoted(name)}{hint} {source} has "
                    f"{', '.join(space.parameters)}; targets are {', '.join(TARGETS)}"
                )


def fixed_targets(
    space: Space, facts: Facts, selection: Selection, source: str
) -> dict[str, Target]:
    """The target of every fixed name, once each value has been found legal.

    Raises:
        UsageError: the first name or value that cannot be fixed here.
    """
    targets: dict[str, Target] = {}
    for name, value in selection.fix.items():
        targets[name] = _target(name, space, facts, source)
        if text := target_problem(name, targets[name]):
            raise UsageError(f"--fix {name}={show(value)}: {text}")
        _check_value(name, targets[name], value, facts, selection)
    return targets


def fixed_notes(fixed: Mapping[str, Value]) -> tuple[Note, ...]:
    """One note a fixed name."""
    return tuple(
        Note(name, "fixed", f"--fix: stays at {show(value)} in baseline and candidates")
        for name, value in fixed.items()
    )


def multicast_refusal(name: str, value: Value, facts: Facts) -> str | None:
    """Why `value` may not be tried where the site has switched NVLink multicast off, or None."""
    if value is None or not site.multicast_is_off(facts.site):
        return None
    if not site.asks_for_multicast(name, str(value)):
        return None
    return f"{name}={show(value)}: the site has switched NVLink multicast off"


def _target(name: str, space: Space, facts: Facts, source: str) -> Target:
    if name in NOT_OURS:
        raise UsageError(f"--fix {name}: DDP's {name} belongs to the job and cannot be fixed")
    ddp = facts.ddp_arguments
    if name in space.parameters:
        target = space.parameters[name].target
    elif name in ALWAYS_FIXABLE:
        target = KINDS[name].target
    elif catalog.lookup(name) is not None:
        return "env"
    elif ddp is not None and name in ddp:
        return "ddp"
    else:
        _unknown(name, space, facts, source)
    if target == "ddp" and ddp is not None and name not in ddp:
        raise UsageError(f"--fix {name}: DDP of the job's torch does not take it")
    return target


def _unknown(name: str, space: Space, facts: Facts, source: str) -> NoReturn:
    arguments = sorted((facts.ddp_arguments or frozenset()) - NOT_OURS - {"self"})
    known = list(dict.fromkeys((*space.parameters, *ALWAYS_FIXABLE, *arguments)))
    hint = suggestion(name, (*known, *catalog.names()))
    raise UsageError(
        f"--fix: unknown parameter {quoted(name)}{hint or ','} {source} has "
        f"{', '.join(known)}, and NCCL's own variables can be fixed; "
        "export any other variable before starting nccltune"
    )


def _check_value(
    name: str, target: Target, value: Value, facts: Facts, selection: Selection
) -> None:
    given = f"--fix {name}={show(value)}"
    pinned = facts.site.get(name) if target == "env" else None
    if pinned is not None and (value is None or str(value) != pinned.value):
        raise UsageError(f"{given}: {_conflict(pinned)}")
    if rule := value_problem(name, target, value):
        raise UsageError(f"{given}: {rule}, got {quoted(value)}")
    if name in ALWAYS_UNSAFE and value is not False and not selection.allow_unsafe:
        raise UsageError(f"{given}: {name} is unsafe and needs --allow-unsafe")
    if target == "env":
        refusal = values.refusal(name, value, facts.nccl, allow_unsafe=selection.allow_unsafe)
        if refusal := refusal or multicast_refusal(name, value, facts):
            raise UsageError(f"--fix {refusal}")


def _conflict(pinned: SiteVariable) -> str:
    held = f"the site ({pinned.source}) has set it to {show(pinned.value)}"
    if site.protects_multicast(pinned.name, pinned.value):
        return f"{held}, and nothing may switch NVLink multicast on again"
    return f"{held}, which holds in every launch of a study; change it where it is set"
