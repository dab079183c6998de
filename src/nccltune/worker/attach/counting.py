"""Samples, waits and interruptions of this rank, from what is seen of its loaders and of DDP."""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import Any

from nccltune.worker.attach.ddp import DdpUse
from nccltune.worker.attach.loaders import LoaderUse
from nccltune.worker.attach.store import StoreRanks

_GAPS = 9  # of the last interruptions


class SampleCount:
    """What a timer wants to know of a feed, and how many samples a step has."""

    def __init__(self, samples_per_step: int | None) -> None:
        self._fixed = samples_per_step
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

    def watch(self, ddp: DdpUse, loaders: LoaderUse) -> None:
        self._ddp, self._loaders = ddp, loaders

    def step(self, samples: int | None) -> None:
        self._steps += 1
        self.consumed += 1
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

    def agree(self, ranks: StoreRanks) -> None:
        """What the loader has, the same on all ranks: one may load for the others."""
        workers = buffered = 0
        if (record := self._training()) is not None:
            workers = int(record.passed.get("num_workers", record.num_workers))
            ahead = record.passed.get("prefetch_factor") or record.prefetch_factor or 2
            buffered = workers * int(ahead)
        rows = ranks.gather([workers, buffered])
        self.workers, self.buffered = (int(max(column)) for column in zip(*rows, strict=True))

    def settle(self) -> None:
        """Where the loader is what samples are counted by, it alone is looked at from here on."""
        assert self._ddp is not None
        loaded, forward, _ = self._totals()
        if 0 < loaded <= forward:
            self._loader_alone = True
            self._ddp.stop_counting()

    def _training(self) -> Any:
        assert self._loaders is not None
        feeding = self._loaders.feeding(self._steps)
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
        response = unready / batches * (now / batches) if batches else 0.0
        return waited, response

    def _waits(self) -> tuple[float, ...]:
        assert self._loaders is not None
        records, record = self._loaders.records, self._training()
        unready, batches = (0, 0) if record is None else (record.unready, record.batches)
        return sum(r.waited for r in records), unready, batches, time.perf_counter()

    def drain(self) -> None: ...  # the script's batches are the script's

    def counted(self, steps: int) -> tuple[int, int]:
        found = self._totals()
        loaded, forward, told = (
            now - before for now, before in zip(found, self._since, strict=True)
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

    def per_step(self) -> float:
        """Samples of this rank in a step, over all steps so far."""
        if self._fixed is not None:
            return float(self._fixed)
        loaded, forward, told = self._totals()
        if self._loader_alone:
            return loaded / max(1, self._steps)
        samples = told if self._telling else _samples_of(loaded, forward)
        return samples / max(1, self._steps)

    def _totals(self) -> tuple[int, int, int]:
        assert self._ddp is not None and self._loaders is not None
        loaded = sum(r.samples for r in self._loaders.feeding(self._steps)[:1])
        return loaded, self._ddp.samples, self._told


def _samples_of(loaded: int, forward: int) -> int:
    """From the batches that a loader gave and those that went forward: a batch can go forward more
    than once, in parts, or through several modules, and a loader can load for other ranks too.
    """
    return min(loaded, forward) if loaded and forward else loaded or forward
