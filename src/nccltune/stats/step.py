"""Where a step's time goes, and what could be won: from the times of the job with parts left out.

A step's time t is that of the slowest rank, since ranks wait for each other. Leaving
communication out, the same job would take t' at least, so no communication setting can give more
than t / t' - 1 more samples/s; the same holds for the loader. In between, the parts hide each
other: a job that waits for data gains nothing by faster communication, until its data is in time.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Rounds = Sequence[Sequence[float]]
"""Seconds by round and rank."""


@dataclass(frozen=True)
class Shares:
    """Of one rank's step, fractions that add up to 1.

    `data`: what loading adds. `compute`: the step of this rank on its own, data at hand.
    `communication`: what is left, exposed communication with waiting for slower ranks in it.
    `host`: GPU gaps that are neither, the GPU waits for its host to launch kernels; 0 on the CPU.
    """

    data: float
    compute: float
    communication: float
    host: float


@dataclass(frozen=True)
class PairSpeed:
    """What two ranks send each other, each way while the other way is as busy."""

    first: int
    second: int
    bytes_per_second: float


@dataclass(frozen=True)
class Diagnosis:
    """`step_seconds` of the whole job, `ranks` the shares of each rank's step. By rank:
    `compute_seconds` a step takes on its own with data at hand, `data_wait_seconds` that the host
    waited for batches in a step, `gpu_busy` the share of the step in which the rank's own kernels
    run, without communication (empty on the CPU); `utilization` NVML's per cent.

    `loader_seconds`: the loader's own pace, seconds a batch of the slowest rank; None without one.

    Bounds are fractions of samples/s: what communication or loader settings can win at most while
    all else stays. `communication_bound_fed`: of a job that never waits for data.
    `loader_bound_unsynced`: of one that never communicates.

    `scaling_efficiency`: a step of one rank alone over that of all; None for one rank, or where it
    was not measured. `noise`: half the range of the step's time over the rounds, a fraction.
    `pairs`: every two ranks, where there are three or more; empty where it was not measured.
    """

    world_size: int
    samples_per_second: float
    step_seconds: float
    ranks: tuple[Shares, ...]
    compute_seconds: tuple[float, ...]
    data_wait_seconds: tuple[float, ...]
    loader_seconds: float | None
    communication_bound: float
    communication_bound_fed: float
    loader_bound: float
    loader_bound_unsynced: float
    scaling_efficiency: float | None
    gpu_busy: tuple[float, ...]
    utilization: tuple[float, ...]
    noise: float
    pairs: tuple[PairSpeed, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Diagnosis:
        lists = ("compute_seconds", "data_wait_seconds", "gpu_busy", "utilization")
        ranks = tuple(Shares(**shares) for shares in data["ranks"])
        pairs = tuple(PairSpeed(**pair) for pair in data.get("pairs", ()))
        tuples = {name: tuple(data[name]) for name in lists}
        return cls(**{**data, **tuples, "ranks": ranks, "pairs": pairs})

    @property
    def communication_limit(self) -> float:
        """More samples/s than communication settings can give, loader settings changed or not:
        what a search may go by when it leaves them out.
        """
        return max(self.communication_bound, self.communication_bound_fed) + self.noise

    @property
    def loader_limit(self) -> float:
        """The same for loader settings."""
        return max(self.loader_bound, self.loader_bound_unsynced) + self.noise


def diagnosis_of(result: Mapping[str, Any], utilization: Sequence[float] = ()) -> Diagnosis:
    """From what `worker.diagnose` returns. Parts without a loader count as those with one where the
    job has none. Medians over rounds; ratios are taken within a round, where drift is small.
    """
    parts: Mapping[str, Rounds] = result["parts"]
    whole, unsynced = parts["whole"], parts["unsynced"]
    synthetic, compute = parts.get("synthetic", whole), parts.get("compute", unsynced)
    slowest = [max(row) for row in whole]
    step = statistics.median(slowest)
    busy, waits = _by_rank(result["busy"]), _by_rank(result["data_wait"])
    alone = parts.get("alone")
    return Diagnosis(
        world_size=result["world_size"],
        samples_per_second=result["world_size"] * result["batch_size"] / step,
        step_seconds=step,
        ranks=_shares([_by_rank(p) for p in (whole, unsynced, synthetic, compute)], waits, busy),
        compute_seconds=_by_rank(compute),
        data_wait_seconds=waits,
        loader_seconds=_pace(parts.get("loader")),
        communication_bound=_bound(whole, unsynced),
        communication_bound_fed=_bound(synthetic, compute),
        loader_bound=_bound(whole, synthetic),
        loader_bound_unsynced=_bound(unsynced, compute),
        scaling_efficiency=_ratio(alone, whole) if alone and result["world_size"] > 1 else None,
        gpu_busy=tuple(b / w for b, w in zip(busy, _by_rank(whole), strict=False)),
        utilization=tuple(utilization),
        noise=(max(slowest) - min(slowest)) / 2 / step,
        pairs=tuple(PairSpeed(int(i), int(j), speed) for i, j, speed in result.get("pairs", ())),
    )


def _by_rank(rounds: Rounds) -> tuple[float, ...]:
    return tuple(statistics.median(column) for column in zip(*rounds, strict=True))


def _pace(rounds: Rounds | None) -> float | None:
    return statistics.median(max(row) for row in rounds) if rounds else None


def _ratio(above: Rounds, below: Rounds) -> float:
    """Of the slowest ranks, median over the rounds."""
    pairs = zip(above, below, strict=True)
    return statistics.median(max(a) / max(b) for a, b in pairs)


def _bound(step: Rounds, without: Rounds) -> float:
    return max(0.0, _ratio(step, without) - 1)


def _shares(
    parts: Sequence[Sequence[float]], waits: Sequence[float], busy: Sequence[float]
) -> tuple[Shares, ...]:
    """`parts` are whole, unsynced, synthetic and compute; all are seconds by rank.

    What a rank's data costs is the less of two: what all win without loading, and what this rank
    wins by it on its own. So a rank that only waits for another's data is seen to wait for that
    rank, and what communication hides costs nothing. On the CPU it is at least what the rank was
    seen to wait; a GPU may be busy meanwhile.
    """
    found = []
    for rank, (step, unsynced, synthetic, compute) in enumerate(zip(*parts, strict=True)):
        own = min(compute, step)
        costs = max(0.0, min(step - synthetic, unsynced - compute))
        data = min(costs if busy else max(costs, waits[rank]), step - own)
        host = max(0.0, own - busy[rank]) if busy else 0.0
        found.append(
            Shares(
                data=data / step,
                compute=(own - host) / step,
                communication=(step - own - data) / step,
                host=host / step,
            )
        )
    return tuple(found)
