"""Times windows of steps that somebody else takes: until they are steady, then those that count."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Protocol

from nccltune.worker.spec import Settings
from nccltune.worker.windows import (
    CUT_WINDOWS,
    Interruptions,
    Window,
    hopeless,
    is_draining,
    settled,
    warmed_up,
    window_steps,
)

Announce = Callable[..., None]
AwaitTurn = Callable[[], None]
IsHopeless = Callable[[list[float]], bool]
"""Asked with the samples/s of the windows that count so far; the same answer on every rank."""
Steps = Generator[str, None, bool]
"""Gives a phase for each step that is wanted, and goes on when that step was taken."""

_MOST_DRAINS = 3
_MOST_SHORT = 8  # times the usual number of windows, where they have to be short


class Gathers(Protocol):
    """The ranks: `worker.ranks.Ranks`, or the same over a store."""

    def gather(self, values: list[float]) -> list[list[float]]: ...


class Queue(Protocol):
    """What is known of a loader and its queue: the part of a `Feed` that windows look at."""

    workers: int
    buffered: int
    consumed: int

    def start_window(self) -> None: ...
    def window_stats(self) -> tuple[float, float]: ...
    def drain(self) -> None: ...


class Work(Protocol):
    """What is timed."""

    @property
    def feed(self) -> Queue: ...

    def synchronize(self) -> None: ...

    def counted(self, steps: int) -> tuple[int, int]:
        """(samples of this rank, interruptions) in the window of so many steps that ends now."""
        ...

    def rhythm(self) -> tuple[int, int]:
        """(steps from one interruption to the next, usually, 0 where there was none; steps since
        the last one).
        """
        ...


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
    """Every rank has one, sees the same gathered numbers and so asks for the same steps."""

    def __init__(
        self,
        settings: Settings,
        ranks: Gathers,
        work: Work,
        clock: Clock,
        announce: Announce,
        await_turn: AwaitTurn | None = None,
        is_hopeless: IsHopeless | None = None,
    ) -> None:
        """`await_turn`: called before each window that counts, where groups take turns.
        `is_hopeless`: asked after windows that count; None: the rule of the settings.
        """
        self._settings, self._ranks, self._work = settings, ranks, work
        self._clock, self._announce, self._await_turn = clock, announce, await_turn
        self._is_hopeless = is_hopeless
        self.windows: list[Window] = []
        self._settled = 0
        self._interruptions: Interruptions | None = None

    @property
    def counting(self) -> list[Window]:
        return [window for window in self.windows if window.counts]

    def rates(self) -> list[float]:
        """Samples/s of all ranks, of the windows that count."""
        return [window.samples_per_second for window in self.counting]

    def warming(self) -> Steps:
        """Steps until the windows are steady. Returns whether they became so within the limits."""
        self._clock.start("warmup")
        settings = self._settings
        self._settle()
        begin, drains = 0, 0
        while True:
            yield from self._window("warmup", warmup=True)
            windows = self.windows[begin:]
            over, steady = warmed_up(windows, settings)
            if over:
                return steady
            if drains < _MOST_DRAINS and self._draining(
                settled(windows)[-settings.steady_windows :]
            ):
                self._work.feed.drain()
                self._settle()
                begin, drains = len(self.windows), drains + 1

    def _settle(self) -> None:
        """From here on, what lies in the queue has to be consumed before windows can count; one
        more step may be taken to size the first of them.
        """
        self._settled = self._work.feed.consumed + 1 + self._work.feed.buffered

    def _draining(self, windows: list[Window]) -> bool:
        several = len(windows) >= self._settings.steady_windows
        return several and is_draining(windows, self._work.feed.workers)

    def measuring(self) -> Steps:
        """Steps of the windows that count. Returns whether it was ended early, as hopeless."""
        if self._await_turn is None:
            self._clock.start("measure")
        settings = self._settings
        number = 0
        while number < self._most_windows():
            number += 1
            if self._await_turn is not None:
                yield from self._take_turn(self._await_turn)
            yield from self._window("measure", warmup=False)
            counting = self.counting
            if self._draining(counting) and number < self._most_windows():
                self._discard_first()  # a later one makes up for it, in bounds
                continue
            spent = sum(window.seconds for window in counting)
            if len(counting) >= settings.windows and spent >= self._least_seconds():
                return False
            if len(counting) >= 2 and spent >= settings.max_measure_seconds:
                return False
            if self._hopeless():
                return True
        return False

    def _hopeless(self) -> bool:
        if self._is_hopeless is None:
            return hopeless(self.rates(), self._settings)
        news = self.windows[-1].counts and len(self.counting) >= CUT_WINDOWS
        return news and self._is_hopeless(self.rates())

    def _most_windows(self) -> int:
        return (2 if self._interruptions is None else _MOST_SHORT) * self._settings.windows

    def _least_seconds(self) -> float:
        """Windows that have to be short say as much as the usual ones when there are more."""
        settings = self._settings
        usual = settings.windows * settings.window_seconds
        return 0.0 if self._interruptions is None else usual

    def _take_turn(self, await_turn: AwaitTurn) -> Generator[str, None, None]:
        """Wait, then one step that is not timed: the caches hold what the other group did."""
        self._clock.start("wait")
        await_turn()
        self._clock.start("measure")
        yield "measure"
        self._work.synchronize()

    def _discard_first(self) -> None:
        first = next(i for i, window in enumerate(self.windows) if window.counts)
        self.windows[first] = replace(self.windows[first], counts=False)

    def _window(self, phase: str, *, warmup: bool) -> Generator[str, None, None]:
        work, feed, settings = self._work, self._work.feed, self._settings
        wanted = settings.warmup_window_seconds if warmup else settings.window_seconds
        step_seconds = yield from self._step_seconds()
        steps = window_steps(step_seconds, feed.workers, wanted, settings)
        before, steps = self._between(steps)
        for _ in range(before):
            yield phase
        early = feed.consumed < self._settled  # the same on all ranks: they step together
        feed.start_window()
        work.counted(0)
        began = time.perf_counter()
        for _ in range(steps):
            yield phase
        work.synchronize()
        seconds = time.perf_counter() - began
        figures = (seconds, *feed.window_stats(), *work.counted(steps), *work.rhythm())
        rows = self._ranks.gather([*figures])
        self._interruptions = Interruptions.of([row[5:7] for row in rows])
        apart = self._interruptions is not None and not self._interruptions.usual
        interrupted = apart and any(row[4] for row in rows)
        window = Window(
            steps=steps,
            rank_seconds=tuple(row[0] for row in rows),
            data_wait=max(row[1] for row in rows),
            response=round(max(row[2] for row in rows), 6),
            warmup=warmup,
            counts=not warmup and not interrupted,
            early=early,
            samples=int(sum(row[3] for row in rows)),
            interrupted=interrupted,
        )
        self.windows.append(window)
        self._announce("window", window=window.to_dict())

    def _between(self, steps: int) -> tuple[int, int]:
        """(steps before the window, steps of the window)."""
        known = self._interruptions
        return (0, steps) if known is None or known.usual else known.fit(steps)

    def _step_seconds(self) -> Generator[str, None, float]:
        """A step's time from the last window; before the first, one step is timed."""
        if self.windows:
            return 1 / self.windows[-1].steps_per_second
        began = time.perf_counter()
        yield "warmup"
        self._work.synchronize()
        return max(row[0] for row in self._ranks.gather([time.perf_counter() - began]))
