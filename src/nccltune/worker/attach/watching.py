"""`nccltune run --watch` in rank 0: every so many steps, how fast the job is and what communication
costs it, beside what its settings promise.

Between two reports nothing is done but counting, by what counts in trials too. No device is
synchronised: between two hundredth steps the host is ahead of the device by about the same. Nothing
is asked of the other ranks either; they step together, so that all of them train as many samples as
this one times their number.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from nccltune.worker.attach.counting import Alone, SampleCount
from nccltune.worker.attach.ddp import DdpUse
from nccltune.worker.attach.exposed import ExposedShare
from nccltune.worker.attach.guarding import Guard
from nccltune.worker.attach.judging import Judge, Promise, Report, line
from nccltune.worker.attach.loaders import LoaderUse
from nccltune.worker.attach.optimizers import count_steps
from nccltune.worker.attach.textfile import Metric, rendered, replace_file
from nccltune.worker.windows import Interruptions

_SAME = 0.02  # samples a step that differ by less are of the same batch size


@dataclass(frozen=True)
class Watched:
    """What `nccltune run` wants to have watched, with a report after each `every` steps, 2 or more.
    `promise` is of `script` on `ranks` ranks, with `batch_size` samples of a rank in a step;
    `samples_per_step` where the user has told them.
    """

    every: int
    next_step: str
    metrics: str | None = None
    labels: Mapping[str, str] | None = None
    promise: Promise | None = None
    script: str | None = None
    ranks: int | None = None
    batch_size: int | None = None
    optimizer: int | None = None
    samples_per_step: int | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Watched:
        promise = data.get("promise")
        promised = None if promise is None else Promise.from_dict(promise)
        return cls(**{**data, "promise": promised})


class Watch:
    """Rank 0's. What is called in the script's course goes through `guard`."""

    def __init__(self, wanted: Watched, script: str, tell: Callable[[str], None]) -> None:
        """`script`: the name of what runs here, train.py or the module."""
        self._wanted, self._tell = wanted, tell
        self.guard = Guard(tell)
        self._judge = Judge(wanted.promise, wanted.next_step)
        self._samples = SampleCount(wanted.samples_per_step)
        if wanted.promise is not None and wanted.script not in (None, script):
            self._no_promise(f"it was measured with {wanted.script}, and this is {script}")
            self._samples = SampleCount(None)
        self._share: ExposedShare | None = None
        self._steps = self._reports = 0
        self._began = 0.0
        self._told: set[str] = set()

    def begin(self, ddp: DdpUse, loaders: LoaderUse) -> None:
        """When torch is there; both count. To be called once."""
        self._share = ExposedShare(ddp, self._wanted.every)
        self._samples.watch(ddp, loaders)
        count_steps(self._on_step, self._wanted.optimizer or 0, self.guard)

    def left(self) -> Iterator[str]:
        """What is to be said when the script is over."""
        if self._reports or self.guard.over:
            return
        if not self._steps:
            yield "--watch: nothing was seen of the training: no optimizer took a step in rank 0"
            return
        steps = f"{self._steps} step{'' if self._steps == 1 else 's'}"
        yield (
            f"--watch: the script was over after {steps}, before the first report: there is one "
            f"every {self._wanted.every} (--watch-every)"
        )

    def _on_step(self, samples: int | None) -> None:
        self._steps += 1
        self._samples.step(samples)
        if self._steps % self._wanted.every == 0:
            self._report()
        elif self._steps == 1:  # before it is what no step of training has
            self._samples.counted(1)
            self._began = time.monotonic()

    def _report(self) -> None:
        now, ranks = time.monotonic(), _ranks()
        if not self._reports:
            self._settle(ranks)
        report = self._seen(now - self._began, ranks)
        self._began = now
        self._reports += 1
        self._tell(line(report, self._judge.promise, ranks))
        for warning in self._judge.warnings(report):
            self._tell(f"warning: {warning}")
        if self._judge.promise is not None or self._share is not None:
            rhythm, _ = self._samples.rhythm()
            if (why := self._judge.nothing_judged(report, rhythm)) is not None:
                self._tell(f"note: {why}")
        if self._reports == 2 and self._share is not None and not self._share.found:
            self._unknown("DistributedDataParallel gives no figures here")
        self._write(report)

    def _settle(self, ranks: int) -> None:
        """After the first steps it is known which loader feeds the training, and what DDP tells."""
        self._samples.settle(Alone())
        assert self._share is not None
        why = self._share.settle(self._steps, self._samples.batches_a_step)
        if ranks == 1:
            self._share = None  # it has nobody to talk to
        elif why is not None:
            self._unknown(why)

    def _seen(self, seconds: float, ranks: int) -> Report:
        """What there was since the last report."""
        steps = self._wanted.every - (not self._reports)  # time runs from the end of the first one
        own, interruptions = self._samples.counted(steps)
        if not self._reports:
            self._check_promise(own / steps, ranks)
        if not own:
            self._once(
                "samples",
                "samples cannot be counted: neither a DataLoader of torch nor "
                "DistributedDataParallel had any; nccltune.step(samples=...) tells of them",
            )
        return Report(
            step=self._steps,
            steps=steps,
            seconds=seconds,
            samples=own * ranks if own else None,
            exposed=None if self._share is None else self._share.share(seconds / steps),
            interrupted=interruptions > 0 and not self._usual(),
            first=not self._reports,
        )

    def _usual(self) -> bool:
        """Whether interruptions come so often that they are a part of training, as in a trial."""
        known = Interruptions.of([self._samples.rhythm()])
        return known is not None and known.usual

    def _check_promise(self, samples_a_step: float, ranks: int) -> None:
        """Whether this job is the one that was measured, as far as that shows."""
        wanted = self._wanted
        if self._judge.promise is None:
            return
        if wanted.ranks not in (None, ranks):
            self._no_promise(f"it was measured with {wanted.ranks} ranks, and these are {ranks}")
        elif wanted.batch_size is not None and samples_a_step and wanted.samples_per_step is None:
            alike = abs(samples_a_step / wanted.batch_size - 1) <= _SAME
            if not alike and self._samples.loader_batch != wanted.batch_size:
                self._no_promise(
                    f"it was measured with {wanted.batch_size} samples of a rank in a step, and "
                    f"this job has {samples_a_step:.0f}"
                )

    def _no_promise(self, why: str) -> None:
        self._judge.promise = None
        self._tell(f"note: the file promises this job no samples/s: {why}")

    def _unknown(self, why: str) -> None:
        self._share = None
        self._once("exposed", f"only speed is watched: communication is not known: {why}")

    def _once(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._tell(f"note: {text}")

    def _write(self, report: Report) -> None:
        path = self._wanted.metrics
        if path is None:
            return
        metrics = _metrics(report, self._judge)
        try:
            replace_file(path, rendered(metrics, self._wanted.labels or {}))
        except OSError as error:
            reason = error.strerror or str(error)
            self._once("metrics", f"{path} cannot be written: {reason}; the job goes on")


def _metrics(report: Report, judge: Judge) -> list[Metric]:
    """What is not known is left out."""
    promise = judge.promise
    promised = "What a launch of these settings is expected to reach"
    found = [
        ("samples_per_second", "Training speed of all ranks, samples/s.", report.speed),
        (
            "promised_samples_per_second_low",
            f"{promised} at least, samples/s.",
            None if promise is None else promise.low,
        ),
        (
            "promised_samples_per_second_high",
            f"{promised} at most, samples/s.",
            None if promise is None else promise.high,
        ),
        (
            "exposed_communication_ratio",
            "Communication that computing does not hide, as a share of a step.",
            report.exposed,
        ),
        (
            "below_promise",
            "1 while the last reports that count are all below the promise.",
            None if promise is None else int(judge.below),
        ),
        ("last_report_timestamp_seconds", "When this was written, Unix time.", time.time()),
    ]
    steps = Metric("nccltune_steps_total", "Optimizer steps of the job.", report.step, "counter")
    known = [(name, about, value) for name, about, value in found if value is not None]
    return [steps, *(Metric(f"nccltune_{name}", about, value) for name, about, value in known)]


def _ranks() -> int:
    """How many there are. Only asked for its size, the user's process group is not used."""
    if dist.is_available() and dist.is_initialized():
        return int(dist.get_world_size())
    return int(os.environ.get("WORLD_SIZE", "1"))
