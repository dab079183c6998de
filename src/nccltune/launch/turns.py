"""Two worker groups that are alive at the same time and measure in turn, so that what changes on
the machine over minutes is the same for both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from nccltune.launch.protocol import Failure, Group, Limits, Outcome, Progress
from nccltune.machine.facts import available_memory
from nccltune.machine.gpus import Gpu, free_memory

_ROOM = 1.25  # times what the first group takes must be free for the second
_FAILURES = 2  # in a row, before turns are given up: one can be somebody else's doing

T = TypeVar("T")


@dataclass(frozen=True)
class Side:
    """One of the two: how its group is opened, and what it is asked (a request with `turns`)."""

    open: Callable[[], Group]
    message: Mapping[str, Any]
    limits: Limits = Limits()


class NoTurns(Exception):
    """The two could not be alive at the same time; the text says why. No result is left of it."""


class NoRoom(NoTurns):
    """Memory does not hold two of them: trying again is of no use."""


class _HostLost(NoTurns): ...


@dataclass
class Turns:
    """Whether worker groups can take turns on this machine, as far as a run has seen."""

    refused: str | None = None
    """Why not, once that is settled."""
    _failures: int = 0

    def attempt(self, take: Callable[[], T]) -> T | None:
        """What `take` gives; None where the groups cannot take turns now."""
        if self.refused is not None:
            return None
        try:
            taken = take()
        except NoTurns as error:
            self._failures += 1
            if isinstance(error, NoRoom) or self._failures >= _FAILURES:
                self.refused = str(error)
            return None
        self._failures = 0
        return taken

    def excuse(self) -> None:
        """The last attempt failed by what was measured, which says nothing of the machine."""
        self.refused = None
        self._failures = max(0, self._failures - 1)


def take_turns(
    sides: Sequence[Side],
    gpus: Sequence[Gpu],
    progress: Progress = lambda _message: None,
    measured: Callable[[], object] = lambda: None,
) -> tuple[Outcome, Outcome]:
    """The results of both, in the order of `sides`. The first is opened first; the turns go A B,
    B A, A B, ..., so that a steady drift hits both alike. Once more where it was a host that died.
    `measured` is called when both have their results and are still alive.

    Raises: NoTurns when memory does not allow it or one of them fails, Interrupted.
    """
    try:
        return _take_turns(sides, gpus, progress, measured)
    except _HostLost:
        return _take_turns(sides, gpus, progress, measured)


def _take_turns(
    sides: Sequence[Side],
    gpus: Sequence[Gpu],
    progress: Progress,
    measured: Callable[[], object],
) -> tuple[Outcome, Outcome]:
    groups: list[Group] = []
    outcomes: dict[int, Outcome] = {}
    with contextlib.ExitStack() as stack:  # the last is closed first, and finds its memory free
        before = _free(gpus)
        for side in sides:
            if groups:
                _refuse_narrow(before, _free(gpus))
            groups.append(side.open())
            stack.callback(groups[-1].close)
            _note(groups[-1].begin(side.message, side.limits, progress), len(groups) - 1, outcomes)
        order = [0, 1]
        while len(outcomes) < len(groups):
            for place in order:
                if place not in outcomes:
                    _note(groups[place].turn(), place, outcomes)
            order.reverse()
        measured()
    return outcomes[0], outcomes[1]


def _note(outcome: Outcome | None, place: int, outcomes: dict[int, Outcome]) -> None:
    if outcome is None:
        return
    if outcome.failure is not None:
        raise _reason(outcome.failure, outcome.host_lost)
    outcomes[place] = outcome


def _reason(failure: Failure, host_lost: bool) -> NoTurns:
    told = f"{failure.kind.replace('_', ' ')}: {failure.message}"
    if host_lost:
        return _HostLost(told)
    return NoRoom(told) if failure.kind == "out_of_memory" else NoTurns(told)


def _free(gpus: Sequence[Gpu]) -> dict[str, int]:
    """Bytes free on each GPU and in the machine, by name."""
    found = {f"GPU {gpu.index}": free for gpu, free in zip(gpus, free_memory(gpus), strict=False)}
    return {**found, "the machine": available_memory()}


def _refuse_narrow(before: Mapping[str, int], now: Mapping[str, int]) -> None:
    """Raises NoRoom where a second group like the first would not fit well. A group that only just
    fits may get slower kernels, so some room is wanted.
    """
    for name, free in now.items():
        taken = before.get(name, free) - free
        if free < _ROOM * taken:
            raise NoRoom(
                f"the memory of {name} does not hold two worker groups: one takes "
                f"{taken >> 20} MiB, {free >> 20} MiB are left"
            )
