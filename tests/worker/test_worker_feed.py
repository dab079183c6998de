"""Batches, their order, and what the loader's queue tells."""

from __future__ import annotations

import itertools
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import workloads
from nccltune.worker.feed import (
    EndlessSampler,
    LoaderFeed,
    StampedCollate,
    SyntheticFeed,
    load_object,
    open_dataset,
)
from nccltune.worker.spec import Request, Settings

WORKLOAD = replace(workloads.WORKLOAD, data="images", image_size=8, seed=5)


SEED = WORKLOAD.seed + 17


class Numbers(Dataset[Any]):
    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index)]), index


def request(batch_size: int = 2, **loader: Any) -> Request:
    return Request("m0000", WORKLOAD, Settings(), {}, loader, batch_size, data_seed=17)


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
    expected = list(itertools.islice(iter(EndlessSampler(10, 1, 2, SEED)), 12))
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


class Clockwork:
    """A loader whose batches come with the times at which they were ready; `now` is the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, workers: int, buffered: int) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.feed = LoaderFeed(Numbers(10), request(), rank())
        self.feed.workers, self.feed.buffered = workers, buffered
        self.feed._asked = deque([0.0] * buffered)

    def take(self, now: float, ready: float) -> None:
        """At `now` the next batch is taken, which was ready at `ready`."""

        def batches() -> Iterator[Any]:
            self.now = max(now, ready)  # where it is not ready it is waited for
            yield (torch.zeros(1), torch.zeros(1)), ready

        self.now = now
        self.feed._batches = batches()
        self.feed.next()


def test_the_response_is_from_asking_to_being_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Clockwork(monkeypatch, workers=1, buffered=2)
    loader.take(now=1.0, ready=0.25)  # asked for at the start: 0.25
    loader.take(now=2.0, ready=0.75)  # that too: 0.75
    waited, response = loader.feed.window_stats()
    assert (waited, response) == (0.0, pytest.approx(0.5))
    loader.feed.start_window()
    loader.take(now=3.0, ready=2.5)  # asked for when the first was taken, at 1: 1.5
    loader.take(now=4.0, ready=5.0)  # at 2: 3.0, and one second of waiting
    loader.take(now=6.0, ready=4.5)  # at 3: 1.5
    waited, response = loader.feed.window_stats()
    assert waited == pytest.approx(1.0)
    assert response == pytest.approx(2.0)
    assert list(loader.feed._asked) == [5.0, 6.0]  # asked for when one was had, not before


def test_workers_that_keep_up_answer_alike_and_others_ever_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A batch is taken each second, eight are asked for ahead. The worker makes one in half a
    # second, and from the 25th on in 1.25 s, which the queue hides.
    loader = Clockwork(monkeypatch, workers=1, buffered=8)
    free, found = 0.0, []
    for number in range(1, 49):
        if number % 8 == 1:
            loader.feed.start_window()
        free = max(free, loader.feed._asked[0]) + (0.5 if number < 25 else 1.25)
        loader.take(now=loader.now + 1, ready=free)
        if number % 8 == 0:
            found.append(loader.feed.window_stats())
    assert [waited for waited, _ in found] == [0.0] * 6
    # All eight were asked for at once, so it takes some to come to its own pace; then 1.25 s for
    # the first and a quarter of a second more for each.
    assert [response for _, response in found[2:]] == pytest.approx([0.5, 2.125, 4.125, 6.125])


def test_without_workers_there_is_no_response(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Clockwork(monkeypatch, workers=0, buffered=0)
    loader.take(now=1.0, ready=3.0)
    assert loader.feed.window_stats() == (2.0, 0.0)


def test_a_window_starts_with_nothing(feed: LoaderFeed) -> None:
    feed.next()
    assert feed._waited > 0
    feed.start_window()
    assert feed.window_stats() == (0.0, 0.0)
    assert feed.consumed == 1  # counted since the start


def test_as_many_are_asked_for_ahead_as_there_is_room(feed: LoaderFeed) -> None:
    with_worker = LoaderFeed(Numbers(10), request(num_workers=1, prefetch_factor=3), rank())
    for _ in range(5):
        with_worker.next()
        assert len(with_worker._asked) == with_worker.buffered == 3
    assert with_worker.window_stats()[1] > 0
    with_worker.close()
    feed.next()
    assert len(feed._asked) == 0


def test_draining_takes_what_lies_ready_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Clockwork(monkeypatch, workers=1, buffered=6)

    def batches(*ready: float) -> Iterator[Any]:
        for number, at in enumerate(ready):
            # The first is large: half a second to receive, though it lay ready.
            loader.now = max(loader.now + (0.5 if number == 0 else 0.0), at)
            yield (torch.zeros(1), torch.zeros(1)), at

    loader.now = 1.0
    loader.feed._batches = batches(1.0, 1.5, 1.5004, 0.9, 0.9, 0.9)
    loader.feed.drain()
    assert loader.feed.consumed == 3  # the third was not ready, however short the wait
    loader.feed._batches = batches(*[0.9] * 10)
    loader.feed.drain()
    assert loader.feed.consumed == 3 + 6  # at most a queue


def test_the_order_of_the_data_follows_its_seed() -> None:
    def order(which: int) -> list[int]:
        feed = LoaderFeed(Numbers(100), replace(request(batch_size=50), data_seed=which), rank())
        seen = feed.next()[1].tolist()
        feed.close()
        return [int(index) for index in seen]

    assert order(1) == order(1)
    assert order(2) != order(1)


def test_a_data_set_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Numbers] = []

    def make() -> Numbers:
        opened.append(Numbers(3))
        return opened[-1]

    module = ModuleType("some_data")
    monkeypatch.setattr(module, "make", make, raising=False)
    monkeypatch.setitem(sys.modules, "some_data", module)
    own = replace(WORKLOAD, data="some_data:make")
    open_dataset.cache_clear()
    assert open_dataset(own) is open_dataset(replace(own)) is opened[0]
    assert len(opened) == 1
    assert open_dataset(replace(own, seed=6)) is opened[1]  # another workload
    open_dataset.cache_clear()


def test_workers_give_the_same_batches(feed: LoaderFeed) -> None:
    with_worker = LoaderFeed(Numbers(10), request(num_workers=1), rank())
    for _ in range(6):
        assert torch.equal(with_worker.next()[1], feed.next()[1])
    waited, _ = with_worker.window_stats()
    assert waited > 0
    with_worker.close()


def test_one_batch_for_ever() -> None:
    batch = torch.ones(2), torch.zeros(2)
    synthetic = SyntheticFeed(batch)
    assert synthetic.next() is synthetic.next() is batch
    assert (synthetic.consumed, synthetic.buffered, synthetic.workers) == (3 - 1, 0, 0)
    assert synthetic.window_stats() == (0.0, 0.0)


def test_objects_by_reference() -> None:
    assert load_object("torch.nn:Linear") is torch.nn.Linear
    with pytest.raises(AttributeError):
        load_object("torch.nn:Missing")
    with pytest.raises(ModuleNotFoundError):
        load_object("no_such_module:f")
