"""A trial of the user's own script: what the tuner asks for is passed to it, its steps are timed,
and it is ended when there is enough.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from nccltune.worker.attach import FORCED, PYTHON_EXEC, SAVES, USERS_PYTHON_EXEC
from nccltune.worker.attach.on_import import after_import
from nccltune.worker.attach.process import ours
from nccltune.worker.attach.saves import Saves, redirect_saves
from nccltune.worker.attach.script import run_as_main, script_name
from nccltune.worker.attach.traces import cut_own_frames
from nccltune.worker.channel import ADDRESS, TOKEN
from nccltune.worker.hosts import take_host
from nccltune.worker.rank import leave, redirect_output
from nccltune.worker.status import LOG_DIR, ScriptEnded, Status

_OURS = (LOG_DIR, ADDRESS, TOKEN, SAVES, PYTHON_EXEC, USERS_PYTHON_EXEC)
_GRACE_SECONDS = 3.0  # less than the tuner waits
_NEWS_SECONDS = 5.0
_LAST_BYTES = 4096


class TrialDone(SystemExit):
    """Ends the script: it is raised where a training step ends."""


@dataclass(frozen=True)
class Place:
    """Where this launch writes, and where the tuner listens."""

    folder: Path
    address: str
    token: str


@dataclass
class Trial:
    """What this rank knows of the trial. `timing` is there once the script has imported torch."""

    status: Status
    saves: Saves | None
    place: Place
    done: bool = False
    steps: int = 0
    timing: Any = None
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    """Before the script began."""
    _told: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """Called when torch is there."""
        from nccltune.worker.attach.timing import Timing

        self.status.at("rendezvous")
        self.timing = Timing(self.status, self.saves, self.place, self.environment)
        self.timing.watch(self._on_step)
        self.status.at("build")

    def _on_step(self, samples: int | None) -> None:
        if self.done:
            raise TrialDone(0)  # it was caught: the script goes on
        self.steps += 1
        self.status.at(self.timing.phase, self.steps)
        if time.monotonic() - self._told > _NEWS_SECONDS:  # a long window is no silence
            self._told = time.monotonic()
            self.timing.announce("alive", step=self.steps)
        try:
            over = self.timing.step(samples)
        except Exception as error:  # wrong sums, say: a finding, and no business of the script's
            self._fail(error)
        if over:
            self.done = True
            _watch_the_end(self.place.folder)
            raise TrialDone(0)

    def _fail(self, error: BaseException) -> NoReturn:
        cut_own_frames(error)
        self.status.failed(error)
        leave(1)


def run_trial(arguments: Sequence[str]) -> None:
    """Run the script until it was measured. Ends the process where it was not."""
    take_host(os.environ)
    folder = Path(os.environ[LOG_DIR])
    rank = int(os.environ["RANK"])
    log = folder / f"rank{rank}.log"
    redirect_output(log)
    status = Status(folder, rank)
    saves = redirect_saves(Path(os.environ[SAVES])) if SAVES in os.environ else None
    place = Place(folder, os.environ[ADDRESS], os.environ[TOKEN])
    for name in _OURS:  # what the script starts, a torchrun command say, is no rank of this trial
        os.environ.pop(name, None)
    trial = Trial(status, saves, place)
    name = script_name(arguments)
    after_import("torch", trial.begin)
    code = _run(arguments, trial)
    if not ours():  # a child that the script forked came back from there
        leave(code)
    if not trial.done:
        told = _ended(name, trial) if code == 0 else _failed(name, code, trial, log)
        trial._fail(ScriptEnded(told, code))
    atexit._run_exitfuncs()  # of what the script uses


def _run(arguments: Sequence[str], trial: Trial) -> int:
    """The exit code that the script wanted."""
    try:
        run_as_main(arguments)
    except TrialDone:
        return 0
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException as error:
        if ours() and not trial.done:
            trial._fail(error)
        raise
    return 0


def _ended(name: str, trial: Trial) -> str:
    """Of a script that thinks that all went well."""
    told = f"{name} ended with exit code 0"
    if trial.timing is None:
        return f"{told} and never imported torch"
    if not trial.steps:
        return f"{told} before its first optimizer step{trial.timing.hint()}"
    return (
        f"{told} after {_counted(trial)}, before it was measured: let it train for longer (more "
        "epochs, or a larger data set), and run that command; it is ended when there is enough"
    )


def _failed(name: str, code: int, trial: Trial, log: Path) -> str:
    when = f"after {_counted(trial)}" if trial.steps else "before its first step"
    told = f"{name} ended with exit code {code} {when}"
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LAST_BYTES))
        said = file.read().decode(errors="replace").strip().splitlines()[-1:]
    return f"{told}; its last words: {said[0].strip()[:200]}" if said else f"{told}, without a word"


def _counted(trial: Trial) -> str:
    return f"{trial.steps} step{'' if trial.steps == 1 else 's'}"


def _watch_the_end(folder: Path) -> None:
    """A script that catches what should end it, or hangs while it ends, is ended all the same."""
    pid = os.getpid()

    def end() -> None:
        time.sleep(_GRACE_SECONDS)
        if os.getpid() == pid:
            (folder / FORCED).touch()
            leave(1)  # with 0 an elastic agent would wait for a value

    threading.Thread(target=end, daemon=True).start()
