"""One configuration, a value for every parameter: its canonical form, its rules, its parts."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from nccltune.errors import UsageError
from nccltune.nccl import catalog
from nccltune.space.arguments import Target
from nccltune.space.conditions import accepts
from nccltune.space.constraints import ACTS_ONLY_WITH, BUILT_IN
from nccltune.space.model import Parameter
from nccltune.space.resolved import ResolvedSpace
from nccltune.space.scalars import Value, contains, is_on, quoted, same

Scope = Literal["process", "communicator", "model", "loader"]
_SCOPES: dict[Target, Scope] = {"ddp": "model", "loader": "loader", "batch": "loader"}


@dataclass(frozen=True)
class Split:
    """A configuration by the place where its values are used."""

    env: dict[str, str]
    """As text, not yet spelled for an NCCL version; what is null is left out."""
    ddp: dict[str, Value]
    """Keyword arguments of DistributedDataParallel; what is null is left out."""
    loader: dict[str, Value]
    """Keyword arguments of DataLoader; here null is a value (prefetch_factor=None)."""
    batch_size: int | None
    """Of one rank; None: it is neither searched nor fixed, the user's own holds."""


def canonical(configuration: Mapping[str, Value], resolved: ResolvedSpace) -> dict[str, Value]:
    """The same job written in one way: complete, and without values that do nothing.

    What is missing comes from the baseline, fixed values hold whatever was asked, and a
    parameter whose condition is not met gets null (or its default where null is no value). A
    fixed value gives way only to a searched parameter that rules it out: a fixed prefetch_factor
    to num_workers=0.

    Raises:
        UsageError: a name that is neither searched nor fixed.
    """
    for name in configuration:
        if name not in resolved.baseline:
            known = ", ".join(resolved.baseline)
            raise UsageError(f"unknown parameter {quoted(name)}, searched or fixed are {known}")
    asked = {**resolved.baseline, **configuration, **resolved.fixed}
    by_name = {parameter.name: parameter for parameter in resolved.parameters}
    values = asked
    # Each round may switch off what depends on the last one; chains are at most as long as asked.
    for _ in range(len(asked) + 1):
        holding = {**resolved.given, **values}
        following = {
            **{n: _searched_value(p, asked[n], holding) for n, p in by_name.items()},
            **{n: _fixed_value(n, asked[n], holding, by_name) for n in resolved.fixed},
        }
        if key(following) == key(values):
            break
        values = following
    return {name: values[name] for name in (*by_name, *resolved.fixed)}


def violation(configuration: Mapping[str, Value], resolved: ResolvedSpace) -> str | None:
    """The first rule that `configuration` breaks, in words with the values, or None.

    What is missing comes from the baseline, the rest is taken as it is: whoever wants idle values
    to be ignored passes the canonical form.
    """
    values = {**resolved.given, **resolved.baseline, **configuration}
    return BUILT_IN.broken_by(values) or resolved.constraints.broken_by(values)


def key(configuration: Mapping[str, Value]) -> str:
    """A stable text, equal for equal configurations; 1, true and "1" give different ones."""
    return json.dumps(dict(configuration), sort_keys=True, separators=(",", ":"), allow_nan=False)


def changes(configuration: Mapping[str, Value], baseline: Mapping[str, Value]) -> dict[str, Value]:
    """What differs from the baseline, by type and value."""
    return {
        name: value
        for name, value in configuration.items()
        if name not in baseline or not same(value, baseline[name])
    }


def split(configuration: Mapping[str, Value], resolved: ResolvedSpace) -> Split:
    """The parts of a configuration by target; call it on the canonical form.

    Raises:
        UsageError: a name that is neither searched nor fixed.
    """
    parts: dict[Target, dict[str, Value]] = {"env": {}, "ddp": {}, "loader": {}, "batch": {}}
    targets: dict[str, Target] = {p.name: p.target for p in resolved.parameters}
    targets.update(resolved.fixed_targets)
    for name, value in configuration.items():
        if name not in targets:
            raise UsageError(f"unknown parameter {quoted(name)}, known are {', '.join(targets)}")
        parts[targets[name]][name] = value
    batch_size = parts["batch"].get("batch_size")
    return Split(
        env={name: str(value) for name, value in parts["env"].items() if value is not None},
        ddp={name: value for name, value in parts["ddp"].items() if value is not None},
        loader=parts["loader"],
        batch_size=batch_size if isinstance(batch_size, int) else None,
    )


def scope(name: str, target: Target) -> Scope:
    """The cheapest level at which a change of that parameter takes effect.

    process: new ranks; communicator: a new process group in live ranks; model: wrapped in DDP
    again; loader: a new DataLoader or batch.
    """
    return catalog.scope_of(name) if target == "env" else _SCOPES[target]


def _searched_value(parameter: Parameter, asked: Value, values: Mapping[str, Value]) -> Value:
    """What is asked for, or the idle value where the parameter can do nothing beside `values`."""
    need = ACTS_ONLY_WITH.get(parameter.name)
    if need is not None and not is_on(values.get(need)):
        return None
    conditions = parameter.when.param if parameter.when else None
    if all(accepts(accepted, values.get(name)) for name, accepted in (conditions or {}).items()):
        return asked
    null_is_legal = parameter.target == "env" or contains(parameter.choices or (), None)
    return None if null_is_legal else parameter.default


def _fixed_value(
    name: str, asked: Value, values: Mapping[str, Value], searched: Collection[str]
) -> Value:
    """What is asked for, unless it needs a searched parameter that is off just now."""
    need = ACTS_ONLY_WITH.get(name)
    gives_way = need is not None and need in searched and not is_on(values.get(need))
    return None if gives_way else asked
