"""Batch sizes above the user's own: which there are, and what memory they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nccltune.space import Parameter, ResolvedSpace
from nccltune.study.records import Stage, Trial

FEWEST_FOR_BATCH = 8
"""Trials of a search that tries larger batches."""


@dataclass(frozen=True)
class Memory:
    """What a rank may use (bytes; None: no limit known), and what a trial's fullest rank used."""

    available: int | None
    peak: Callable[[Trial], int | None]


def foreseen_memory(measured: Mapping[int, int], batch_size: int) -> float:
    """Peak bytes at a batch size, on the line through the two largest that were measured; 0 when
    two are not known. Activations grow with the batch, everything else stays.
    """
    if len(measured) < 2:
        return 0.0
    small, large = sorted(measured)[-2:]
    per_sample = (measured[large] - measured[small]) / (large - small)
    return measured[large] + per_sample * (batch_size - large)


def leaves_out_larger(space: ResolvedSpace, batch_size: int, trials: int) -> bool:
    """Whether a search of so many trials has none for larger batches, which the space has."""
    others = any(p.target != "batch" for p in space.parameters)
    return trials < FEWEST_FOR_BATCH and others and bool(larger_batches(space, batch_size))


def larger_batches(space: ResolvedSpace, batch_size: int) -> list[int]:
    """The batch sizes of the space above the user's own, ascending; empty where not searched."""
    parameter = next((p for p in space.parameters if p.target == "batch"), None)
    if parameter is None:
        return []
    if parameter.choices is not None:
        candidates = [c for c in parameter.choices if isinstance(c, int)]
    else:
        assert parameter.range is not None
        candidates, size = [], batch_size * 2
        while size <= parameter.range.high:
            candidates.append(size)
            size *= 2
    return sorted(size for size in candidates if size > batch_size)


def stage_parameters(space: ResolvedSpace) -> dict[Stage, list[Parameter]]:
    """What the sampler proposes in each stage."""
    return {
        "search": [p for p in space.parameters if p.target != "batch"],
        "batch": [p for p in space.parameters if p.target in ("batch", "loader")],
    }
