"""Configurations near another one. A configuration is a row of codes: the places of its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nccltune.study.sampling.model import Codes, Floats

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
    changes = [(a, v) for a, size in enumerate(sizes) for v in range(size) if v != start[a]]
    moves = np.array(changes, dtype=np.intp).reshape(-1, 2)
    first, second = np.triu_indices(len(moves), 1)
    apart = moves[first, 0] != moves[second, 0]
    first, second = first[apart], second[apart]
    if len(first) > _PAIRS:
        kept = rng.choice(len(first), _PAIRS, replace=False)
        first, second = first[kept], second[kept]
    rows = np.repeat(start[None, :], len(first), axis=0)
    for moved in (first, second):
        rows[np.arange(len(rows)), moves[moved, 0]] = moves[moved, 1]
    return rows


def climbed(
    start: Codes,
    sizes: NDArray[Any],
    score: Callable[[Codes], Floats],
    *,
    changes: int | None = None,
) -> Codes:
    """What lies on the way of steps of one parameter that `score` (one number for each row) grows
    by: the best fifth beside each. `changes`: where it stays within so many of the start.
    """
    here, top, rows = start, -np.inf, []
    for _ in range(2 * len(sizes)):
        options = singles(here, sizes)
        if changes is not None:
            options = options[(options != start).sum(axis=1) <= changes]
        scores = score(options)
        rows.append(options[scores >= np.quantile(scores, 0.8)])
        best = int(scores.argmax())
        if scores[best] <= top:
            break
        here, top = options[best], scores[best]
    return np.concatenate(rows)
