"""How many samples a batch has: the first dimension of the first tensor in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_DEPTH = 4


def samples_in(batch: Any, wanted: int | None = None, depth: int = _DEPTH) -> int:
    """0 where there is no tensor with a dimension. `wanted` is the batch size that the loader was
    given: a list of so many tensors is a batch of single samples, of different sizes.
    """
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else 0
    if depth == 0 or isinstance(batch, (str, bytes)):
        return 0
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if isinstance(batch, (tuple, list)):
        if len(batch) == wanted and _single(batch, wanted):
            return wanted
        for part in batch:
            if found := samples_in(part, wanted, depth - 1):
                return found
    return 0


def _single(batch: tuple[Any, ...] | list[Any], wanted: int) -> bool:
    """Whether these are tensors of one sample each."""
    tensors = all(isinstance(part, torch.Tensor) and part.dim() for part in batch)
    return tensors and any(part.shape[0] != wanted for part in batch)
