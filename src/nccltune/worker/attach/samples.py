"""How many samples a batch has: the first dimension of the first tensor in it, or of the one that
has the batch size of its loader.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch.nn.utils.rnn import PackedSequence

_DEPTH = 4
_FIRST, _SECOND, _LENGTH = "first dimension", "second dimension", "length"
_Rule = tuple[tuple[Any, ...], str]
"""The way into a batch, and what is counted there."""


class BatchSize:
    """Counts the batches of one loader. Where to look is settled by the first batch that is full:
    in a shorter one another dimension may happen to be the batch size.
    """

    def __init__(self, wanted: int | None = None) -> None:
        """`wanted` is the batch size that the loader was given."""
        self._wanted = wanted
        self._rule: _Rule | None = None

    def of(self, batch: Any) -> int:
        """0 where there is no tensor with a dimension."""
        if self._rule is None and self._wanted:
            self._rule = _settled(batch, self._wanted)
        if self._rule is not None:
            found = _followed(batch, *self._rule)
            if found is not None:
                return found
        return next((shape[0] for _, shape in _leaves(batch)), 0)


def samples_in(batch: Any) -> int:
    """Of a batch of which nothing else is known."""
    return BatchSize().of(batch)


def _settled(batch: Any, wanted: int) -> _Rule | None:
    """The first place with so many samples; a second dimension only where there is no other."""
    for path, part in _inner(batch):
        if _are_single(part, wanted):
            return path, _LENGTH
    leaves = list(_leaves(batch))
    for path, shape in leaves:
        if shape[0] == wanted:
            return path, _FIRST
    for path, shape in leaves:  # time before batch, as recurrent networks have it
        if len(shape) > 1 and shape[1] == wanted:
            return path, _SECOND
    return None


def _followed(batch: Any, path: tuple[Any, ...], what: str) -> int | None:
    for step in path:
        parts = _parts(batch)
        if parts is None or step not in parts:
            return None
        batch = parts[step]
    if what == _LENGTH:
        return len(batch) if isinstance(batch, (tuple, list)) else None
    shape, place = _shape(batch), int(what == _SECOND)
    return shape[place] if len(shape) > place else None


def _are_single(part: Any, wanted: int) -> bool:
    """Whether these are tensors of one sample each, of different sizes: a list of so many."""
    if isinstance(part, PackedSequence) or not isinstance(part, (tuple, list)):
        return False
    if len(part) != wanted:
        return False
    shapes = [_shape(each) for each in part]
    return all(shapes) and any(shape[0] != wanted for shape in shapes)


def _leaves(batch: Any) -> Iterator[tuple[tuple[Any, ...], tuple[int, ...]]]:
    """Tensors and arrays that have a dimension: the way to each, and its shape."""
    for path, part in _inner(batch):
        if shape := _shape(part):
            yield path, shape


def _inner(batch: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The batch and all that is in it, what comes first first."""
    yield path, batch
    if len(path) < _DEPTH and (parts := _parts(batch)) is not None:
        for name, part in parts.items():
            yield from _inner(part, (*path, name))


def _parts(batch: Any) -> Mapping[Any, Any] | None:
    if isinstance(batch, PackedSequence):  # a tuple, of time steps
        return None
    if isinstance(batch, Mapping):
        return batch
    if isinstance(batch, (tuple, list)):
        return dict(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return vars(batch) if hasattr(batch, "__dict__") else None
    return None


def _shape(part: Any) -> tuple[int, ...]:
    """Of a tensor or an array; empty for anything else, and for a single number."""
    if isinstance(part, PackedSequence):
        return (int(part.batch_sizes[0]),)
    if getattr(part, "is_nested", False):  # without a shape, or with symbols in it
        return (int(part.size(0)),)
    shape = getattr(part, "shape", ())
    return tuple(shape) if isinstance(shape, tuple) else ()
