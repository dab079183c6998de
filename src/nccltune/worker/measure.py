"""One measurement in a live worker group: build, first steps, checks, warm-up, windows."""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from nccltune.worker.check import check_collectives, check_parameters
from nccltune.worker.job import Communicator, Job
from nccltune.worker.ranks import Ranks
from nccltune.worker.spec import Request
from nccltune.worker.status import Status
from nccltune.worker.windows import (
    QUEUE_TREND,
    Window,
    hopeless,
    is_draining,
    queue_trend,
    settled,
    warmed_up,
    window_steps,
)

Announce = Callable[..., None]
AwaitTurn = Callable[[], None]

_MOST_DRAINS = 3


def measure(
    request: Request, ranks: Ranks, status: Status, announce: Announce, await_turn: AwaitTurn
) -> dict[str, Any]:
    """Measure one configuration and return its result (the same on every rank), as plain JSON.
    `await_turn` returns when the tuner lets this group go on; only a request with turns waits.
    """
    clock = Clock(announce)
    communicator, job = begin(request, ranks, status, clock)
    first_loss = ranks.gather([math.nan if job.loss is None else float(job.loss)])[0][0]
    clock.start("check")
    status.at("check")
    checked = check_collectives(job, communicator.group, ranks)
    _forget_peak_memory(job)
    timer = WindowTimer(request, ranks, job, clock, announce, await_turn)
    steady = timer.warm_up()
    cut = timer.measure()
    clock.start("verify")
    status.at("verify")
    check_parameters(job.model, ranks)
    result = _result(request, ranks, job, timer, clock, checked, steady, cut)
    # Not after an error: the group is broken then, and closing a broken communicator can hang.
    device = job.device
    tear_down(job, communicator)
    held = ranks.gather([float(_held_memory(device))])
    return {
        **result,
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


def tear_down(job: Job, communicator: Communicator) -> None:
    """Let go of the job and its communicator, so that a next one can be made."""
    job.close()
    gc.collect()  # the old communicator must be gone before a next one is made
    communicator.close()
    if job.device.type == "cuda":
        torch.cuda.empty_cache()


@dataclass
class Clock:
    """How long each phase took, seconds; tells the tuner when a new one begins."""

    announce: Announce
    seconds: dict[str, float] = field(default_factory=dict)
    _phase: str | None = None
    _since: float = 0.0

    def start(self, phase: str) -> None:
        self.stop()
        self._phase, self._since = phase, time.monotonic()
        self.announce("phase", phase=phase)

    def stop(self) -> None:
        if self._phase is not None:
            spent = time.monotonic() - self._since
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + spent
        self._phase = None


class WindowTimer:
    """Runs windows until they are steady, then those that count."""

    def __init__(
        self,
        request: Request,
        ranks: Ranks,
        job: Job,
        clock: Clock,
        announce: Announce,
        await_turn: AwaitTurn = lambda: None,
    ) -> None:
        self._request, self._ranks, self._job = request, ranks, job
        self._clock, self._announce, self._await_turn = clock, announce, await_turn
        self.windows: list[Window] = []
        self._settled = 0

    @property
    def counting(self) -> list[Window]:
        return [window for window in self.windows if window.counts]

    def rates(self) -> list[float]:
        samples = self._request.batch_size * self._ranks.world_size
        return [samples * window.steps_per_second for window in self.counting]

    def warm_up(self) -> bool:
        """Returns whether the windows became steady within the limits."""
        self._clock.start("warmup")
        settings = self._request.settings
        self._settle()
        begin, drains = 0, 0
        while True:
            self._run("warmup", warmup=True)
            windows = self.windows[begin:]
            over, steady = warmed_up(windows, settings)
            if over:
                return steady
            if drains < _MOST_DRAINS and self._draining(
                settled(windows)[-settings.steady_windows :]
            ):
                self._job.feed.drain()
                self._settle()
                begin, drains = len(self.windows), drains + 1

    def _settle(self) -> None:
        """From here on, what lies in the queue has to be consumed before windows can count; one
        more step may be taken to size the first of them.
        """
        self._settled = self._job.feed.consumed + 1 + self._job.feed.buffered

    def _draining(self, windows: list[Window]) -> bool:
        several = len(windows) >= self._request.settings.steady_windows
        return several and is_draining(windows, self._job.feed.workers)

    def measure(self) -> bool:
        """Returns whether it was ended early as surely slower than the incumbent."""
        if not self._request.turns:
            self._clock.start("measure")
        settings = self._request.settings
        for number in range(2 * settings.windows):
            if self._request.turns:
                self._take_turn()
            self._run("measure", warmup=False)
            counting = self.counting
            if self._draining(counting) and number < 2 * settings.windows - 1:
                self._discard_first()  # a later one makes up for it, in bounds
                continue
            spent = sum(window.seconds for window in counting)
            if len(counting) >= settings.windows:
                return False
            if len(counting) >= 2 and spent >= settings.max_measure_seconds:
                return False
            if hopeless(self.rates(), settings):
                return True
        return False

    def _take_turn(self) -> None:
        """Wait, then take one step that is not timed: the caches hold what the other group did."""
        self._clock.start("wait")
        self._await_turn()
        self._clock.start("measure")
        self._job.step("measure")
        self._job.synchronize()

    def _discard_first(self) -> None:
        first = next(i for i, window in enumerate(self.windows) if window.counts)
        self.windows[first] = replace(self.windows[first], counts=False)

    def _run(self, phase: str, *, warmup: bool) -> Window:
        job, feed = self._job, self._job.feed
        settings = self._request.settings
        wanted = settings.warmup_window_seconds if warmup else settings.window_seconds
        steps = window_steps(self._step_seconds(), feed.workers, wanted, settings)
        early = feed.consumed < self._settled  # the same on all ranks: they step together
        feed.start_window()
        began = time.perf_counter()
        for _ in range(steps):
            job.step(phase)
        job.synchronize()
        seconds = time.perf_counter() - began
        rows = self._ranks.gather([seconds, *feed.window_stats()])
        window = Window(
            steps=steps,
            rank_seconds=tuple(row[0] for row in rows),
            data_wait=max(row[1] for row in rows),
            response=round(max(row[2] for row in rows), 6),
            warmup=warmup,
            counts=not warmup,
            early=early,
        )
        self.windows.append(window)
        self._announce("window", window=window.to_dict())
        return window

    def _step_seconds(self) -> float:
        """A step's time from the last window; before the first, one step is timed."""
        if self.windows:
            return 1 / self.windows[-1].steps_per_second
        began = time.perf_counter()
        self._job.step("warmup")
        self._job.synchronize()
        return max(row[0] for row in self._ranks.gather([time.perf_counter() - began]))


def _result(
    request: Request,
    ranks: Ranks,
    job: Job,
    timer: WindowTimer,
    clock: Clock,
    checked: int,
    steady: bool,
    cut: bool,
) -> dict[str, Any]:
    clock.stop()
    loss = math.nan if job.loss is None else float(job.loss)
    memory = ranks.gather([float(value) for value in _peak_memory(job)])
    counting = timer.counting
    steps = sum(window.steps for window in counting)
    return {
        "samples_per_second": statistics.median(timer.rates()),
        "step_seconds": statistics.median([w.seconds / w.steps for w in counting]),
        "data_wait_share": sum(w.data_wait for w in counting) / sum(w.seconds for w in counting),
        "steps": steps,
        "windows": [window.to_dict() for window in timer.windows],
        "steady": steady and abs(queue_trend(counting)) <= QUEUE_TREND,
        "queue_trend": round(queue_trend(counting), 4),
        "cut": cut,
        "collectives_checked": checked,
        "parameters": sum(p.numel() for p in job.model.parameters()),
        "bucket_bytes": job.bucket_bytes(),
        "peak_memory_bytes": [int(row[0]) for row in memory],
        "reserved_memory_bytes": [int(row[1]) for row in memory],
        "loss": loss if math.isfinite(loss) else None,
        "seconds": {phase: round(spent, 4) for phase, spent in clock.seconds.items()},
    }


def _peak_memory(job: Job) -> tuple[int, int]:
    """(peak allocated, peak reserved) bytes: of the GPU, or of the process where there is none."""
    if job.device.type == "cuda":
        return (
            torch.cuda.max_memory_allocated(job.device),
            torch.cuda.max_memory_reserved(job.device),
        )
    resident = _of_status("VmHWM")
    return resident, resident


def _held_memory(device: torch.device) -> int:
    """Bytes that are in use now: of the GPU, contexts and communicators included, or of the process
    where there is none. After a measurement it should be what it was after the one before.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    return _of_status("VmRSS")


def _forget_peak_memory(job: Job) -> None:
    if job.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(job.device)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: VmHWM begins anew


def _of_status(name: str) -> int:
    """Bytes, from a line of /proc/self/status in kB; 0 where there is none."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
