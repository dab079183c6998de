"""Configurations near another one. A configuration is a row of codes: the places of its values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nccltune.study.sampling.model import Codes

_PAIRS = 1200  # pairs of changes looked at beside the best


def singles(start: Codes, sizes: NDArray[Any]) -> Codes:
    """The configuration itself and all that differ in one parameter."""
    rows = [start]
    for axis, size in enumerate(sizes):
        for value in range(size):
            if value != start[axis]:
                row = start.copy()
                row[axis] = value
                rows.append(row)
    return np.array(rows)


def doubles(start: Codes, sizes: NDArray[Any], rng: np.random.Generator) -> Codes:
    """Configurations that differ in two parameters, drawn where there are many."""
    moves = [(a, v) for a, size in enumerate(sizes) for v in range(size) if v != start[a]]
    pairs = [(x, y) for i, x in enumerate(moves) for y in moves[i + 1 :] if x[0] != y[0]]
    if len(pairs) > _PAIRS:
        pairs = [pairs[i] for i in rng.choice(len(pairs), _PAIRS, replace=False)]
    rows = np.repeat(start[None, :], len(pairs), axis=0)
    for row, changes in zip(rows, pairs, strict=True):
        for axis, value in changes:
            row[axis] = value
    return rows
