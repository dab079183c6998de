"""The turns that a job and its parts take, with a job whose steps take as long as they are told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import workloads
from nccltune.worker import diagnose
from nccltune.worker.diagnose import Turns, exchange_pairs, parts_of
from nccltune.worker.spec import Request, Settings
from nccltune.worker.timer import Clock

COMPUTE, COMMUNICATION, LOADING = 0.05, 0.03, 0.02


class Loader:
    """A queue that is asked what it was asked."""

    workers, buffered, consumed = 2, 4, 0

    def __init__(self, job: Job) -> None:
        self._job = job

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(4, 3), torch.zeros(4)

    def start_window(self) -> None:
        self._job.events.append("window")

    def window_stats(self) -> tuple[float, float]:
        return 0.25, 0.4

    def drain(self) -> None:
        self._job.events.append("drain")

    def close(self) -> None: ...


class Job:
    """Its time is `now`; `events` is what it was made to do. It is its own model and ranks."""

    device = torch.device("cpu")

    def __init__(self, rank: int = 0, modules: tuple[Any, ...] = ()) -> None:
        self.rank, self.world_size, self.model = rank, 2, self
        self.modules = lambda: modules
        self.now = 0.0
        self.events: list[str] = []
        self._syncs = True
        self.loader = Loader(self)
        self.feed: Any = self.loader

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        self._syncs = False
        yield
        self._syncs = True

    def step(self, _phase: str) -> None:
        loads = self.feed is self.loader
        self.now += COMPUTE + COMMUNICATION * self._syncs + LOADING * loads
        self.events.append(f"{'fed' if loads else 'still'} {'synced' if self._syncs else 'own'}")

    def pull(self, _phase: str) -> None:
        self.now += LOADING
        self.events.append("pull")

    def synchronize(self) -> None: ...

    def gather(self, row: list[float]) -> list[list[float]]:
        return [row, row]

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.events.append(f"rest {seconds:.1f}")


Made = Callable[..., Turns]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Made:
    def made(job: Any, data: str = "images", **settings: Any) -> Turns:
        now = SimpleNamespace(
            perf_counter=lambda: job.now, monotonic=lambda: job.now, sleep=job.sleep
        )
        monkeypatch.setattr("nccltune.worker.diagnose.time", now)
        monkeypatch.setattr("nccltune.worker.timer.time", now)
        found = Turns(asked(data, **settings), job, job, Clock(_quiet), 0.1)
        found.take_all(parts_of(job, asked(data)))
        return found

    return made


def asked(data: str, **settings: Any) -> Request:
    workload = replace(workloads.WORKLOAD, data=data)
    return Request("diagnosis", workload, Settings(**settings), {}, {}, batch_size=4)


def _quiet(*_: Any, **__: Any) -> None: ...


def runs(events: list[str]) -> list[str]:
    """Without repetitions of the same step."""
    return [event for before, event in zip(["", *events], events, strict=False) if event != before]


def test_every_part_is_timed_in_every_round(turns: Made) -> None:
    found = turns(Job())
    expected = {
        "whole": 0.10, "unsynced": 0.07, "loader": 0.02, "alone": 0.07,
        "synthetic": 0.08, "compute": 0.05,
    }  # fmt: skip
    assert found.seconds.keys() == expected.keys()
    for name, seconds in expected.items():
        ranks = 1 if name == "alone" else 2
        assert found.seconds[name] == [[pytest.approx(seconds)] * ranks] * 4, name
    assert found.waits == [[pytest.approx(0.25 / 6)] * 2] * 4  # a step, in windows of 0.6 s
    assert found.host == found.busy == []


def test_rounds_go_forward_and_backward(turns: Made) -> None:
    job = Job()
    turns(job, windows=2)
    lone = ["still own", "fed own"]
    forward = [
        *("fed synced", "window", "fed synced"),
        *("fed own", "window", "fed own"),
        *("drain", "pull", "window", "pull"),
        # the others' queues fill before one rank steps alone, and its own is emptied
        *("still own", "rest 0.6", "drain", "fed own", "window", "fed own"),
        *("rest 0.6", "still synced"),
    ]
    events = runs(job.events)
    assert events[: len(forward)] == forward
    backward = [
        *(*lone[:1], "drain", *lone[1:], "window", "fed own"),
        *("drain", "pull", "window", "pull"),
        *("fed own", "window", "fed own"),
        *("fed synced", "window", "fed synced"),
    ]
    assert events[-len(backward) :] == backward


def test_other_ranks_idle_while_one_steps_alone(turns: Made) -> None:
    job = Job(rank=1)
    turns(job, windows=2)
    events = runs(job.events)
    begin = events.index("rest 0.6")
    # One step without synchronisation with all: the next would else broadcast buffers.
    assert events[begin - 1 : begin + 3] == ["still own", "rest 0.6", "window", "rest 0.6"]


def test_without_a_loader_three_parts_are_left(turns: Made) -> None:
    job = Job()
    found = turns(job, data="synthetic", windows=2)
    assert list(found.seconds) == ["whole", "unsynced", "alone"]
    assert not [event for event in job.events if event.startswith(("fed", "pull"))]


def test_a_model_that_communicates_in_its_forward_pass_is_not_run_alone() -> None:
    job: Any = Job(modules=(torch.nn.ReLU(), torch.nn.SyncBatchNorm(3)))
    assert "alone" not in [part.name for part in parts_of(job, asked("images"))]


def test_an_odd_number_of_windows_is_made_even(turns: Made) -> None:
    found = turns(Job(), windows=3)
    assert [len(rounds) for rounds in found.seconds.values()] == [4] * 6


def test_slow_steps_end_after_two_rounds(turns: Made) -> None:
    found = turns(Job(), max_measure_seconds=0.5)
    assert [len(rounds) for rounds in found.seconds.values()] == [2] * 6


def test_the_job_has_its_own_feed_again(turns: Made) -> None:
    job = Job()
    found = turns(job, windows=2)
    assert job.feed is job.loader  # the last part backward is the whole job
    job.feed = None
    found.close()
    assert job.feed is job.loader


class Gpu(Job):
    """Kernels wait in a queue; `free` is when the GPU has run them all."""

    def __init__(self, host: float, kernels: float) -> None:
        super().__init__()
        self.free, self._host, self._kernels = 0.0, host, kernels

    def step(self, phase: str) -> None:
        began = self.now
        self.now += self._host
        # With nothing in the queue the GPU runs each kernel as it comes.
        end = max(began, self.free) + self._kernels
        self.free = max(end, self.now)

    def synchronize(self) -> None:
        self.now = max(self.now, self.free)

    def hold(self, cycles: int) -> None:
        self.free = max(self.free, self.now) + cycles / 2e9

    def event(self, **_: Any) -> Any:
        made = SimpleNamespace()
        made.record = lambda: setattr(made, "at", max(self.free, self.now))
        made.elapsed_time = lambda end: 1000 * (end.at - made.at)
        return made


@pytest.mark.parametrize(
    ("host", "kernels"), [(0.01, 0.05), (0.05, 0.01), (0.03, 0.03)], ids=["gpu", "host", "even"]
)
def test_the_hosts_time_and_the_gpus_are_told_apart(
    turns: Made, monkeypatch: pytest.MonkeyPatch, host: float, kernels: float
) -> None:
    job = Gpu(host, kernels)
    cuda = SimpleNamespace(Event=job.event, _sleep=job.hold, synchronize=lambda _: None)
    monkeypatch.setattr("nccltune.worker.diagnose.torch.cuda", cuda)
    monkeypatch.setattr("nccltune.worker.diagnose._still_feed", lambda job: job.feed)
    job.device = torch.device("cuda", 0)
    found = turns(job, data="synthetic", windows=2)
    assert found.host == [[pytest.approx(host)] * 2] * 2
    assert found.busy == [[pytest.approx(kernels)] * 2] * 2
    assert found.seconds["unsynced"] == [[pytest.approx(max(host, kernels), rel=0.2)] * 2] * 2


class Exchanging(Job):
    """Rank `rank` of four. An exchange takes `seconds`, and a second more the first time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rank: int, seconds: float) -> None:
        super().__init__(rank)
        self.world_size, self._seconds = 4, seconds
        self.asked: list[list[tuple[str, int]]] = []
        now = SimpleNamespace(perf_counter=lambda: self.now, monotonic=lambda: self.now)
        names = SimpleNamespace(
            isend="send", irecv="receive", P2POp=self._operation, batch_isend_irecv=self._exchange
        )
        monkeypatch.setattr(diagnose, "time", now)
        monkeypatch.setattr(diagnose, "dist", names)
        monkeypatch.setattr(diagnose, "_PAIR_BYTES", 1000)

    def _operation(self, to: str, data: torch.Tensor, other: int, _group: object) -> Any:
        assert data.numel() == 1000
        return to, other

    def _exchange(self, operations: list[tuple[str, int]]) -> list[Any]:
        first = operations not in self.asked
        self.asked.append(operations)
        self.now += self._seconds + first
        return [SimpleNamespace(wait=lambda: None)]

    def gather(self, row: list[float]) -> list[list[float]]:
        """Of the others one took twice as long as this rank, and one a millisecond."""
        return [row, [2 * row[0], 0.0], [0.001, 0.0]]


def exchanged(job: Any) -> list[list[float]]:
    return exchange_pairs(job, job.device, job)


def test_pairs_exchange_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Exchanging(monkeypatch, rank=2, seconds=0.25)
    found = exchanged(job)
    assert [pair[:2] for pair in found] == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    # The slower rank counts, and making the connection does not.
    assert [pair[2] for pair in found if 2 in pair[:2]] == [2000.0] * 3
    assert [pair[2] for pair in found if 2 not in pair[:2]] == [1_000_000.0] * 3
    both_ways = [[("send", other), ("receive", other)] for other in (0, 1, 3)]
    assert [job.asked[n] for n in (0, 4, 8)] == both_ways and len(job.asked) == 12


def test_pairs_that_take_too_long_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    # Four exchanges of a second, and one to connect: over the limit with the second pair.
    slow = Exchanging(monkeypatch, rank=0, seconds=1.0)
    assert exchanged(slow) == [] and len(slow.asked) == 8
    just = Exchanging(monkeypatch, rank=0, seconds=0.1)  # over with the last of its pairs
    assert len(exchanged(just)) == 6 and just.now < 5


@pytest.mark.parametrize("size", [1, 2])
def test_two_ranks_are_no_pairs_to_compare(size: int) -> None:
    job: Any = Job()
    job.world_size = size
    assert diagnose._pairs(job, job, job, job, job) == []


def test_gloo_sends_nothing_from_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    job: Any = Job()
    job.world_size, job.device, job.group = 3, torch.device("cuda", 0), "group"
    monkeypatch.setattr(diagnose, "dist", SimpleNamespace(get_backend=lambda _group: "gloo"))
    assert diagnose._pairs(job, job, job, job, job) == []


def test_no_buffers_are_made_where_a_gpu_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    job: Any = Job()
    job.world_size, job.device, job.group = 3, torch.device("cuda", 0), "group"
    cuda = SimpleNamespace(empty_cache=lambda: None, mem_get_info=lambda _: (1 << 30, 141 << 30))
    monkeypatch.setattr(diagnose.torch, "cuda", cuda)
    monkeypatch.setattr(diagnose, "dist", SimpleNamespace(get_backend=lambda _group: "nccl"))
    status = SimpleNamespace(at=lambda _phase: None)
    assert diagnose._pairs(job, job, job, status, Clock(_quiet)) == []  # type: ignore[arg-type]
