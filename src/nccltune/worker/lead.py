"""How long each rank needs by itself. Steps take the same time on all ranks, since they wait for
each other in every backward pass; what comes before it, a rank does alone.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from nccltune.worker.ranks import Ranks

_MOST = 2000  # pairs of events


class Lead:
    """Time from the begin of a step to its backward pass, on the device that computes."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._began = 0.0
        self._seconds: list[float] = []
        self._events: list[tuple[Any, Any]] = []
        self._pair: tuple[Any, Any] | None = None

    def begin(self) -> None:
        if not self._on_gpu:
            self._began = time.perf_counter()
        elif len(self._events) < _MOST:
            event = torch.cuda.Event
            self._pair = event(enable_timing=True), event(enable_timing=True)
            self._pair[0].record()

    def end(self) -> None:
        if not self._on_gpu:
            self._seconds.append(time.perf_counter() - self._began)
        elif self._pair is not None:
            self._pair[1].record()
            self._events.append(self._pair)
            self._pair = None

    def median(self) -> float:
        """Seconds a step; the device has to be idle."""
        found = self._seconds
        if self._on_gpu:
            found = [one.elapsed_time(other) / 1000 for one, other in self._events]
        return statistics.median(found) if found else 0.0


def slowest_rank(ranks: Ranks, lead: Lead, step_seconds: float) -> dict[str, Any]:
    """The rank that the others wait for, with its node: `behind` is how much longer than the median
    rank it needs before its backward pass, as a share of a step.
    """
    seconds = [row[0] for row in ranks.gather([lead.median()])]
    rank = max(range(len(seconds)), key=seconds.__getitem__)
    usual = statistics.median_low(seconds)
    return {
        "rank_nodes": list(ranks.nodes),
        "lead_seconds": [round(spent, 6) for spent in seconds],
        "slowest": {
            "rank": rank,
            "node": ranks.nodes[rank],
            "behind": round((seconds[rank] - usual) / step_seconds, 4),
        },
    }
