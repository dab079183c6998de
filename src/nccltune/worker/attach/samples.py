"""How many samples a batch has: the first dimension of the first tensor in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_DEPTH = 4


def samples_in(batch: Any, depth: int = _DEPTH) -> int:
    """0 where there is no tensor with a dimension."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else 0
    if depth == 0 or isinstance(batch, (str, bytes)):
        return 0
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if isinstance(batch, (tuple, list)):
        for part in batch:
            if found := samples_in(part, depth - 1):
                return found
    return 0
