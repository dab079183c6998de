"""Where a step's time goes: the job, and the job with parts left out, take turns in live ranks.

What a part costs is what the job is faster by without it. The turns go forward and backward
(ABBA), so that a steady drift of the machine cancels.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist

from nccltune.worker.feed import SyntheticFeed
from nccltune.worker.job import Communicator, Job
from nccltune.worker.measure import begin, drive, tear_down
from nccltune.worker.ranks import Ranks
from nccltune.worker.spec import Request
from nccltune.worker.status import Status
from nccltune.worker.timer import Announce, Clock, WindowTimer
from nccltune.worker.windows import window_steps

_LONGEST_REST = 10.0
_SINGLE_STEPS = 3
_CALIBRATION = 10_000_000  # cycles: some milliseconds
_LONGEST_HOLD = 2.0
_PAIR_BYTES = 64 << 20
_EXCHANGES = 3  # of a pair, after one that makes the connection
_LONGEST_PAIRS = 5.0
_ROOM = 2 << 30  # bytes of a GPU's memory that buffers for all pairs may take


@dataclass(frozen=True)
class Part:
    """The job, or less of it. `loads`: batches come from the loader, not one that stays on the
    device. `alone`: on rank 0, while the other ranks idle.
    """

    name: str
    loads: bool = True
    trains: bool = True
    syncs: bool = False
    alone: bool = False


WHOLE = Part("whole", syncs=True)
UNSYNCED = Part("unsynced")
LOADER = Part("loader", trains=False)
ALONE = Part("alone", alone=True)
SYNTHETIC = Part("synthetic", loads=False, syncs=True)
COMPUTE = Part("compute", loads=False)


def parts_of(job: Job, request: Request) -> list[Part]:
    """In the order of an odd round; those that load stand together. In either direction `whole` and
    `unsynced` follow a part that leaves the loader's queue as they do, or empty.
    """
    parts = [WHOLE, UNSYNCED, LOADER, ALONE, SYNTHETIC, COMPUTE]
    if request.workload.data == "synthetic":
        parts = [replace(part, loads=False) for part in (WHOLE, UNSYNCED, ALONE)]
    if any(isinstance(module, torch.nn.SyncBatchNorm) for module in job.model.modules()):
        parts = [part for part in parts if not part.alone]  # it would wait for the others for ever
    return parts


def diagnose(request: Request, ranks: Ranks, status: Status, announce: Announce) -> dict[str, Any]:
    """Time the parts of one job and return plain JSON, the same on every rank.

    `parts` has seconds a step by name, round and rank (`alone`: of rank 0; `loader`: seconds a
    batch); `data_wait` seconds a step that the host waited for batches in `whole`; `host` seconds
    in which the host issues a step's kernels, and `busy` seconds in which the GPU runs them when
    they lie ready, both by round and rank and of the job without loader and synchronisation (empty
    on the CPU); `pairs` what `exchange_pairs` measured, [rank, rank, bytes/s] each.
    """
    clock = Clock(announce)
    communicator, job = begin(request, ranks, status, clock)
    timer = WindowTimer(request.settings, ranks, job, clock, announce)
    steady = drive(job, timer.warming())
    turns = Turns(request, ranks, job, clock, 1 / timer.windows[-1].steps_per_second)
    turns.take_all(parts_of(job, request))
    pairs = _pairs(job, communicator, ranks, status, clock)
    clock.stop()
    result = {
        "world_size": ranks.world_size,
        "batch_size": request.batch_size,
        "workers": job.feed.workers,
        "parts": turns.seconds,
        "data_wait": turns.waits,
        "host": turns.host,
        "busy": turns.busy,
        "pairs": pairs,
        "steady": steady,
        "seconds": {phase: round(spent, 4) for phase, spent in clock.seconds.items()},
    }
    turns.close()
    tear_down(job, communicator)
    return result


class Turns:
    """Takes windows of the parts in turn. All ranks see the same gathered numbers, and so go
    through the same windows without asking.
    """

    def __init__(
        self, request: Request, ranks: Ranks, job: Job, clock: Clock, step_seconds: float
    ) -> None:
        self._settings = request.settings
        self._ranks, self._job, self._clock = ranks, job, clock
        self._first_guess = step_seconds
        self._loader = job.feed
        self._still = _still_feed(job)
        self._filling, self._response = True, 0.0
        self._hold_cycles = 0.0
        self.seconds: dict[str, list[list[float]]] = {}
        self.waits: list[list[float]] = []
        self.host: list[list[float]] = []
        self.busy: list[list[float]] = []

    def take_all(self, parts: Sequence[Part]) -> None:
        """Rounds in pairs, until there are enough or they have taken long."""
        settings, began = self._settings, time.monotonic()
        rounds = settings.windows + settings.windows % 2
        for number in range(rounds):
            self._clock.announce("round", round=number + 1, rounds=rounds)
            for part in parts if number % 2 == 0 else reversed(parts):
                self._take(part)
            spent = self._ranks.gather([time.monotonic() - began])[0][0]
            if number % 2 and spent >= settings.max_measure_seconds * len(parts):
                return

    def close(self) -> None:
        """The job has its own feed again."""
        self._job.feed = self._loader
        if self._still is not self._loader:
            self._still.close()

    def _take(self, part: Part) -> None:
        """One window. That of `whole` is the phase in which the tuner looks at the GPUs."""
        self._clock.start("measure" if part.name == "whole" else "parts")
        self._prepare(part)
        feed, settings = self._job.feed, self._settings
        guess = self._lead_in(part)
        steps = window_steps(guess, feed.workers, settings.window_seconds, settings)
        feed.start_window()
        spent = self._run(part, steps)
        waited, response = feed.window_stats()
        rows = self._ranks.gather([spent / steps, waited / steps, response])
        seconds = [round(row[0], 7) for row in rows]
        self.seconds.setdefault(part.name, []).append(seconds[:1] if part.alone else seconds)
        if part.loads:
            self._filling, self._response = True, max(row[2] for row in rows)
        if part.name == "whole":
            self.waits.append([round(row[1], 7) for row in rows])
        self._clock.announce("window", window={"part": part.name, "steps": steps})
        if not (part.loads or part.syncs or part.alone) and self._job.device.type == "cuda":
            self._look_at_gpu()

    def _prepare(self, part: Part) -> None:
        """The right feed, and the loader's queue as the part needs it: empty where its own pace is
        wanted, full where its workers must not take the processor from others.
        """
        job = self._job
        if part.alone:
            job.feed = self._still
            with job.model.no_sync():
                job.step("parts")  # or the next would broadcast buffers, and nobody would listen
        if self._filling and (part.alone or not part.loads):
            time.sleep(min(_LONGEST_REST, 1.5 * self._response))
            self._filling = False
        job.feed = self._loader if part.loads else self._still
        self._ranks.gather([0.0])
        if self._acts(part) and (part.alone or not part.trains):
            job.feed.drain()

    def _lead_in(self, part: Part) -> float:
        """Steps before the window, and how long one took on the slowest rank, seconds."""
        known = self.seconds.get(part.name)
        guess = max(known[-1]) if known else self._first_guess
        few = replace(self._settings, window_steps=2)
        steps = window_steps(guess, self._job.feed.workers, few.warmup_window_seconds, few)
        rows = self._ranks.gather([self._run(part, steps) / steps])
        return max(row[0] for row in rows)

    def _acts(self, part: Part) -> bool:
        return not part.alone or self._ranks.rank == 0

    def _run(self, part: Part, steps: int) -> float:
        """Seconds of so many steps on this rank; 0 where it idles."""
        if not self._acts(part):
            return 0.0
        job = self._job
        began = time.perf_counter()
        with contextlib.nullcontext() if part.syncs else job.model.no_sync():
            for _ in range(steps):
                if part.trains:
                    job.step("parts")
                else:
                    job.pull("parts")
        job.synchronize()
        return time.perf_counter() - began

    def _look_at_gpu(self) -> None:
        """Single steps that begin with an idle GPU give the host's time, since nothing it waits for
        is ahead of it; steps that pile up behind a GPU held busy give the GPU's own time.
        """
        job = self._job
        with job.model.no_sync():
            host = statistics.median(_issue_seconds(job) for _ in range(_SINGLE_STEPS))
            if not self._hold_cycles:
                self._hold_cycles = _cycles_a_second(job.device)
            hold = int(min(_LONGEST_HOLD, 2 * host) * self._hold_cycles)
            busy = statistics.median(_busy_seconds(job, hold) for _ in range(_SINGLE_STEPS))
        rows = self._ranks.gather([host, busy])
        self.host.append([round(row[0], 7) for row in rows])
        self.busy.append([round(row[1], 7) for row in rows])


def _still_feed(job: Job) -> SyntheticFeed:
    """One batch like the job's own that stays on the device."""
    if isinstance(job.feed, SyntheticFeed):
        return job.feed
    inputs, targets = job.feed.next()
    return SyntheticFeed((inputs.to(job.device), targets.to(job.device)))


def _issue_seconds(job: Job) -> float:
    """How long the host takes to issue one step's kernels."""
    job.synchronize()
    began = time.perf_counter()
    job.step("parts")
    return time.perf_counter() - began


def _busy_seconds(job: Job, hold_cycles: int) -> float:
    """How long the GPU takes for one step whose kernels lie ready, seconds. Too long where a step
    itself waits for the GPU (a loss scaler does) or has more kernels than the queue takes (about a
    thousand): then some of the host's time is in it.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    job.synchronize()
    torch.cuda._sleep(hold_cycles)
    begin.record()
    job.step("parts")
    end.record()
    job.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def _cycles_a_second(device: torch.device) -> float:
    """Of the kernel that only waits."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_CALIBRATION)  # the first one loads the kernel
    begin.record()
    torch.cuda._sleep(_CALIBRATION)
    end.record()
    torch.cuda.synchronize(device)
    return 1000 * _CALIBRATION / float(begin.elapsed_time(end))


def _pairs(
    job: Job, communicator: Communicator, ranks: Ranks, status: Status, clock: Clock
) -> list[list[float]]:
    """On the job's own communicator: another one would set up again whatever NCCL uses between all
    ranks, NVLink multicast among it. None of two ranks, which are one pair, none where there is no
    room for more buffers, and none by gloo from GPUs, whose memory it does not send.
    """
    on_gpus = job.device.type == "cuda"
    if ranks.world_size < 3 or (on_gpus and dist.get_backend(communicator.group) != "nccl"):
        return []
    clock.start("pairs")
    status.at("pairs")
    room = _ROOM
    if on_gpus:
        torch.cuda.empty_cache()
        room = torch.cuda.mem_get_info(job.device)[0]
    if min(row[0] for row in ranks.gather([float(room)])) < _ROOM:
        return []
    return exchange_pairs(ranks, job.device, communicator.group)


def exchange_pairs(
    ranks: Ranks, device: torch.device, group: dist.ProcessGroup
) -> list[list[float]]:
    """How fast each two ranks exchange data, one pair after another: [rank, rank, bytes/s], each
    way while the other way is as busy. Empty where that takes too long to finish: then nobody
    knows which pair is the slowest. All ranks of `group` have communicated in it before.
    """
    data = [torch.zeros(_PAIR_BYTES, dtype=torch.uint8, device=device) for _ in range(2)]
    found: list[list[float]] = []
    began, spent = time.monotonic(), 0.0
    for pair in combinations(range(ranks.world_size), 2):
        if spent > _LONGEST_PAIRS:
            return []
        own = _exchange_seconds(pair, ranks.rank, data, group)
        rows = ranks.gather([own, time.monotonic() - began])
        found.append([*pair, round(_PAIR_BYTES / max(row[0] for row in rows))])
        spent = rows[0][1]
    return found


def _exchange_seconds(
    pair: tuple[int, int], rank: int, data: Sequence[torch.Tensor], group: dist.ProcessGroup
) -> float:
    """The shortest of some exchanges; 0 on ranks that are not of the pair."""
    if rank not in pair:
        return 0.0
    other = sum(pair) - rank
    seconds = []
    for _ in range(1 + _EXCHANGES):
        began = time.perf_counter()
        ways = zip((dist.isend, dist.irecv), data, strict=True)
        for work in dist.batch_isend_irecv([dist.P2POp(to, t, other, group) for to, t in ways]):
            work.wait()
        if data[0].is_cuda:
            torch.cuda.synchronize(data[0].device)
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])
