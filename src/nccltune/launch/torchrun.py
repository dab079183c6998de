"""The torchrun launcher: every worker group is one plain `torchrun` command on this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nccltune.launch import diagnosis, supervisor
from nccltune.launch.connection import Connection, ProtocolError
from nccltune.launch.environment import launch_environment, nccl_log_variables
from nccltune.launch.leftovers import TAG, end_tagged, is_running
from nccltune.launch.plan import LaunchPlan, torchrun_argv
from nccltune.launch.protocol import Failure, Limits, Outcome, Progress
from nccltune.launch.stopping import StopFlag
from nccltune.machine.gpus import Gpu, used_memory, utilization
from nccltune.nccl.site import SiteVariable

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 3.0  # for torchrun to say how a rank ended, before everything is ended
_MEMORY_SECONDS = 15.0
_MEMORY_SLACK = 512 << 20  # bytes; drivers keep some after a process has gone


@dataclass
class TorchrunLauncher:
    """Starts ranks with the job's own Python. `base` is the tuner's environment at its start."""

    python: str
    nproc_per_node: int
    backend: str
    worker_path: Path
    base: Mapping[str, str]
    site: Mapping[str, SiteVariable]
    gpus: Sequence[Gpu]
    tag: str
    stop: StopFlag
    watch_memory: bool = True
    """False where others use the GPUs too, so that nothing can be told from memory in use."""
    warnings: list[str] = field(default_factory=list)

    def plan(
        self, process_env: Mapping[str, str], log_dir: Path, address: str, token: str, probe: bool
    ) -> LaunchPlan:
        path = [str(self.worker_path), self.base.get("PYTHONPATH", "")]
        added = {
            "PYTHONPATH": os.pathsep.join(part for part in path if part),
            "PYTHONUNBUFFERED": "1",
            "NCCLTUNE_ADDRESS": address,
            "NCCLTUNE_TOKEN": token,
            "NCCLTUNE_LOG_DIR": str(log_dir),
            TAG: self.tag,
        }
        if self.gpus and "CUDA_DEVICE_ORDER" not in self.base:
            added["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # NVML's order: watched is what is used
        if self.backend == "nccl":
            added |= nccl_log_variables(str(log_dir), probe=probe)
        argv = torchrun_argv(self.python, self.nproc_per_node, "nccltune.worker")
        return LaunchPlan(argv, {**process_env, **added})

    def open(
        self, process_env: Mapping[str, str], log_dir: Path, *, probe: bool = False
    ) -> TorchrunGroup:
        log_dir = log_dir.absolute()
        log_dir.mkdir(parents=True, exist_ok=True)
        for stale in log_dir.iterdir():  # of a launch that was interrupted
            stale.unlink()
        token = secrets.token_hex(16)
        connection = Connection(token)
        plan = self.plan(process_env, log_dir, connection.address, token, probe)
        return TorchrunGroup(self, plan, log_dir, connection)


class TorchrunGroup:
    """The ranks of one torchrun command, under a supervisor that ends all of them with it."""

    def __init__(
        self, launcher: TorchrunLauncher, plan: LaunchPlan, log_dir: Path, connection: Connection
    ) -> None:
        self._launcher, self._log_dir, self._connection = launcher, log_dir, connection
        self._memory_before = used_memory(launcher.gpus)
        self._pids: list[int] = []
        self._closed = False
        with (log_dir / "launcher.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", supervisor.__file__, "--", *plan.argv],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=launch_environment(launcher.base, launcher.site, plan.added),
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return not self._closed and not self._broken()

    def request(self, message: Mapping[str, Any], limits: Limits, progress: Progress) -> Outcome:
        """Send one request and follow it to its result. After a failure the group is ended."""
        watch = _Watch(limits, progress)
        try:
            if not self._connection.connected and not self._await_ranks(watch):
                return self._failed(watch)
            self._connection.send(message)
            while not watch.overdue and not self._broken():
                self._launcher.stop.check()
                answer = self._connection.receive(_POLL_SECONDS)
                if answer is None:
                    continue
                if answer["type"] == "result":
                    return watch.outcome(answer["result"], None)
                watch.note(answer, self._launcher.gpus)
            return self._failed(watch)
        except ProtocolError:
            return self._failed(watch)
        except BaseException:  # interrupted: nothing of this launch may stay
            self._end()
            raise

    def _await_ranks(self, watch: _Watch) -> bool:
        while not watch.overdue and not self._broken():
            self._launcher.stop.check()
            if self._connection.accept(_POLL_SECONDS):
                self._pids = [int(pid) for pid in self._connection.hello["pids"]]
                watch.begin("build")
                return True
        return False

    def _broken(self) -> bool:
        """A rank or the launch has ended, or a rank says that it fails."""
        if self._process.poll() is not None or self._lost():
            return True
        return any(self._log_dir.glob("rank*.error.json"))

    def _lost(self) -> list[int]:
        return [rank for rank, pid in enumerate(self._pids) if not is_running(pid)]

    def _failed(self, watch: _Watch) -> Outcome:
        if watch.overdue:
            self._ask_where()
            failure = diagnosis.silent(self._log_dir, watch.phase, watch.limit)
            self._end()
            return watch.outcome(None, failure)
        deadline = time.monotonic() + _GRACE_SECONDS
        lost = self._lost()
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
            lost = lost or self._lost()
        code = self._process.poll()
        self._end()
        return watch.outcome(None, diagnosis.ended(self._log_dir, lost, code))

    def _ask_where(self) -> None:
        """Every rank writes the Python stack of all its threads to its log."""
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)

    def close(self) -> None:
        """End the group: politely where it is idle, then for certain."""
        if self._closed:
            return
        if self._connection.connected and self.alive and not self._lost():
            with contextlib.suppress(ProtocolError):
                self._connection.send({"type": "close"})
                deadline = time.monotonic() + 5
                while len(self._lost()) < len(self._pids) and time.monotonic() < deadline:
                    time.sleep(0.01)
        self._end()

    def _end(self) -> None:
        """Close the supervisor's stdin: it kills every descendant and ends. Then look for any that
        got away, and wait until the GPUs' memory is free again.
        """
        if self._closed:
            return
        self._closed = True
        self._connection.close()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        end_tagged(self._launcher.tag)
        self._await_memory()

    def _await_memory(self) -> None:
        deadline = time.monotonic() + _MEMORY_SECONDS
        while self._launcher.watch_memory:
            held = [
                now - before
                for now, before in zip(
                    used_memory(self._launcher.gpus), self._memory_before, strict=False
                )
            ]
            if all(more <= _MEMORY_SLACK for more in held):
                return
            if time.monotonic() > deadline:
                self._launcher.warnings.append(
                    f"GPU memory did not come back after a launch: {max(held) >> 20} MiB more in "
                    f"use than before it (limit {_MEMORY_SLACK >> 20} MiB); look with nvidia-smi"
                )
                return
            time.sleep(0.2)


class _Watch:
    """Follows one request: the phase it is in, how long each took, when news is overdue."""

    def __init__(self, limits: Limits, progress: Progress) -> None:
        self._limits, self._progress = limits, progress
        self._seconds: dict[str, float] = {}
        self._utilization: list[tuple[int, ...]] = []
        self.phase = "start"
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

    def outcome(self, result: Mapping[str, Any] | None, failure: Failure | None) -> Outcome:
        self.begin("end")
        columns = zip(*self._utilization, strict=True) if self._utilization else ()
        return Outcome(
            result=result,
            failure=failure,
            seconds={name: round(spent, 3) for name, spent in self._seconds.items()},
            utilization=tuple(round(sum(column) / len(column), 1) for column in columns),
        )
