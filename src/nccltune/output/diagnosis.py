"""A diagnosis in words: one paragraph, and findings with the next step. No printing here."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator

from nccltune.output import words
from nccltune.output.findings import Finding
from nccltune.stats.step import Diagnosis

# Rules of thumb: a share of the step above which it is worth a look.
_COMMUNICATION, _HEAVY = 0.20, 0.30
_DATA = 0.05
_HOST = 0.10
_STRAGGLER = 0.05
_EFFICIENCY = 0.90
_NOISE = 0.05
_LITTLE = 0.02


def paragraph(diagnosis: Diagnosis) -> str:
    """Where a step's time goes, and what can be won at most."""
    found = diagnosis
    ranks = "1 rank" if found.world_size == 1 else f"{found.world_size} ranks"
    host = [rank.host for rank in found.ranks]
    parts = [
        f"loses {_percents(rank.data for rank in found.ranks)} to loading data",
        f"computes {_percents(rank.compute for rank in found.ranks)}",
        *([f"waits {_percents(host)} for its host to launch kernels"] if found.gpu_busy else []),
    ]
    shared = _percents(rank.communication for rank in found.ranks)
    sentences = [
        f"Of a step of {_milliseconds(found.step_seconds)} "
        f"({words.samples(found.samples_per_second)} samples/s of {ranks}) a rank "
        f"{', '.join(parts)}, and {shared} is communication that computing does not hide.",
        _bounds(found),
    ]
    if found.scaling_efficiency is not None:
        sentences.append(
            f"{ranks} do {found.scaling_efficiency * found.world_size:.2f} times the "
            f"work of one: scaling efficiency {_percent(found.scaling_efficiency)}."
        )
    if found.gpu_busy:
        seen = ", ".join(f"{u:.0f}%" for u in found.utilization) or "nothing"
        sentences.append(
            f"The ranks' own kernels keep their GPUs busy {_percents(found.gpu_busy)} of the time; "
            f"NVML's utilisation, in which communication counts, says {seen}."
        )
    return " ".join(sentences)


def _bounds(found: Diagnosis) -> str:
    text = (
        f"Communication settings can win at most {_percent(found.communication_bound)} more "
        f"samples/s, loader settings at most {_percent(found.loader_bound)}"
    )
    slack = max(_LITTLE, found.noise)
    if found.communication_bound_fed > found.communication_bound + slack:
        text += (
            "; were data always at hand, communication settings could win "
            f"{_percent(found.communication_bound_fed)}"
        )
    if found.loader_bound_unsynced > found.loader_bound + slack:
        text += (
            "; were communication free, loader settings could win "
            f"{_percent(found.loader_bound_unsynced)}"
        )
    return f"{text}."


def findings(diagnosis: Diagnosis, *, backend: str = "nccl") -> list[Finding]:
    """What is out of the ordinary: fact, limit, next step. `backend` says which settings act."""
    return [
        *_noisy(diagnosis),
        *_data(diagnosis),
        *_communication(diagnosis, backend),
        *_host(diagnosis),
        *_straggler(diagnosis),
        *_scaling(diagnosis),
        *_nothing(diagnosis),
    ]


def _noisy(found: Diagnosis) -> Iterator[Finding]:
    if found.noise > _NOISE:
        yield Finding(
            "warning",
            "noise",
            f"A step's time differed by +-{_percent(found.noise)} between rounds (limit "
            f"{_percent(_NOISE)}), and what is said of the step is no finer",
            "see what else runs on this machine, and repeat",
        )


def _data(found: Diagnosis) -> Iterator[Finding]:
    share = max(rank.data for rank in found.ranks)
    if share <= _DATA:
        return
    limit = f"(limit {_percent(_DATA)})"
    awaited = max(found.data_wait_seconds) / found.step_seconds
    if awaited >= share / 2:
        who = "GPUs idle" if found.gpu_busy else "Ranks idle"
        text = f"{who} while data is awaited, {_percent(share)} of the step {limit}"
    else:
        text = (
            f"Loading costs {_percent(share)} of the step {limit}, though data is awaited for only "
            f"{_percent(awaited)}: loading and training compete for processor cores or memory"
        )
    yield Finding("warning", "loader", f"{text}{_pace(found)}", "nccltune search --only loader")


def _pace(found: Diagnosis) -> str:
    if found.loader_seconds is None:
        return ""
    own = max(found.compute_seconds)
    pace = (
        f". The loader takes {_milliseconds(found.loader_seconds)} a batch on its own, training "
        f"{_milliseconds(own)}"
    )
    if found.loader_seconds > own:
        return f"{pace}: it needs more workers, faster files or less work a sample"
    return f"{pace}: it is fast enough until both want the same cores"


def _communication(found: Diagnosis, backend: str) -> Iterator[Finding]:
    share = max(rank.communication for rank in found.ranks)
    if share <= _COMMUNICATION:
        return
    limit = (
        f"above {_percent(_HEAVY)}: heavy"
        if share > _HEAVY
        else f"limit {_percent(_COMMUNICATION)}"
    )
    targets = "--only env --only ddp" if backend == "nccl" else "--only ddp"
    yield Finding(
        "warning",
        "communication",
        f"Exposed communication, with waiting for slower ranks, takes {_percent(share)} of the "
        f"step ({limit})",
        f"nccltune search {targets}; larger batches communicate less often",
    )


def _host(found: Diagnosis) -> Iterator[Finding]:
    share = max(rank.host for rank in found.ranks)
    if share > _HOST:
        yield Finding(
            "warning",
            "host",
            f"GPUs wait for their hosts to launch kernels {_percent(share)} of the step (limit "
            f"{_percent(_HOST)}), which no setting searched here changes",
            "torch.compile or CUDA graphs, a larger batch, a faster processor",
        )


def _straggler(found: Diagnosis) -> Iterator[Finding]:
    usual = statistics.median_low(found.compute_seconds)
    slowest = max(found.compute_seconds)
    if slowest > (1 + max(_STRAGGLER, found.noise)) * usual:
        rank = found.compute_seconds.index(slowest)
        clocks = "its GPU's clocks and temperature, and at " if found.gpu_busy else ""
        yield Finding(
            "warning",
            "compute",
            f"Rank {rank} computes {_percent(slowest / usual - 1)} longer than other ranks (limit "
            f"{_percent(_STRAGGLER)} above the median), and all wait for it",
            f"look at {clocks}what else runs on its cores",
        )


def _scaling(found: Diagnosis) -> Iterator[Finding]:
    efficiency = found.scaling_efficiency
    if efficiency is not None and efficiency < _EFFICIENCY:
        yield Finding(
            "note",
            "scaling",
            f"Scaling efficiency is {_percent(efficiency)} (limit {_percent(_EFFICIENCY)}): beside "
            "exposed communication, ranks share processor cores, memory and disk",
            "see which part grows with --nproc-per-node",
        )


def _nothing(found: Diagnosis) -> Iterator[Finding]:
    most = max(found.communication_limit, found.loader_limit)
    if most <= _LITTLE:
        yield Finding(
            "note",
            "defaults",
            f"Neither communication nor loader settings can win more than {_percent(most)}: what "
            "is left is the computing itself, and the batch size",
            "keep the defaults",
        )


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f}%"


def _percents(fractions: Iterable[float]) -> str:
    """One number, or the range over ranks where they differ."""
    numbers = sorted(round(100 * fraction) for fraction in fractions)
    low, high = numbers[0], numbers[-1]
    return f"{low}%" if low == high else f"{low} to {high}%"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"
