"""Where batches come from: a DataLoader that says how full its queue is, or one batch for ever."""

from __future__ import annotations

import functools
import importlib
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from nccltune.worker.ranks import Ranks
from nccltune.worker.spec import Request, Workload

Batch = tuple[torch.Tensor, torch.Tensor]


class Feed(Protocol):
    """A source of (inputs, targets) on the host or the device, with what it knows of its queue."""

    workers: int
    buffered: int
    consumed: int

    def next(self) -> Batch: ...
    def start_window(self) -> None: ...
    def window_stats(self) -> tuple[float, float]: ...
    def drain(self) -> None: ...
    def close(self) -> None: ...


class EndlessSampler(Sampler[int]):
    """This rank's share of shuffled passes over the data set, without end: a short data set must
    not make the loader start anew every few steps, which a long one would not do either.
    """

    def __init__(self, size: int, rank: int, world_size: int, seed: int) -> None:
        self._size, self._rank, self._world_size = size, rank, world_size
        self._generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[int]:
        position = 0
        while True:
            for index in torch.randperm(self._size, generator=self._generator).tolist():
                if position % self._world_size == self._rank:
                    yield index
                position += 1


class StampedCollate:
    """Collates as usual and adds when the batch was ready (CLOCK_MONOTONIC is one clock for all
    processes of a host), so that the training process sees whether the workers keep up.
    """

    def __call__(self, samples: list[Any]) -> tuple[Any, float]:
        return default_collate(samples), time.monotonic()


class LoaderFeed:
    """Batches of a real DataLoader, which says whether its workers keep up.

    A DataLoader asks for a batch whenever one is taken, `buffered` ahead. While the workers keep
    up, each is ready a worker's time later. When they do not, requests wait for a free worker,
    longer and longer, as long as the queue still hides it: that is seen here before it runs dry.
    """

    def __init__(self, dataset: Dataset[Any], request: Request, ranks: Ranks) -> None:
        self.workers = int(request.loader.get("num_workers") or 0)
        prefetch = request.loader.get("prefetch_factor") if self.workers else None
        self.buffered = self.workers * int(prefetch or 2)
        self.consumed = 0
        seed = request.workload.seed
        if len(dataset) == 0:  # type: ignore[arg-type]
            raise ValueError(f"--data {request.workload.data}: the data set is empty")
        self._loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=request.batch_size,
            sampler=EndlessSampler(
                len(dataset),  # type: ignore[arg-type]
                ranks.rank,
                ranks.world_size,
                seed + request.data_seed,
            ),
            num_workers=self.workers,
            prefetch_factor=prefetch,
            pin_memory=bool(request.loader.get("pin_memory", False)),
            persistent_workers=bool(request.loader.get("persistent_workers", False)),
            collate_fn=StampedCollate(),
            drop_last=True,
            generator=torch.Generator().manual_seed(seed + ranks.rank),
        )
        self._asked = deque([time.monotonic()] * self.buffered)
        self._batches: Iterator[Any] = iter(self._loader)
        self._responses: list[float] = []
        self._waited = 0.0

    def _pull(self) -> tuple[Any, float, bool]:
        """The next batch, how long it took to come (seconds), whether it lay ready."""
        began = time.monotonic()
        batch, ready = next(self._batches)
        now = time.monotonic()
        self.consumed += 1
        if self.workers:
            self._responses.append(ready - self._asked.popleft())
            self._asked.append(now)  # now the batch `buffered` further on is asked for
        return batch, now - began, ready <= began

    def next(self) -> Batch:
        batch, waited, _ = self._pull()
        self._waited += waited
        return batch[0], batch[1]

    def start_window(self) -> None:
        self._responses.clear()
        self._waited = 0.0

    def window_stats(self) -> tuple[float, float]:
        """(seconds waited for batches, mean seconds from asking for a batch to its being ready)."""
        count = len(self._responses)
        return self._waited, sum(self._responses) / count if count else 0.0

    def drain(self) -> None:
        """Take what lies ready without training on it, so that what comes next is the loader's
        own pace. Stops at the first batch that was not ready yet.
        """
        for _ in range(self.buffered):
            if not self._pull()[2]:
                return

    def close(self) -> None:
        del self._batches
        del self._loader


class SyntheticFeed:
    """One batch that stays on the device: no loader, no copies."""

    workers = 0
    buffered = 0

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.consumed = 0

    def next(self) -> Batch:
        self.consumed += 1
        return self._batch

    def start_window(self) -> None: ...

    def window_stats(self) -> tuple[float, float]:
        return 0.0, 0.0

    def drain(self) -> None: ...

    def close(self) -> None:
        del self._batch


def load_object(reference: str) -> Any:
    """The object behind `package.module:name`."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


@functools.lru_cache(maxsize=1)  # scanning a large image folder takes minutes
def open_dataset(workload: Workload) -> Dataset[Any]:
    """The data set of a workload that has one: an image folder with the usual training transforms
    for ImageNet (random crop, flip, normalisation), or the user's own.
    """
    if ":" in workload.data:
        dataset: Dataset[Any] = load_object(workload.data)()
        return dataset
    from torchvision import datasets, transforms

    assert workload.folder is not None
    return datasets.ImageFolder(  # type: ignore[no-any-return]
        workload.folder,
        transforms.Compose(
            [
                transforms.RandomResizedCrop(workload.image_size),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        ),
    )
