"""The nodes of an allocation divided among several tuners on one study, and the tuners that this
one starts on the other parts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nccltune.errors import COMPLAINT, UsageError
from nccltune.launch.diagnosis import how_ended, read_end
from nccltune.launch.leftovers import TAG, new_tag
from nccltune.launch.slurm import Allocation
from nccltune.launch.step import Step, agent_command
from nccltune.launch.stopping import StopFlag

PART = "NCCLTUNE_PART"
"""In the environment of a tuner that another one has started: the number of its part."""

_BEGIN_SECONDS = 120.0  # a Python's start from a cold network disk
_STOP_SECONDS = 30.0  # for ranks under way to end, and for words to the storage
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Split:
    """Parts of as many nodes each, numbered from 1; `own` is the part that this tuner works on."""

    parts: Mapping[int, Allocation]
    own: int

    @property
    def others(self) -> dict[int, Allocation]:
        return {number: part for number, part in self.parts.items() if number != self.own}


@dataclass(frozen=True)
class _First(Allocation):
    """The first node of a part, for a tuner on another one that is reached at `tuner`."""

    tuner: str = ""

    @property
    def own_address(self) -> str:
        return self.tuner


def divide(allocation: Allocation, count: int) -> Split:
    """Neighbours come into one part. Raises UsageError where the parts would not be equal."""
    total = len(allocation.nodes)
    if total % count:
        fitting = " or ".join(str(n) for n in range(2, total + 1) if total % n == 0)
        raise UsageError(
            f"--split {count}: the {total} node{'' if total == 1 else 's'} of this allocation "
            f"cannot be divided into {count} equal parts; "
            + (f"give --split {fitting}, or " if fitting else "")
            + f"ask Slurm for a multiple of {count} nodes"
        )
    size = total // count
    own, here = divmod(allocation.here, size)
    parts = {
        at + 1: replace(
            allocation,
            nodes=allocation.nodes[at * size : (at + 1) * size],
            here=here if at == own else 0,
        )
        for at in range(count)
    }
    return Split(parts, own + 1)


def tuner_argv(
    part: Allocation, worker_path: Path, tag: str, command: Sequence[str]
) -> tuple[str, ...]:
    """How a tuner is started on the first node of its part."""
    agents = agent_command(sys.executable, worker_path, tag, command, {})
    return _first_of(part, "").shown(agents).argv


def _first_of(part: Allocation, tuner: str) -> _First:
    return _First(**{**vars(part), "nodes": part.nodes[:1], "here": 0}, tuner=tuner)


class Follower:
    """A tuner that this one has started."""

    def __init__(self, node: str, step: Step, log: Path) -> None:
        self.node, self.log = node, log
        self._step, self._told, self._ended = step, False, False

    @property
    def begun(self) -> bool:
        """Whether it has begun, or will not any more."""
        self._step.advance()
        return self._step.started or self.over

    @property
    def over(self) -> bool:
        if not self._ended:
            self._step.advance()
        return self._ended or not self._step.intact

    def news(self) -> str | None:
        """Why it has ended early, once; None as long as it runs, and where it was done."""
        if self._told or not self.over:
            return None
        self._told = True
        trouble, code = self._step.trouble(), self._step.exit_code()
        if trouble is None and not code:
            return None
        why = trouble or f"it {how_ended(code)}{_last_said(self.log)}"
        return f"the tuner on {self.node} ended early ({why}); the others go on; see {self.log}"

    def ask_to_stop(self) -> None:
        self._told = True
        self._step.ask_to_stop()

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._step.end()


def _last_said(log: Path) -> str:
    """Why it ended, in its own words."""
    _, found, said = read_end(log).rpartition(COMPLAINT)
    return f": {' '.join(said.split())[:400]}" if found else ""


class Followers:
    """The tuners on all other parts, each with the same command."""

    def __init__(
        self,
        split: Split,
        command: Sequence[str],
        environ: Mapping[str, str],
        worker_path: Path,
        log_of: Callable[[int], Path],
        stop: StopFlag,
    ) -> None:
        """Start them. `log_of` says where the output of a part's tuner goes."""
        self._stop = stop
        self._all: list[Follower] = []
        tuner = split.parts[split.own].own_address
        try:
            for number, part in split.others.items():
                tag, log = new_tag(), log_of(number)
                env = {**environ, PART: str(number), TAG: tag}
                first = _first_of(part, tuner)
                step = Step(first, sys.executable, worker_path, command, env, log, tag)
                self._all.append(Follower(part.head.name, step, log))
        except BaseException:
            for each in self._all:
                each.end()
            raise

    def begin(self) -> None:
        """Wait until each has begun, or could not. Raises Interrupted."""
        until = time.monotonic() + _BEGIN_SECONDS
        while not all(each.begun for each in self._all) and time.monotonic() < until:
            self._stop.check()
            time.sleep(_POLL_SECONDS)
        for each in self._all:
            if not each.begun:
                each.end()

    def busy(self) -> list[Follower]:
        """Those that have not ended."""
        return [each for each in self._all if not each.over]

    def news(self) -> Iterator[str]:
        """Which have ended early since the last call, and why."""
        for each in self._all:
            if (line := each.news()) is not None:
                yield line

    def end(self, patience: float = 0.0) -> list[str]:
        """Have them end: by themselves within that time, else as after Ctrl-C, else by force.
        Returns the nodes of those that had to be asked. Can be called again.
        """
        until = time.monotonic() + patience
        while self.busy() and time.monotonic() < until and not self._stop.requested:
            time.sleep(_POLL_SECONDS)
        asked = self.busy()
        for each in asked:
            each.ask_to_stop()
        until = time.monotonic() + _STOP_SECONDS
        while self.busy() and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        for each in self._all:
            each.end()
        return [each.node for each in asked]
