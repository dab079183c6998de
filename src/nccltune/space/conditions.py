"""`when`: the facts of a job and the values of other parameters that a parameter depends on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, TypeAlias

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from pydantic import PlainValidator, StrictBool

from nccltune.space.base import Frozen
from nccltune.space.scalars import (
    Problem,
    StrictValue,
    Value,
    broken,
    checked,
    contains,
    is_whole,
    quoted,
    show,
)

if TYPE_CHECKING:
    from nccltune.space.facts import Facts

NOT_NULL = "not_null"
BACKENDS = ("nccl", "gloo")
Accepted: TypeAlias = tuple[StrictValue, ...]
_COUNT = re.compile(r"(>=|<=|==|!=|>|<)\s*(\d{1,6})")
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    ">=": lambda have, limit: have >= limit,
    "<=": lambda have, limit: have <= limit,
    "==": lambda have, limit: have == limit,
    "!=": lambda have, limit: have != limit,
    ">": lambda have, limit: have > limit,
    "<": lambda have, limit: have < limit,
}


def _listed(raw: object) -> tuple[object, ...]:
    items = tuple(raw) if isinstance(raw, list | tuple) else (raw,)
    if not items:
        raise broken(Problem("", "must not be an empty list"))
    return items


def _names(raw: object) -> tuple[str, ...]:
    for item in _listed(raw):
        if not isinstance(item, str) or not item:
            raise broken(Problem("", f"must be a text or a list of texts, got {quoted(item)}"))
    return tuple(str(item) for item in _listed(raw))


def _backends(raw: object) -> tuple[str, ...]:
    for name in _names(raw):
        if name not in BACKENDS:
            raise broken(Problem("", f"must be one of nccl, gloo, got {quoted(name)}"))
    return _names(raw)


def _specifiers(raw: object) -> tuple[str, ...]:
    for text in _names(raw):
        try:
            SpecifierSet(text)
        except InvalidSpecifier:
            rule = 'must be a version specifier such as ">=2.24"'
            raise broken(Problem("", f"{rule}, got {quoted(text)}")) from None
    return _names(raw)


def _counts(raw: object) -> tuple[int | str, ...]:
    found: list[int | str] = []
    for item in _listed(raw):
        if isinstance(item, int) and is_whole(item) and item >= 1:
            found.append(item)
        elif isinstance(item, str) and all(_COUNT.fullmatch(p.strip()) for p in item.split(",")):
            found.append(item)
        else:
            rule = 'must be a whole number of at least 1 or a text such as ">=2"'
            raise broken(Problem("", f"{rule}, got {quoted(item)}"))
    return tuple(found)


def accepted_values(raw: object) -> dict[str, Accepted]:
    """`{NAME: value or list}` with every value as a tuple, for `when.param` and `forbids`."""
    if not isinstance(raw, Mapping) or not raw:
        raise broken(Problem("", f"must be a mapping of parameters, got {quoted(raw)}"))
    for name in raw:
        if not isinstance(name, str):
            raise broken(Problem("", f"parameter names must be texts, got {quoted(name)}"))
    return {name: tuple(checked(item) for item in _listed(value)) for name, value in raw.items()}


def accepts(accepted: Accepted, value: Value) -> bool:
    """Whether `value` meets one entry of `when.param`."""
    if accepted == (NOT_NULL,):
        return value is not None
    return contains(accepted, value)


def show_accepted(name: str, accepted: Accepted) -> str:
    """`NAME not null` or `NAME=1 or 2`, for explanations."""
    if accepted == (NOT_NULL,):
        return f"{name} not null"
    return f"{name}={' or '.join(show(value) for value in accepted)}"


class When(Frozen):
    """Conditions that must all hold; within one of them a list means any of."""

    backend: Annotated[tuple[str, ...], PlainValidator(_backends)] | None = None
    network: Annotated[tuple[str, ...], PlainValidator(_names)] | None = None
    transport: Annotated[tuple[str, ...], PlainValidator(_names)] | None = None
    nvlinks: StrictBool | None = None
    nccl: Annotated[tuple[str, ...], PlainValidator(_specifiers)] | None = None
    nodes: Annotated[tuple[int | str, ...], PlainValidator(_counts)] | None = None
    world_size: Annotated[tuple[int | str, ...], PlainValidator(_counts)] | None = None
    param: Annotated[dict[str, Accepted], PlainValidator(accepted_values)] | None = None

    def unmet(self, facts: Facts) -> str | None:
        """The first condition that this job does not meet, or None.

        `param` is not looked at: it changes from trial to trial. What is not known yet
        (network, transport or NCCL version before the probe launch) counts as met; NVLinks are no
        such thing, since the probe does not tell of them.
        """
        return next(self._unmet(facts), None)

    def _unmet(self, facts: Facts) -> Iterator[str]:
        if self.backend and facts.backend not in self.backend:
            yield f"needs backend {_either(self.backend)}, this job uses {facts.backend}"
        if self.network:
            yield from _network_unmet(self.network, facts)
        if self.transport and (facts.transports or facts.probed):
            used = {name.lower() for name in facts.transports}
            if used.isdisjoint(name.lower() for name in self.transport):
                here = ", ".join(facts.transports) or "none"
                yield f"needs transport {_either(self.transport)}, this job uses {here}"
        if self.nvlinks is not None and facts.nvlinks is not self.nvlinks:
            yield _nvlinks_unmet(self.nvlinks, facts)
        if self.nccl and facts.nccl and not _version_in(facts.nccl, self.nccl):
            yield f"needs NCCL {_either(self.nccl)}, this job uses {facts.nccl}"
        if self.nodes and not _count_in(facts.nodes, self.nodes):
            yield f"needs nodes {_either(self.nodes)}, this job has {facts.nodes}"
        if self.world_size and not _count_in(facts.world_size, self.world_size):
            yield f"needs world size {_either(self.world_size)}, this job has {facts.world_size}"


def _network_unmet(wanted: tuple[str, ...], facts: Facts) -> Iterator[str]:
    if facts.network is None:
        if facts.probed:
            here = f" (transport {', '.join(facts.transports)})" if facts.transports else ""
            yield f"no rank uses the network here{here}"
    elif not set(facts.network.lower().split(" and ")) <= {name.lower() for name in wanted}:
        yield f"needs network {_either(wanted)}, this job uses {facts.network}"


def _nvlinks_unmet(wanted: bool, facts: Facts) -> str:
    need = "needs NVLink between all GPUs" if wanted else "needs GPUs without NVLink"
    if facts.nvlinks is None:
        return f"{need}, which is not known here"
    return f"{need}, here {'all' if facts.nvlinks else 'not all'} have it"


def _either(items: tuple[int | str, ...] | tuple[str, ...]) -> str:
    return " or ".join(str(item) for item in items)


def _version_in(version: Version, specifiers: tuple[str, ...]) -> bool:
    return any(SpecifierSet(text).contains(version, prereleases=True) for text in specifiers)


def _count_in(have: int, wanted: tuple[int | str, ...]) -> bool:
    return any(
        have == item
        if isinstance(item, int)
        else all(_COMPARE[sign](have, int(limit)) for sign, limit in _COUNT.findall(item))
        for item in wanted
    )
