"""One measurement in a live worker group: build, first steps, checks, warm-up, windows."""

from __future__ import annotations

import gc
import math
import statistics
from typing import Any

import torch

from nccltune.worker.check import check_collectives, check_parameters
from nccltune.worker.job import Communicator, Job
from nccltune.worker.lead import Lead, slowest_rank
from nccltune.worker.memory import forget_peak_memory, held_memory, peak_memory
from nccltune.worker.ranks import Ranks
from nccltune.worker.spec import Request
from nccltune.worker.status import Status
from nccltune.worker.timer import Announce, AwaitTurn, Clock, IsHopeless, Steps, WindowTimer
from nccltune.worker.windows import QUEUE_TREND, queue_trend


def measure(
    request: Request,
    ranks: Ranks,
    status: Status,
    announce: Announce,
    await_turn: AwaitTurn,
    is_hopeless: IsHopeless,
) -> dict[str, Any]:
    """Measure one configuration and return its result (the same on every rank), as plain JSON.
    `await_turn` returns when the tuner lets this group go on; only a request with turns waits.
    `is_hopeless` is what the tuner answers; only a request that asks does.
    """
    clock = Clock(announce)
    communicator, job = begin(request, ranks, status, clock)
    first_loss = ranks.gather([math.nan if job.loss is None else float(job.loss)])[0][0]
    clock.start("check")
    status.at("check")
    checked = check_collectives(job, communicator.group, ranks)
    forget_peak_memory(job.device)
    turn = await_turn if request.turns else None
    asked = is_hopeless if request.asks else None
    timer = WindowTimer(request.settings, ranks, job, clock, announce, turn, asked)
    steady = drive(job, timer.warming())
    if ranks.spread:
        job.lead = Lead(job.device)
    cut = drive(job, timer.measuring())
    clock.start("verify")
    status.at("verify")
    check_parameters(job.model, ranks)
    result = _result(ranks, job, timer, clock, checked, steady, cut)
    slowest = {} if job.lead is None else slowest_rank(ranks, job.lead, result["step_seconds"])
    # Not after an error: the group is broken then, and closing a broken communicator can hang.
    device = job.device
    tear_down(job, communicator)
    held = ranks.gather([float(held_memory(device))])
    return {
        **result,
        **slowest,
        "first_loss": first_loss if math.isfinite(first_loss) else None,
        "held_memory_bytes": [int(row[0]) for row in held],
    }


def begin(request: Request, ranks: Ranks, status: Status, clock: Clock) -> tuple[Communicator, Job]:
    """The job on a communicator of its own, its first steps taken."""
    clock.start("build")
    status.at("build")
    communicator = Communicator(request)
    job = Job(request, ranks, communicator.group, status, clock.announce)
    clock.start("first_step")
    for _ in range(2):  # DDP rebuilds its buckets after the first
        job.step("first_step")
    job.synchronize()
    return communicator, job


def drive(job: Job, steps: Steps) -> bool:
    """Take the steps that a timer asks for; gives what it returns."""
    while True:
        try:
            phase = next(steps)
        except StopIteration as ended:
            return bool(ended.value)
        job.step(phase)


def tear_down(job: Job, communicator: Communicator) -> None:
    """Let go of the job and its communicator, so that a next one can be made."""
    job.close()
    gc.collect()  # the old communicator must be gone before a next one is made
    communicator.close()
    if job.device.type == "cuda":
        torch.cuda.empty_cache()


def _result(
    ranks: Ranks, job: Job, timer: WindowTimer, clock: Clock, checked: int, steady: bool, cut: bool
) -> dict[str, Any]:
    clock.stop()
    loss = math.nan if job.loss is None else float(job.loss)
    memory = ranks.gather([float(value) for value in peak_memory(job.device)])
    return {
        **figures(timer, steady, cut),
        "collectives_checked": checked,
        "parameters": sum(p.numel() for p in job.model.parameters()),
        "bucket_bytes": job.bucket_bytes(),
        "peak_memory_bytes": [int(row[0]) for row in memory],
        "reserved_memory_bytes": [int(row[1]) for row in memory],
        "loss": loss if math.isfinite(loss) else None,
        "seconds": {phase: round(spent, 4) for phase, spent in clock.seconds.items()},
    }


def figures(timer: WindowTimer, steady: bool, cut: bool) -> dict[str, Any]:
    """What the windows say together. Raises RuntimeError where none of them counts."""
    counting = timer.counting
    if not counting:
        raise RuntimeError("no window without an interruption: a loader or a validation in each")
    return {
        "samples_per_second": statistics.median(timer.rates()),
        "step_seconds": statistics.median([w.seconds / w.steps for w in counting]),
        "data_wait_share": sum(w.data_wait for w in counting) / sum(w.seconds for w in counting),
        "steps": sum(window.steps for window in counting),
        "windows": [window.to_dict() for window in timer.windows],
        "steady": steady and abs(queue_trend(counting)) <= QUEUE_TREND,
        "queue_trend": round(queue_trend(counting), 4),
        "cut": cut,
    }
