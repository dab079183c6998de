"""The order of windows in a measurement, with a job whose steps take as long as they are told."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from nccltune.worker.spec import Settings
from nccltune.worker.timer import Clock, Steps, WindowTimer
from nccltune.worker.windows import Window

Response = Callable[[int], float]
"""How long the loader takes to make a batch in a window that begins after so many."""


class Job:
    """One rank with a loader; `now` is its time. It is its own feed and its own ranks."""

    world_size = 1

    def __init__(
        self,
        step_seconds: Callable[[int], float] | float = 0.1,
        workers: int = 0,
        buffered: int | None = None,
        response: Response = lambda _consumed: 0.05,
    ) -> None:
        self.feed = self
        self.workers = workers
        self.buffered = 2 * workers if buffered is None else buffered
        self.consumed = 2  # the first steps
        self.now = 0.0
        self.drained_at: list[int] = []
        self.response = response
        self._step = step_seconds
        self._began = 0
        self._windows = 0
        self.interruptions = self.gap = self.since = 0

    def step(self, _phase: str) -> None:
        self.now += self._step if isinstance(self._step, float) else self._step(self.consumed)
        self.consumed += 1

    def synchronize(self) -> None: ...

    def start_window(self) -> None:
        self._began = self.consumed
        self._windows += 1
        assert self._windows < 200, "windows without end"

    def window_stats(self) -> tuple[float, float]:
        return 0.0, self.response(self._began)

    def counted(self, steps: int) -> tuple[int, int]:
        found, self.interruptions = self.interruptions, 0
        return 4 * steps, found

    def rhythm(self) -> tuple[int, int]:
        return self.gap, self.since

    def drain(self) -> None:
        self.drained_at.append(self.consumed)
        self.consumed += self.buffered

    def gather(self, row: list[float]) -> list[list[float]]:
        return [row]


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., WindowTimer]:
    def made(
        job: Any,
        await_turn: Callable[[], None] | None = None,
        is_hopeless: Callable[[list[float]], bool] | None = None,
        **settings: Any,
    ) -> WindowTimer:
        now = SimpleNamespace(perf_counter=lambda: job.now, monotonic=lambda: job.now)
        monkeypatch.setattr("nccltune.worker.timer.time", now)
        clock = Clock(_quiet)
        return WindowTimer(Settings(**settings), job, job, clock, _quiet, await_turn, is_hopeless)

    return made


def _quiet(*_: Any, **__: Any) -> None: ...


def warm_up(found: WindowTimer) -> bool:
    return take(found, found.warming())


def measure(found: WindowTimer) -> bool:
    return take(found, found.measuring())


def take(found: WindowTimer, steps: Steps) -> bool:
    while True:
        try:
            phase = next(steps)
        except StopIteration as ended:
            return bool(ended.value)
        found._work.step(phase)  # type: ignore[attr-defined]


def early(windows: list[Window]) -> list[bool]:
    return [window.early for window in windows]


Timer = Callable[..., WindowTimer]


def test_without_a_queue_no_window_is_early(timer: Timer) -> None:
    job = Job()
    found = timer(job)
    assert warm_up(found) is True
    assert early(found.windows) == [False] * 3
    assert [w.steps for w in found.windows] == [5, 5, 5]
    assert job.consumed == 2 + 1 + 15  # one step is timed to size the first window


def test_each_window_that_counts_waits_for_its_turn_and_drops_the_step_after_it(
    timer: Timer,
) -> None:
    job, waited = Job(), []
    found = timer(job, lambda: waited.append(job.consumed))
    warm_up(found)
    warm = job.consumed
    measure(found)
    counting = found.counting
    assert len(waited) == len(counting) == 4
    assert waited == [warm + 6 * n for n in range(4)]  # a step that is not timed, then five
    assert [w.steps for w in counting] == [5] * 4
    assert job.consumed == warm + 24


@pytest.mark.parametrize(
    ("cut_at", "windows", "asked"), [(3, 3, [3]), (5, 5, [3, 4, 5]), (9, 6, [3, 4, 5])]
)
def test_from_the_third_window_on_it_is_asked_whether_this_is_hopeless(
    timer: Timer, cut_at: int, windows: int, asked: list[int]
) -> None:
    """Not after the last, where there is nothing left to save; and the bound is not looked at."""
    heard: list[list[float]] = []

    def is_hopeless(rates: list[float]) -> bool:
        heard.append(rates)
        return len(rates) >= cut_at

    found = timer(Job(), is_hopeless=is_hopeless, windows=6, cut_below=1e9)
    warm_up(found)
    assert measure(found) is (cut_at == windows)
    assert len(found.counting) == windows
    assert [len(rates) for rates in heard] == asked
    assert heard[-1] == found.rates()[: len(heard[-1])]


@pytest.mark.parametrize(
    ("buffered", "count"),
    [(1, 1), (5, 1), (6, 2), (8, 2), (20, 4), (21, 5)],
)
def test_windows_are_early_until_what_was_made_before_is_consumed(
    timer: Timer, buffered: int, count: int
) -> None:
    # 2 first steps and the timed one; then windows of 5 steps begin at 3, 8, 13, and so on, and
    # those that begin below 3 + buffered are early.
    job = Job(workers=1, buffered=buffered)
    found = timer(job)
    assert warm_up(found) is True
    assert early(found.windows) == [True] * count + [False] * 3
    assert job.drained_at == []


def test_a_long_queue_may_outlast_the_limits_of_the_warm_up(timer: Timer) -> None:
    job = Job(workers=1, buffered=100)
    found = timer(job, max_warmup_windows=4, max_warmup_seconds=1.0)
    assert warm_up(found) is True
    assert early(found.windows) == [True] * 20 + [False] * 3


def rising_until(end: int) -> Response:
    """Up to there the worker falls behind by 0.02 s a batch: by a fifth of the time."""
    return lambda consumed: 0.2 + 0.02 * consumed if consumed < end else 0.05


def test_what_early_windows_show_is_no_reason_to_drain(timer: Timer) -> None:
    job = Job(workers=1, buffered=20, response=rising_until(23))
    found = timer(job)
    assert warm_up(found) is True
    assert early(found.windows) == [True] * 4 + [False] * 3
    assert job.drained_at == []


def test_a_queue_that_drains_is_taken_once_and_what_is_made_then_is_early_again(
    timer: Timer,
) -> None:
    # Windows that begin at 3, 8, 13 and 18 are early; at 23, 28 and 33 the queue drains. Of the 38
    # and 20 more that are taken then, the next 1 + 20 were asked for before: 58 to 78 are early.
    job = Job(workers=1, buffered=20, response=rising_until(58))
    found = timer(job)
    assert warm_up(found) is True
    assert job.drained_at == [38]
    assert early(found.windows) == [True] * 4 + [False] * 3 + [True] * 5 + [False] * 3


def test_two_windows_do_not_tell_that_the_queue_drains(timer: Timer) -> None:
    job = Job(workers=1, buffered=20, response=rising_until(33))
    found = timer(job)
    assert warm_up(found) is True
    assert job.drained_at == []


def test_an_empty_queue_is_the_loaders_own_pace(timer: Timer) -> None:
    # Far behind, but no further from window to window.
    job = Job(workers=1, buffered=4, response=lambda _: 3.0)
    found = timer(job)
    assert warm_up(found) is True
    assert early(found.windows) == [True] + [False] * 3
    assert job.drained_at == []


def test_the_warm_up_ends_at_its_limit_where_speed_never_settles(timer: Timer) -> None:
    job = Job(step_seconds=lambda consumed: 0.1 * 0.99**consumed, workers=1, buffered=10)
    found = timer(job, max_warmup_windows=6)
    assert warm_up(found) is False
    assert early(found.windows) == [True] * 2 + [False] * 6


def test_four_windows_count_and_the_warm_ups_do_not(timer: Timer) -> None:
    job = Job()
    found = timer(job)
    warm_up(found)
    assert measure(found) is False
    assert [w.counts for w in found.windows] == [False] * 3 + [True] * 4
    assert [w.warmup for w in found.windows] == [True] * 3 + [False] * 4
    assert found.rates() == pytest.approx([40.0] * 4)  # batches of 4, ten steps/s, one rank


def test_windows_of_a_draining_queue_are_discarded_but_no_more_than_eight_are_run(
    timer: Timer,
) -> None:
    job = Job(workers=1, buffered=0)
    found = timer(job)
    assert warm_up(found) is True
    job.response = rising_until(10**6)
    assert measure(found) is False
    # From the third to the seventh each costs the oldest; the eighth is the last.
    assert [w.counts for w in found.windows] == [False] * 3 + [False] * 5 + [True] * 3
    assert job.drained_at == []  # while it is measured nothing is thrown away


def test_as_many_windows_as_were_discarded_are_made_up_for(timer: Timer) -> None:
    job = Job(workers=1, buffered=0)
    found = timer(job)
    assert warm_up(found) is True
    job.response = rising_until(33)  # windows begin at 18, 23, 28: these three drain the queue
    assert measure(found) is False
    assert [w.counts for w in found.windows] == [False] * 3 + [False] + [True] * 4


def test_a_queue_that_drains_for_ever_is_taken_three_times(timer: Timer) -> None:
    job = Job(workers=1, buffered=20, response=rising_until(10**6))
    found = timer(job)
    assert warm_up(found) is False
    # 20 are taken, five windows are early and three more tell: 20 + 25 + 15 steps further on.
    assert job.drained_at == [38, 98, 158]


def test_measuring_ends_after_its_time(timer: Timer) -> None:
    job = Job(step_seconds=1.0)
    found = timer(job)
    warm_up(found)
    assert measure(found) is False
    assert [w.seconds for w in found.counting] == [5.0, 5.0]  # 10 s are above 8 s


@pytest.mark.parametrize(
    ("incumbent", "cut", "windows"),
    [(None, False, 4), (40.8, False, 4), (41.0, True, 3), (400.0, True, 3)],
)
def test_a_hopeless_one_is_cut_after_three_windows_that_count(
    timer: Timer, incumbent: float | None, cut: bool, windows: int
) -> None:
    found = timer(Job(), cut_below=incumbent)  # 40 samples/s; 2 % below 41 are 40.18
    warm_up(found)
    assert measure(found) is cut
    assert len(found.counting) == windows


def test_windows_are_whole_rounds_of_the_workers(timer: Timer) -> None:
    job = Job(step_seconds=0.025, workers=5)
    found = timer(job)
    warm_up(found)
    assert {w.steps for w in found.windows} == {10}  # 6 would be 0.15 s
    measure(found)
    assert {w.steps for w in found.counting} == {15}  # 12 would be 0.3 s
    assert all(math.isclose(w.seconds, 0.375) for w in found.counting)


class Interrupted(Job):
    """Something else than training happens in each `every`-th step."""

    def __init__(self, every: int, seconds: float = 1.0) -> None:
        super().__init__(0.02)
        self._every, self._seconds = every, seconds

    def step(self, phase: str) -> None:
        super().step(phase)
        self.since += 1
        if self.consumed % self._every == 0:
            self.interruptions += 1
            self.gap, self.since = self._every, 0
            self.now += self._seconds


@pytest.mark.parametrize("every", [5, 9, 20, 60, 1000])
def test_windows_lie_between_interruptions_and_are_as_long_as_fits(
    timer: Timer, every: int
) -> None:
    found = timer(Interrupted(every))
    assert warm_up(found) is True
    assert measure(found) is False
    assert found.rates() == pytest.approx([200.0] * len(found.rates()))  # 4 in 0.02 s
    assert all(w.steps < every for w in found.counting)
    assert sum(w.interrupted for w in found.windows) <= 1  # the first, or that at step 1000
    if every < 1000:
        assert sum(w.seconds for w in found.counting) >= 4 * 0.3 - 1e-9


@pytest.mark.parametrize("every", [1, 2, 4])
def test_what_happens_every_few_steps_is_a_part_of_them(timer: Timer, every: int) -> None:
    found = timer(Interrupted(every, seconds=0.08))
    warm_up(found)
    measure(found)
    rate = sum(w.samples for w in found.counting) / sum(w.seconds for w in found.counting)
    assert rate == pytest.approx(4 / (0.02 + 0.08 / every), rel=0.05)
    assert not any(w.interrupted for w in found.windows)


class Irregular(Interrupted):
    """Its interruptions come sooner than their rhythm says."""

    def rhythm(self) -> tuple[int, int]:
        return (8, self.since) if self.gap else (0, 0)


def test_windows_that_are_interrupted_all_the_same_do_not_count(timer: Timer) -> None:
    found = timer(Irregular(every=5))
    warm_up(found)
    measure(found)
    assert any(w.interrupted for w in found.windows)
    assert found.rates() == pytest.approx([200.0] * len(found.rates()))


def test_it_is_not_asked_again_after_a_window_that_does_not_count(timer: Timer) -> None:
    heard: list[int] = []

    def is_hopeless(rates: list[float]) -> bool:
        heard.append(len(rates))
        if len(heard) == 2:
            job.stumbles = True
        return False

    job = Stumbles()
    found = timer(job, is_hopeless=is_hopeless, windows=6)
    warm_up(found)
    measure(found)
    assert sum(window.interrupted for window in found.windows) == 1
    assert len(heard) == len(set(heard)) and heard[:3] == [3, 4, 5]


class Stumbles(Job):
    """One interruption in the next step, once it is told to."""

    stumbles = False

    def step(self, phase: str) -> None:
        super().step(phase)
        self.since += 1
        if self.stumbles:
            self.interruptions, self.gap, self.since, self.stumbles = 1, 1000, 0, False
