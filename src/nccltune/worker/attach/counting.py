"""Samples, waits and interruptions of this rank, from what is seen of its loaders and of DDP."""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import Protocol

from nccltune.worker.attach.ddp import DdpUse
from nccltune.worker.attach.loaders import LoaderRecord, LoaderUse

_GAPS = 9  # of the last interruptions


class Gathers(Protocol):
    """What ranks that count together are asked for."""

    def gather(self, values: list[float]) -> list[list[float]]:
        """Every rank's values, by rank."""


class Alone:
    """A rank that counts for itself."""

    def gather(self, values: list[float]) -> list[list[float]]:
        return [values]


class SampleCount:
    """What a timer wants to know of a feed, and how many samples a step has."""

    def __init__(self, samples_per_step: int | None) -> None:
        self._fixed = samples_per_step
        self._record: LoaderRecord | None = None
        self._batches_a_step = 1
        self._of_steps: list[tuple[int, int]] = []
        self._ddp: DdpUse | None = None
        self._loaders: LoaderUse | None = None
        self.workers = self.buffered = self.consumed = 0
        self._told = 0
        self._telling = self._loader_alone = False
        self._events = self._interruptions = self._since_last = 0
        self._gaps: deque[int] = deque(maxlen=_GAPS)
        self._steps = 0
        self._marks: tuple[float, ...] = ()
        self._since = (0, 0, 0)

    @property
    def batches_a_step(self) -> int:
        """Of the loader that feeds the training, once it is settled which one does."""
        return self._batches_a_step

    @property
    def loader_batch(self) -> int | None:
        """The batch size that this loader was given; None where that is not known."""
        record = self._training()
        return None if record is None else record.batch_size

    def watch(self, ddp: DdpUse, loaders: LoaderUse) -> None:
        self._ddp, self._loaders = ddp, loaders

    def step(self, samples: int | None) -> None:
        self._steps += 1
        self.consumed += self._batches_a_step
        if samples is not None:
            self._telling = True
            self._told += samples
        assert self._loaders is not None
        self._loaders.note_step()
        events = self._events_so_far()
        self._since_last += 1
        if events != self._events and self._steps > 1:
            self._interruptions += 1
            self._gaps.append(self._since_last)
            self._since_last = 0
        self._events = events

    def _events_so_far(self) -> int:
        """Changes to evaluation, and loaders that are iterated anew."""
        assert self._ddp is not None and self._loaders is not None
        return self._ddp.evaluations + sum(r.begun for r in self._loaders.records)

    def settle(self, ranks: Gathers) -> None:
        """From here on one loader is the training's. What it has is the same on all ranks, of which
        one may load for the others. Where samples are counted by it, it alone is looked at.
        """
        assert self._ddp is not None
        workers = buffered = batches = 0
        if (record := self._training()) is not None:
            workers = int(record.passed.get("num_workers", record.num_workers))
            ahead = record.passed.get("prefetch_factor") or record.prefetch_factor or 2
            buffered = workers * int(ahead)
            batches = round((record.batches - 1) / self._steps)  # one may be taken ahead
        self._record = record
        rows = ranks.gather([workers, buffered, max(1, batches)])
        self.workers, self.buffered, self._batches_a_step = (
            int(max(column)) for column in zip(*rows, strict=True)
        )
        self.consumed = self._steps * self._batches_a_step
        loaded, forward, _ = self._totals()
        feeds = record is not None and record.batches >= self._steps
        if feeds and 0 < loaded <= forward:
            self._loader_alone = True
            self._ddp.stop_counting()

    def note_samples(self) -> None:
        """Remember how many samples the step that is done had."""
        loaded, forward, _ = self._totals()
        self._of_steps.append((loaded, forward))

    def _training(self) -> LoaderRecord | None:
        assert self._loaders is not None
        if self._record is not None:
            return self._record
        feeding = self._loaders.feeding()
        return feeding[0] if feeding else None

    def start_window(self) -> None:
        self._marks = self._waits()

    def window_stats(self) -> tuple[float, float]:
        """(seconds waited for batches, mean seconds from asking for a batch to its being ready).

        The second by Little's law (J. D. C. Little, Operations Research 9, 1961): batches that were
        asked for and are not ready, over the rate at which they are taken.
        """
        waited, unready, batches, now = (
            after - before for after, before in zip(self._waits(), self._marks, strict=True)
        )
        response = unready / batches * (now / batches) if batches > 0 else 0.0
        return waited, response * self._batches_a_step  # beside steps, of which each takes several

    def _waits(self) -> tuple[float, ...]:
        assert self._loaders is not None
        records, record = self._loaders.records, self._training()
        unready, batches = (0, 0) if record is None else (record.unready, record.batches)
        return sum(r.waited for r in records), unready, batches, time.perf_counter()

    def drain(self) -> None: ...  # the script's batches are the script's

    def counted(self, steps: int) -> tuple[int, int]:
        found = self._totals()
        loaded, forward, told = (
            max(0, now - before) for now, before in zip(found, self._since, strict=True)
        )
        self._since = found
        interruptions, self._interruptions = self._interruptions, 0
        if self._fixed is not None:
            return self._fixed * steps, interruptions
        if self._telling:
            return told, interruptions
        return loaded if self._loader_alone else _samples_of(loaded, forward), interruptions

    def rhythm(self) -> tuple[int, int]:
        """(steps from one interruption to the next, median of the last ones; steps since then)."""
        return int(statistics.median(self._gaps)) if self._gaps else 0, self._since_last

    def per_step(self, steps: int, *, alone: bool) -> float:
        """Samples of this rank in a step of the optimizer that counts, which has taken so many.
        `alone`: no other one has taken any, so that the median step can be told; a loader that is
        read one batch ahead shows in the first.
        """
        if self._fixed is not None:
            return float(self._fixed)
        loaded, forward, told = self._totals()
        if alone and len(self._of_steps) > 1 and not self._telling:
            pairs = zip(self._of_steps, self._of_steps[1:], strict=False)
            # Step by step: a batch that is trained on again and again was loaded once.
            return float(
                statistics.median(
                    _samples_of(after[0] - before[0], after[1] - before[1])
                    for before, after in pairs
                )
            )
        samples = loaded if self._loader_alone else _samples_of(loaded, forward)
        return (told if self._telling else samples) / max(1, steps)

    def _totals(self) -> tuple[int, int, int]:
        assert self._ddp is not None and self._loaders is not None
        record = self._training()
        loaded = 0 if record is None else record.samples
        return loaded, self._ddp.samples, self._told


def _samples_of(loaded: int, forward: int) -> int:
    """From the batches that a loader gave and those that went forward: a batch can go forward more
    than once, in parts, or through several modules, and a loader can load for other ranks too.
    """
    return min(loaded, forward) if loaded and forward else loaded or forward
