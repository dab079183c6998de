"""Rules over several parameters: those a space states, and those that hold in every space."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from math import prod
from typing import Annotated

from pydantic import Field, PlainValidator, StrictStr

from nccltune.space.base import Frozen
from nccltune.space.conditions import Accepted, accepted_values, accepts
from nccltune.space.scalars import Problem, StrictNumber, Value, is_number, is_on, pairs


class Rule(Frozen):
    """A rule about several parameters."""

    def names(self) -> tuple[str, ...]:
        """The parameters that it is about."""
        raise NotImplementedError

    def broken_by(self, values: Mapping[str, Value]) -> str | None:
        """How `values` break it, or None; what is missing or null is not set."""
        raise NotImplementedError


class ProductAtMost(Rule):
    """The product of all `parameters` that are set is at most `limit`."""

    parameters: Annotated[tuple[StrictStr, ...], Field(min_length=2)]
    limit: StrictNumber

    def problems(self) -> Iterator[Problem]:
        if not self.limit > 0:
            yield Problem("limit", f"must be above 0, got {self.limit}")

    def names(self) -> tuple[str, ...]:
        return self.parameters

    def broken_by(self, values: Mapping[str, Value]) -> str | None:
        found = [_number(values.get(name)) for name in self.parameters]
        factors = [number for number in found if number is not None]
        # A lone factor above the limit is for the range of that parameter to forbid.
        if len(factors) < 2 or prod(factors) <= self.limit:
            return None
        return (
            f"{' x '.join(self.parameters)} must not exceed {self.limit}, "
            f"got {pairs(values, self.parameters)}"
        )


class AtMostParameter(Rule):
    """`parameter` is at most `other`, where both are set."""

    parameter: StrictStr
    other: StrictStr

    def names(self) -> tuple[str, ...]:
        return (self.parameter, self.other)

    def broken_by(self, values: Mapping[str, Value]) -> str | None:
        low, high = (_number(values.get(name)) for name in self.names())
        if low is None or high is None or low <= high:
            return None
        return f"{self.parameter} must not exceed {self.other}, got {pairs(values, self.names())}"


class Requires(Rule):
    """`parameter` may be on only while `needs` is; on is anything but null, false and 0."""

    parameter: StrictStr
    needs: StrictStr

    def names(self) -> tuple[str, ...]:
        return (self.parameter, self.needs)

    def broken_by(self, values: Mapping[str, Value]) -> str | None:
        if not is_on(values.get(self.parameter)) or is_on(values.get(self.needs)):
            return None
        return (
            f"{self.parameter} needs {self.needs} to be on (not null, false or 0), "
            f"got {pairs(values, self.names())}"
        )


Combination = Annotated[dict[str, Accepted], PlainValidator(accepted_values)]


class Constraints(Frozen):
    """All rules of a space that are about more than one parameter."""

    product_at_most: tuple[ProductAtMost, ...] = ()
    at_most_parameter: tuple[AtMostParameter, ...] = ()
    requires: tuple[Requires, ...] = ()
    forbids: tuple[Combination, ...] = ()

    def rules(self) -> tuple[Rule, ...]:
        """All rules but the forbidden combinations."""
        return (*self.product_at_most, *self.at_most_parameter, *self.requires)

    def groups(self) -> list[set[str]]:
        """The names of each rule and of each forbidden combination."""
        return [*(set(rule.names()) for rule in self.rules()), *map(set, self.forbids)]

    def named(self) -> Iterator[tuple[str, str]]:
        """Where each parameter is named: ("requires[0]", "prefetch_factor"), ..."""
        for field in ("product_at_most", "at_most_parameter", "requires"):
            for index, rule in enumerate(getattr(self, field)):
                yield from ((f"{field}[{index}]", name) for name in rule.names())
        for index, combination in enumerate(self.forbids):
            yield from ((f"forbids[{index}]", name) for name in combination)

    def broken_by(self, values: Mapping[str, Value], unknown: Collection[str] = ()) -> str | None:
        """The first rule that `values` break, in words with the values; None if none.

        A name that `values` lack counts as null; a rule that names an `unknown` is left out.
        """
        for rule in self.rules():
            if found := None if _any_in(rule.names(), unknown) else rule.broken_by(values):
                return found
        for combination in self.forbids:
            if _any_in(combination, unknown):
                continue
            if all(accepts(accepted, values.get(n)) for n, accepted in combination.items()):
                return f"the space forbids {pairs(values, combination)} together"
        return None


BUILT_IN = Constraints(
    # NCCL lowers the sockets with a warning, and the trial would measure something else.
    product_at_most=(
        ProductAtMost(parameters=("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"), limit=64),
    ),
    # NCCL lowers the minimum to the maximum and only notes it.
    at_most_parameter=(AtMostParameter(parameter="NCCL_MIN_CTAS", other="NCCL_MAX_CTAS"),),
    # DataLoader raises ValueError.
    requires=(Requires(parameter="prefetch_factor", needs="num_workers"),),
)

ACTS_ONLY_WITH: Mapping[str, str] = {
    # Without helper threads NCCL multiplies the sockets by zero: the setting does nothing.
    "NCCL_NSOCKS_PERTHREAD": "NCCL_SOCKET_NTHREADS",
    "prefetch_factor": "num_workers",
}
"""Parameters that do nothing unless another one is on, whatever the file says."""


def _number(value: Value) -> int | float | None:
    return value if is_number(value) and isinstance(value, int | float) else None


def _any_in(names: Iterable[str], unknown: Collection[str]) -> bool:
    return any(name in unknown for name in names)
