"""The tuner's side of a warm host: a process of the job's Python that has torch imported and starts
worker groups from it, one at a time (`nccltune.worker.host` is its own side).
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nccltune.launch.connection import Connection, ProtocolError
from nccltune.launch.diagnosis import read_end
from nccltune.launch.environment import launch_environment
from nccltune.launch.leftovers import TAG, end_tagged, new_tag, own_folder
from nccltune.launch.plan import python_variables
from nccltune.launch.processes import LocalRanks
from nccltune.launch.stopping import StopFlag
from nccltune.launch.supervised import LARGEST_OUTPUT, Supervised, is_flooded
from nccltune.nccl.site import SiteVariable

HOST_MODULE = "nccltune.worker.host"
_POLL_SECONDS = 0.02
_START_SECONDS = 300.0  # importing torch from a cold network disk takes minutes
_END_SECONDS = 15.0
_LAST_BYTES = 1 << 16
_TELLING = re.compile(r"error|fatal|cannot|no such|killed", re.IGNORECASE)


class HostFailed(Exception):
    """The host did not start, or is gone; the text says what it printed last."""


class WarmHost:
    """A supervised host process. `early` are the variables that a process reads when it starts."""

    def __init__(
        self,
        python: str,
        worker_path: Path,
        base: Mapping[str, str],
        site: Mapping[str, SiteVariable],
        early: Mapping[str, str],
    ) -> None:
        self.early = dict(early)
        self.busy = False
        self.began = time.monotonic()
        self._folder = own_folder(short=True)
        self._words: str | None = None
        self._log = self._folder / "host.log"
        self._tag = new_tag()
        token = secrets.token_hex(16)
        self._connection = Connection(token)
        added = {
            **early,
            **python_variables(worker_path, base),
            "NCCLTUNE_ADDRESS": self._connection.address,
            "NCCLTUNE_TOKEN": token,
            "NCCLTUNE_HOST_FOLDER": str(self._folder),
            TAG: self._tag,
        }
        self._process = Supervised(
            [python, "-m", HOST_MODULE],
            launch_environment(base, site, added),
            self._log,
            remove=[self._folder],
            most=LARGEST_OUTPUT,
        )

    @property
    def folder(self) -> Path:
        """For files that are gone with the host."""
        return self._folder

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether it has come up; stays true after its end."""
        return self._connection.connected

    def advance(self) -> None:
        """Notice when the host has come up."""
        if not self.ready:
            self._accept(0.0)

    def await_ready(self, stop: StopFlag) -> None:
        """Raises HostFailed when the host ends or stays silent; Interrupted."""
        while not self.ready:
            stop.check()
            if not self.alive or time.monotonic() > self.began + _START_SECONDS:
                reason = "ended" if not self.alive else f"was not up after {_START_SECONDS:.0f} s"
                if self._process.flooded:
                    reason = f"printed more than {LARGEST_OUTPUT >> 20} MiB and did not come up"
                told = self.last_words()
                self.end()
                raise HostFailed(f"the warm host {reason}: {told}")
            self._accept(_POLL_SECONDS)

    def _accept(self, seconds: float) -> None:
        self._connection.accept(seconds)
        if self.ready:
            self._process.trust()

    def send(self, message: Mapping[str, Any]) -> None:
        """Raises ProtocolError when the host is gone."""
        self._connection.send(message)

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """Raises ProtocolError when the host is gone."""
        return self._connection.receive(seconds)

    def last_words(self) -> str:
        """The last of what it printed that tells something, on one line; known after its end."""
        if self._words is not None:
            return self._words
        lines = read_end(self._log, _LAST_BYTES).strip().splitlines()
        telling = [line for line in lines if _TELLING.search(line)] or lines
        return " | ".join(line.strip() for line in telling[-3:])[-400:] or "it printed nothing"

    def end(self) -> None:
        """End the host with every descendant. Can be called again."""
        self._words = self.last_words()
        self._connection.close()
        self._process.end()
        end_tagged(self._tag)
        shutil.rmtree(self._folder, ignore_errors=True)


class WarmProcesses(LocalRanks):
    """One worker group of a warm host. `own` are variables of this launch that the host was started
    with: it may be those that do not let it come up.
    """

    def __init__(
        self, host: WarmHost, order: Mapping[str, Any], own: Mapping[str, str] | None = None
    ) -> None:
        self._host, self._order, self._own = host, order, own or {}
        self._log = Path(order["log_dir"]) / "launcher.log"
        self._sent = False
        self._ended: dict[str, Any] | None = None
        self._lost = False
        host.busy = True
        self.running()

    @property
    def ready(self) -> bool:
        return self._host.ready

    @property
    def host_lost(self) -> bool:
        return self._lost and not self._refused

    @property
    def _refused(self) -> bool:
        """Whether Python did not start with the variables of this launch."""
        return bool(self._own) and not self._host.ready

    @property
    def trouble(self) -> str | None:
        if not self._refused:
            return None
        set_here = ", ".join(f"{name}={value}" for name, value in sorted(self._own.items()))
        return f"Python does not start with {set_here}: {self._host.last_words()}"

    def running(self) -> bool:
        if self._ended is not None or self._lost:
            return False
        try:
            self._host.advance()
            if self._host.ready and not self._sent:
                self._host.send(self._order)
                self._sent = True
            if self._sent:
                self._listen(0.0)
        except ProtocolError:
            self._lost = True
        self._lost = self._lost or not self._host.alive
        return self._ended is None and not self._lost

    def _listen(self, seconds: float) -> None:
        answer = self._host.receive(seconds)
        if answer is not None and answer["type"] == "ended":
            self._ended = answer

    def exit_codes(self) -> dict[int, int]:
        return {} if self._ended is None else {int(r): c for r, c in self._ended["codes"].items()}

    def exit_code(self) -> int | None:
        return None

    def end(self) -> None:
        """Let the host end the group. Where it cannot, everything is ended with the host."""
        if not self._end_group():
            self._host.end()
            with contextlib.suppress(OSError), self._log.open("a") as log:
                log.write(f"the warm host was ended; it said last: {self._host.last_words()}\n")
        self._host.busy = False

    def _end_group(self) -> bool:
        try:
            if self._sent and self.running():
                self._host.send({"type": "end"})
                deadline = time.monotonic() + _END_SECONDS
                while self.running() and time.monotonic() < deadline:
                    self._listen(_POLL_SECONDS)
        except ProtocolError:
            self._lost = True
        return self._ended is not None and not self._ended["left"]


def ask_host(
    host: WarmHost, stop: StopFlag, seconds: float, request: Mapping[str, Any]
) -> int | None:
    """Let a process of the host answer a question into a file (`nccltune.worker.ask`). Returns that
    process's exit code; None, with the host ended, where it printed far too much or was not done
    within `seconds`.

    Raises: HostFailed; Interrupted.
    """
    host.await_ready(stop)
    deadline, log = time.monotonic() + seconds, Path(request["log"])
    try:
        host.send({"type": "ask", **request})
        while time.monotonic() < deadline and not is_flooded(log):
            stop.check()
            answer = host.receive(_POLL_SECONDS)
            if answer is not None and answer["type"] == "asked":
                return int(answer["code"])
    except ProtocolError as error:
        told = host.last_words()
        host.end()
        raise HostFailed(f"the warm host is gone: {told}") from error
    host.end()
    return None
