"""Pydantic's findings as lines for a user: file, field, rule, what was given, what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from nccltune.space.scalars import Problem, quoted

MAX_LINES = 20
"""A file of another kind breaks hundreds of rules; the first ones say enough."""


def lines(error: ValidationError, source: str, model: type[BaseModel]) -> tuple[str, ...]:
    """One line a broken rule, in the order of the file: `source: field: rule, got value`."""
    found = [
        f"{source}: {field}: {text}" if field else f"{source}: {text}"
        for finding in error.errors(include_url=False)
        for field, text in _problems(finding, model)
    ]
    if len(found) > MAX_LINES:
        hidden = len(found) - MAX_LINES
        return (*found[:MAX_LINES], f"{source}: and {hidden} more")
    return tuple(found)


def suggestion(name: str, known: Iterable[str]) -> str:
    """`, did you mean NCCL_ALGO?` where one of `known` is close to `name`, else nothing."""
    close = difflib.get_close_matches(name[:80], list(known), n=1, cutoff=0.7)
    return f", did you mean {close[0]}?" if close else ""


def _problems(finding: Mapping[str, Any], model: type[BaseModel]) -> Iterator[Problem]:
    field = _field(finding["loc"])
    if finding["type"] != "broken_rule":
        yield Problem(field, _rule(finding, model))
        return
    for problem in finding["ctx"]["problems"]:
        yield Problem(".".join(part for part in (field, problem.field) if part), problem.text)


def _field(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part != "[key]":
            text += f".{part[:80]}" if text else part[:80]
    return text


def _rule(finding: Mapping[str, Any], model: type[BaseModel]) -> str:
    kind, given, context = finding["type"], finding["input"], finding.get("ctx", {})
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        fields = _model_at(finding["loc"][:-1], model).model_fields
        known = [name for name, info in fields.items() if not info.exclude]
        name = str(finding["loc"][-1])
        return f"unknown key{suggestion(name, known) or ','} known are {', '.join(known)}"
    if kind == "too_short":
        least = context.get("min_length", 1)
        return "must not be empty" if least == 1 else f"needs at least {least} entries"
    rules = {
        "bool_type": "must be true or false",
        "dict_type": "must be a mapping",
        "model_type": "must be a mapping",
        "tuple_type": "must be a list",
        "string_type": "must be a text",
        "string_too_short": "must not be empty",
        "int_type": "must be a number",
        "float_type": "must be a number",
        "literal_error": f"must be {_expected(context)}",
    }
    return f"{rules.get(kind, finding['msg'])}, got {quoted(given)}"


def _expected(context: Mapping[str, Any]) -> str:
    words = str(context.get("expected", "")).replace("'", "").replace(" or ", ", ")
    return f"one of {words}" if "," in words else words


def _model_at(location: Iterable[int | str], model: type[BaseModel]) -> type[BaseModel]:
    """The model that the value at `location` belongs to."""
    inside = False  # the next part is a key or an index of a container, no field
    for part in location:
        info = None if inside else model.model_fields.get(str(part))
        inside = False
        if info is not None:
            inner, inside = _inner_model(info.annotation)
            model = inner or model
    return model


def _inner_model(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The model in a field's annotation, and whether it is held in a container."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    held = get_origin(annotation) in (dict, tuple, list)
    for argument in get_args(annotation):
        found, deeper = _inner_model(argument)
        if found is not None:
            return found, held or deeper
    return None, held
