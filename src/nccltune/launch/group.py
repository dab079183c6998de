"""One worker group as the tuner sees it, however its ranks were started: asked, watched, ended."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nccltune.launch import diagnosis
from nccltune.launch.connection import Connection, ProtocolError
from nccltune.launch.processes import Processes
from nccltune.launch.protocol import Failure, Limits, Outcome, Progress
from nccltune.launch.stopping import StopFlag
from nccltune.machine.gpus import Gpu, used_memory, utilization

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 1.0  # for other ranks to end by themselves once one is gone
_REPORT_SECONDS = 15.0  # for the launch to say how its ranks ended; torchrun's own exit takes 2
_CLOSE_SECONDS = 5.0
_STACK_SECONDS = 10.0
_MEMORY_SECONDS = 15.0
_MEMORY_SLACK = 512 << 20  # bytes; drivers keep some after a process has gone


@dataclass
class GroupFolder:
    """The launch's folder and the connection that its rank 0 will make. `reached_as`: by which
    address ranks of other machines reach this one; None where there are none.
    """

    path: Path
    reached_as: str | None = None
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    number: int = field(default_factory=itertools.count().__next__)
    """Of this launch among all of this process."""

    def __post_init__(self) -> None:
        self.path = self.path.absolute()
        self.path.mkdir(parents=True, exist_ok=True)
        for stale in self.path.iterdir():  # of a launch that was interrupted
            shutil.rmtree(stale) if stale.is_dir() else stale.unlink()
        host = "127.0.0.1" if self.reached_as is None else ""
        self.connection = Connection(self.token, host, self.reached_as)

    def pids(self) -> dict[int, int]:
        """Process id by rank, of those that got as far as to write it down."""
        found = {}
        for file in self.path.glob("rank*.pid"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                number = int(file.stem.removeprefix("rank"))
                found[number] = int(file.read_text().split()[0])
        return dict(sorted(found.items()))


class RankGroup:
    """The ranks of one launch. After a failure they are ended, with everything that descends from
    them; `close` then sees the memory of their GPUs free again.
    """

    def __init__(
        self,
        processes: Processes,
        folder: GroupFolder,
        *,
        gpus: Sequence[Gpu],
        watch_memory: bool,
        stop: StopFlag,
        warn: Callable[[str], None],
    ) -> None:
        self._processes, self._folder = processes, folder
        self._gpus, self._watch_memory, self._stop, self._warn = gpus, watch_memory, stop, warn
        self._connection = folder.connection
        self._memory_before = used_memory(gpus)
        self._pids: dict[int, int] = {}
        self._ended = self._closed = False
        self._watch: _Watch | None = None

    @property
    def alive(self) -> bool:
        return not self._ended and not self._broken()

    @property
    def pids(self) -> Mapping[int, int]:
        """Process id by rank, known from the first request on."""
        return self._pids

    def request(self, message: Mapping[str, Any], limits: Limits, progress: Progress) -> Outcome:
        """Send one request and follow it to its result. After a failure the group is ended."""
        outcome = self.begin(message, limits, progress)
        while outcome is None:
            outcome = self.turn()  # there is nobody to take turns with, and nothing to cut for
        return outcome

    def begin(
        self, message: Mapping[str, Any], limits: Limits, progress: Progress
    ) -> Outcome | None:
        """Send one request and follow it until the ranks wait for their turn or for an answer
        (None), or to its result.
        """
        self._watch = _Watch(limits, progress, "start" if self._processes.ready else "host")
        return self._follow(self._watch, message)

    def turn(self, *, cut: bool = False) -> Outcome | None:
        """Let waiting ranks go on until they wait again (None), or to the result. `cut`: they asked
        and shall measure no more.
        """
        assert self._watch is not None
        self._watch.begin("measure")  # the time they waited is nobody's fault
        return self._follow(self._watch, {"type": "cut" if cut else "turn"})

    def _follow(self, watch: _Watch, message: Mapping[str, Any]) -> Outcome | None:
        try:
            if not self._connection.connected and not self._await_ranks(watch):
                return self._failed(watch)
            self._connection.send(message)
            while not watch.overdue:
                self._stop.check()
                over = self._broken()  # what was sent before that still counts
                answer = self._connection.receive(0.0 if over else _POLL_SECONDS)
                if answer is None and over:
                    break
                if answer is None:
                    continue
                if answer["type"] == "result":
                    self._processes.gather()
                    return watch.outcome(answer["result"], None)
                watch.note(answer, self._gpus)
                if watch.phase == "wait" or answer["type"] == "ask":
                    return None
            return self._failed(watch)
        except ProtocolError:
            return self._failed(watch)
        except BaseException:  # interrupted: nothing of this launch may stay
            self._end()
            raise

    def _await_ranks(self, watch: _Watch) -> bool:
        while not watch.overdue and not self._broken():
            self._stop.check()
            if watch.phase == "host" and self._processes.ready:
                watch.begin("start")
            if self._connection.accept(_POLL_SECONDS if watch.phase == "start" else 0.01):
                self._pids = self._folder.pids()
                watch.begin("build")
                return True
        return False

    def _broken(self) -> bool:
        """A rank or the launch has ended, or a rank says that it fails."""
        if not self._processes.running() or self._lost():
            return True
        return any(self._folder.path.glob("rank*.error.json"))

    def _lost(self) -> list[int]:
        if self._folder.reached_as is not None:  # ids can take longer than the ranks' first word
            self._pids = self._folder.pids()
        return self._processes.lost(self._pids)

    def _failed(self, watch: _Watch) -> Outcome:
        folder = self._folder.path
        if watch.overdue:
            self._ask_where()
            failure = diagnosis.silent(folder, watch.phase, watch.limit)
            self._end()
            hosts = watch.phase == "host" and self._processes.trouble is None
            return watch.outcome(None, failure, host_lost=hosts or self._processes.host_lost)
        lost, killed = self._await_report()
        codes, code = self._processes.exit_codes(), self._processes.exit_code()
        host_lost = self._processes.host_lost
        self._end()
        failure = diagnosis.ended(folder, lost, codes, code, killed, self._processes.trouble)
        return watch.outcome(None, failure, host_lost)

    def _await_report(self) -> tuple[list[int], list[int]]:
        """Wait until the launch has noticed how its ranks ended. Returns the ranks that were gone
        when the first loss was seen, and those that had to be killed to get the report.
        """
        self._pids = self._pids or self._folder.pids()
        lost, killed = self._lost(), list[int]()
        began = time.monotonic()
        while not self._processes.over and time.monotonic() - began < _REPORT_SECONDS:
            time.sleep(0.02)
            lost = lost or self._lost()
            if not killed and time.monotonic() - began > _GRACE_SECONDS:
                killed = self._processes.signal(self._pids, signal.SIGKILL)
        return lost, killed

    def _ask_where(self) -> None:
        """Every rank writes the Python stack of all its threads to its log; py-spy, where it is
        installed and may, adds what even a rank stuck in C code does.
        """
        pids = self._pids or self._folder.pids()
        self._processes.signal(pids, signal.SIGUSR1)
        time.sleep(0.5)
        self._processes.gather()
        spy = shutil.which("py-spy")
        for rank, pid in pids.items() if spy and self._folder.reached_as is None else ():
            with (
                (self._folder.path / f"rank{rank}.log").open("ab") as log,
                contextlib.suppress(subprocess.TimeoutExpired),
            ):
                command = [str(spy), "dump", "--pid", str(pid)]
                subprocess.run(command, stdout=log, stderr=log, timeout=_STACK_SECONDS)

    def close(self) -> None:
        """End the group: politely where it is idle, then for certain; see its memory free again.
        Of two groups that are alive together the one that was opened last is closed first.
        """
        if self._closed:
            return
        self._closed = True
        if self._connection.connected and self.alive:
            with contextlib.suppress(ProtocolError):
                self._connection.send({"type": "close"})
                deadline = time.monotonic() + _CLOSE_SECONDS
                while len(self._lost()) < len(self._pids) and time.monotonic() < deadline:
                    time.sleep(0.005)
        self._end()
        self._await_memory()

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._connection.close()
        self._processes.end()

    def _await_memory(self) -> None:
        deadline = time.monotonic() + _MEMORY_SECONDS
        while self._watch_memory:
            held = [
                now - before
                for now, before in zip(used_memory(self._gpus), self._memory_before, strict=False)
            ]
            if all(more <= _MEMORY_SLACK for more in held):
                return
            if time.monotonic() > deadline:
                self._warn(
                    f"GPU memory did not come back after a launch: {max(held) >> 20} MiB more in "
                    f"use than before it (limit {_MEMORY_SLACK >> 20} MiB); look with nvidia-smi"
                )
                return
            time.sleep(0.05)


class _Watch:
    """Follows one request: the phase it is in, how long each took, when news is overdue."""

    def __init__(self, limits: Limits, progress: Progress, phase: str) -> None:
        self._limits, self._progress = limits, progress
        self._seconds: dict[str, float] = {}
        self._utilization: list[tuple[int, ...]] = []
        self.phase = phase
        self._since = self._news = time.monotonic()

    @property
    def limit(self) -> float:
        return self._limits.of(self.phase)

    @property
    def overdue(self) -> bool:
        return time.monotonic() - self._news > self.limit

    def begin(self, phase: str) -> None:
        now = time.monotonic()
        self._seconds[self.phase] = self._seconds.get(self.phase, 0.0) + now - self._since
        self.phase, self._since, self._news = phase, now, now

    def note(self, message: Mapping[str, Any], gpus: Sequence[Gpu]) -> None:
        self._news = time.monotonic()
        if message["type"] == "phase":
            self.begin(str(message["phase"]))
        elif message["type"] == "window" and gpus and self.phase == "measure":
            self._utilization.append(utilization(gpus))
        self._progress(message)

    def outcome(
        self,
        result: Mapping[str, Any] | None,
        failure: Failure | None,
        host_lost: bool = False,
    ) -> Outcome:
        self.begin("end")
        columns = zip(*self._utilization, strict=True) if self._utilization else ()
        return Outcome(
            result=result,
            failure=failure,
            seconds={name: round(spent, 3) for name, spent in self._seconds.items()},
            utilization=tuple(round(sum(column) / len(column), 1) for column in columns),
            host_lost=host_lost,
        )
