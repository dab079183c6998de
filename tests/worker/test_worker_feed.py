"""Batches, their order, and what the loader's queue tells."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from nccltune.worker.feed import (
    EndlessSampler,
    LoaderFeed,
    StampedCollate,
    SyntheticFeed,
    load_object,
)
from nccltune.worker.spec import Request, Settings, Workload

WORKLOAD = Workload(
    model="resnet18",
    data="images",
    folder=None,
    image_size=8,
    precision="fp32",
    channels_last=False,
    cudnn_benchmark=False,
    device="cpu",
    backend="gloo",
    seed=5,
)


class Numbers(Dataset[Any]):
    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index)]), index


def request(batch_size: int = 2, **loader: Any) -> Request:
    return Request("m0000", WORKLOAD, Settings(), {}, loader, batch_size)


def rank(number: int = 0, world_size: int = 1) -> Any:
    return SimpleNamespace(rank=number, world_size=world_size)


def passes(size: int, world_size: int, count: int, seed: int = 0) -> list[list[int]]:
    """What all ranks see together, in turn, cut into passes."""
    shares = [iter(EndlessSampler(size, r, world_size, seed)) for r in range(world_size)]
    turns = (next(shares[position % world_size]) for position in itertools.count())
    return [list(itertools.islice(turns, size)) for _ in range(count)]


@pytest.mark.parametrize(
    ("size", "world_size"), [(10, 1), (10, 2), (10, 3), (7, 4), (3, 5), (1, 2)]
)
def test_all_ranks_together_see_every_sample_once_a_pass(size: int, world_size: int) -> None:
    for seen in passes(size, world_size, 5):
        assert sorted(seen) == list(range(size))


def test_every_pass_has_an_order_of_its_own() -> None:
    found = passes(20, 2, 4)
    assert len({tuple(one) for one in found}) == 4
    assert passes(20, 2, 4) == found
    assert passes(20, 2, 4, seed=1) != found


def test_the_end_of_the_data_is_no_end() -> None:
    endless = iter(EndlessSampler(3, 0, 2, 0))
    assert len(list(itertools.islice(endless, 1000))) == 1000


def test_batches_are_collated_and_stamped_with_when_they_were_ready() -> None:
    before = time.monotonic()
    batch, ready = StampedCollate()([(torch.tensor([1.0]), 4), (torch.tensor([2.0]), 5)])
    assert before <= ready <= time.monotonic()
    inputs, targets = batch
    assert torch.equal(inputs, torch.tensor([[1.0], [2.0]]))
    assert torch.equal(targets, torch.tensor([4, 5]))


def test_a_loader_without_workers_gives_the_ranks_share() -> None:
    feed = LoaderFeed(Numbers(10), request(), rank(1, 2))
    expected = list(itertools.islice(iter(EndlessSampler(10, 1, 2, WORKLOAD.seed)), 12))
    seen: list[int] = []
    for _ in range(6):  # beyond the end of its share of a pass
        inputs, targets = feed.next()
        assert torch.equal(inputs.flatten(), targets.float())
        seen += targets.tolist()
    assert seen == expected
    assert (feed.workers, feed.buffered, feed.consumed) == (0, 0, 6)
    feed.close()


@pytest.mark.parametrize(
    ("loader", "buffered"),
    [
        ({}, 0),
        ({"num_workers": 0, "pin_memory": False}, 0),
        ({"num_workers": 1}, 2),  # torch's own prefetch_factor is 2
        ({"num_workers": 1, "prefetch_factor": 5, "persistent_workers": True}, 5),
    ],
)
def test_how_many_batches_are_made_ahead_of_time(loader: dict[str, Any], buffered: int) -> None:
    feed = LoaderFeed(Numbers(10), request(**loader), rank())
    assert feed.buffered == buffered
    feed.close()


@pytest.fixture
def feed() -> Iterator[LoaderFeed]:
    feed = LoaderFeed(Numbers(10), request(), rank())
    yield feed
    feed.close()


@pytest.mark.parametrize(
    ("workers", "ages", "seconds", "trend"),
    [
        # Batches got older by 0.3 s over the second between the middles of first and last round.
        (2, [0.1, 0.3, 0.4, 0.6], 2.0, 0.3),
        # Younger: half of what was consumed had been made before.
        (1, [0.9, 0.7, 0.5, 0.4], 4.0, -0.5 / 3),
        (4, [0.2] * 8, 1.0, 0.0),
        # Fewer than two rounds: halves are compared. (0.5 - 0.1) / (3 x 2 / 4).
        (8, [0.1, 0.1, 0.5, 0.5], 3.0, 0.4 / 1.5),
        # An odd number: the middle one belongs to neither half. (0.7 - 0.1) / (5 x 3 / 5).
        (2, [0.1, 0.1, 9.9, 0.7, 0.7], 5.0, 0.2),
        (2, [0.4], 1.0, 0.0),
        (2, [], 1.0, 0.0),
        (0, [0.1, 0.9], 1.0, 0.0),  # without workers there is no queue
    ],
)
def test_the_trend_of_the_queue(
    feed: LoaderFeed, workers: int, ages: list[float], seconds: float, trend: float
) -> None:
    feed.workers = workers
    feed._ages = ages
    feed._waited = 0.25
    waited, found = feed.window_stats(seconds)
    assert waited == 0.25
    assert found == pytest.approx(trend)


def test_a_window_starts_with_nothing(feed: LoaderFeed) -> None:
    feed.next()
    assert feed._waited > 0
    feed.start_window()
    assert feed.window_stats(1.0) == (0.0, 0.0)
    assert feed.consumed == 1  # counted since the start


def test_draining_takes_what_lies_ready_and_no_more(feed: LoaderFeed) -> None:
    waits = iter([0.0, 0.0, 0.5, 0.0, 0.0])

    def pull() -> tuple[Any, float]:
        return None, next(waits)

    feed._pull = pull  # type: ignore[method-assign]
    feed.buffered = 5
    feed.drain()
    assert list(waits) == [0.0, 0.0]  # it stopped at the one that had to be waited for
    waits = iter([0.0] * 10)
    feed.drain()
    assert len(list(waits)) == 5  # at most a queue


def test_workers_give_the_same_batches(feed: LoaderFeed) -> None:
    with_worker = LoaderFeed(Numbers(10), request(num_workers=1), rank())
    for _ in range(6):
        assert torch.equal(with_worker.next()[1], feed.next()[1])
    waited, _ = with_worker.window_stats(1.0)
    assert waited > 0
    with_worker.close()


def test_one_batch_for_ever() -> None:
    batch = torch.ones(2), torch.zeros(2)
    synthetic = SyntheticFeed(batch)
    assert synthetic.next() is synthetic.next() is batch
    assert (synthetic.consumed, synthetic.buffered, synthetic.workers) == (3 - 1, 0, 0)
    assert synthetic.window_stats(1.0) == (0.0, 0.0)


def test_objects_by_reference() -> None:
    assert load_object("torch.nn:Linear") is torch.nn.Linear
    with pytest.raises(AttributeError):
        load_object("torch.nn:Missing")
    with pytest.raises(ModuleNotFoundError):
        load_object("no_such_module:f")
