"""What all parts of a search space have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from nccltune.space.scalars import Problem, broken


class Frozen(BaseModel):
    """A part of a search space: immutable, without unknown keys, all its broken rules told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def problems(self) -> Iterator[Problem]:
        """The rules that these values break together; each field by itself is already valid."""
        yield from ()

    @model_validator(mode="after")
    def _holds(self) -> Frozen:
        if found := tuple(self.problems()):
            raise broken(*found)
        return self

    def plain(self) -> dict[str, Any]:
        """Mappings, lists and scalars alone, without what is at its default."""
        # Not pydantic's own dump: it warns of every field that a validator of ours produced.
        return {
            name: _plain(getattr(self, name))
            for name, info in type(self).model_fields.items()
            if info.is_required() or getattr(self, name) != info.default
        }


def _plain(value: object) -> Any:
    if isinstance(value, Frozen):
        return value.plain()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value
