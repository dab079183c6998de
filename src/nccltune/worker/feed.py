"""Where batches come from: a DataLoader that says how full its queue is, or one batch for ever."""

from __future__ import annotations

import importlib
import time
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
    def window_stats(self, seconds: float) -> tuple[float, float]: ...
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
    processes of a host), so that the training process sees how long batches lay in the queue.
    """

    def __call__(self, samples: list[Any]) -> tuple[Any, float]:
        return default_collate(samples), time.monotonic()


class LoaderFeed:
    """Batches of a real DataLoader. Counts what was consumed and notes the age of each batch."""

    def __init__(self, dataset: Dataset[Any], request: Request, ranks: Ranks) -> None:
        self.workers = int(request.loader.get("num_workers") or 0)
        prefetch = request.loader.get("prefetch_factor") if self.workers else None
        self.buffered = self.workers * int(prefetch or 2)
        self.consumed = 0
        seed = request.workload.seed
        self._loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=request.batch_size,
            sampler=EndlessSampler(
                len(dataset),  # type: ignore[arg-type]
                ranks.rank,
                ranks.world_size,
                seed,
            ),
            num_workers=self.workers,
            prefetch_factor=prefetch,
            pin_memory=bool(request.loader.get("pin_memory", False)),
            persistent_workers=bool(request.loader.get("persistent_workers", False)),
            collate_fn=StampedCollate(),
            drop_last=True,
            generator=torch.Generator().manual_seed(seed + ranks.rank),
        )
        self._batches: Iterator[Any] = iter(self._loader)
        self._ages: list[float] = []
        self._waited = 0.0

    def _pull(self) -> tuple[Any, float]:
        """The next batch and how long it made us wait, seconds."""
        asked = time.monotonic()
        batch, ready = next(self._batches)
        now = time.monotonic()
        self.consumed += 1
        self._ages.append(now - ready)
        return batch, now - asked

    def next(self) -> Batch:
        batch, waited = self._pull()
        self._waited += waited
        return batch[0], batch[1]

    def start_window(self) -> None:
        self._ages.clear()
        self._waited = 0.0

    def window_stats(self, seconds: float) -> tuple[float, float]:
        """(seconds waited, queue trend): see `Window`. Ages are averaged over a round of the
        workers, since those arrive together.
        """
        if self.workers == 0 or len(self._ages) < 2:
            return self._waited, 0.0
        span = min(self.workers, len(self._ages) // 2)
        first = sum(self._ages[:span]) / span
        last = sum(self._ages[-span:]) / span
        between = seconds * (len(self._ages) - span) / len(self._ages)
        return self._waited, (last - first) / between if between > 0 else 0.0

    def drain(self) -> None:
        """Take what lies ready without training on it, so that what comes next is the loader's
        own pace. Stops at the first batch that had to be waited for.
        """
        for _ in range(self.buffered):
            _, waited = self._pull()
            if waited > 1e-3:
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

    def window_stats(self, seconds: float) -> tuple[float, float]:
        return 0.0, 0.0

    def drain(self) -> None: ...

    def close(self) -> None: ...


def load_object(reference: str) -> Any:
    """The object behind `package.module:name`."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


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
