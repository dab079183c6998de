"""Single values of a search space: what they may be, when two are the same, how they are shown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple, TypeAlias

from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

MAX_INTEGER = 2**63 - 1  # what NCCL and the samplers can hold
MAX_TEXT = 1000  # characters


class Problem(NamedTuple):
    """One broken rule: `field` (dotted, relative to the model that found it, "" for itself)."""

    field: str
    text: str


def broken(*problems: Problem) -> PydanticCustomError:
    """The error that carries `problems` through pydantic to `messages.lines`."""
    text = "; ".join(problem.text for problem in problems)
    return PydanticCustomError("broken_rule", "{text}", {"text": text, "problems": problems})


def checked(value: object) -> None | bool | int | float | str:
    """`value` itself, never converted, if a parameter may have it.

    Raises:
        PydanticCustomError: it is a list, a mapping, a date, not finite, or a text that no
            environment can hold.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) <= MAX_INTEGER:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    # An empty variable is not an unset one: NCCL up to 2.23 reads an empty list as "nothing".
    if isinstance(value, str) and 0 < len(value) <= MAX_TEXT and value.isprintable():
        return value
    rule = "must be null, true, false, a finite number or a printable text that is not empty"
    raise broken(Problem("", f"{rule}, got {quoted(value)}"))


def checked_number(value: object) -> int | float:
    """`value` itself, never converted, if it is a finite number."""
    if isinstance(value, int | float) and is_number(value) and abs(value) <= MAX_INTEGER:
        return value
    raise broken(Problem("", f"must be a finite number, got {quoted(value)}"))


Value: TypeAlias = "None | bool | int | float | str"
StrictValue = Annotated[Value, PlainValidator(checked)]
StrictNumber = Annotated[int | float, PlainValidator(checked_number)]


def same(one: object, other: object) -> bool:
    """Equal in type and value: 1, 1.0, true and "1" are four different values."""
    return type(one) is type(other) and one == other


def contains(values: Iterable[Value], value: Value) -> bool:
    """Whether `value` is among `values`, by type and value."""
    return any(same(one, value) for one in values)


def duplicates(values: Iterable[Value]) -> tuple[Value, ...]:
    """The values that come again, each once."""
    seen: list[Value] = []
    again: list[Value] = []
    for value in values:
        if contains(seen, value) and not contains(again, value):
            again.append(value)
        seen.append(value)
    return tuple(again)


def show(value: object) -> str:
    """`value` as a user writes it on a command line: null, true, 25, Ring."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _short(str(value))


def quoted(value: object) -> str:
    """`value` in an error message: texts in quotes, containers cut short."""
    if value is None or isinstance(value, bool):
        return show(value)
    if isinstance(value, str):
        return _short(repr(value[:200]))
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        shown = ", ".join(quoted(item) for item in value[:6])
        return f"[{shown}{', ...' if len(value) > 6 else ''}]"
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        return "a number beyond 64 bits"  # str() of a huge one raises or takes its time
    return _short(str(value))


def pairs(values: Mapping[str, Value], names: Iterable[str]) -> str:
    """`A=4 B=null`: the values that an explanation rests on."""
    return " ".join(f"{name}={show(values.get(name))}" for name in names)


def is_on(value: Value) -> bool:
    """Neither null, false nor 0."""
    return value is not None and value is not False and value != 0


def is_number(value: object) -> bool:
    """A number proper; Python counts booleans in, a search space does not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    """An integer proper."""
    return isinstance(value, int) and not isinstance(value, bool)


def from_text(text: str) -> int | str:
    """A site's variable as a value: decimal integers as int, anything else as it is."""
    digits = text[1:] if text.startswith("-") else text
    plain = digits.isascii() and digits.isdigit() and len(digits) < 19
    return int(text) if plain else text


def _short(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
