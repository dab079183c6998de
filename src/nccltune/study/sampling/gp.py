"""Optuna's Gaussian process (`optuna.samplers.GPSampler`), as a sampler that needs no torch here.

    sampler = GpSampler(seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)

A process of its own (`gp_child`) has torch, with one thread and no GPU. It starts with the first
proposal that is not random, and ends with `close` or with this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
import weakref
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.samplers import RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

import nccltune
from nccltune.errors import StudyError
from nccltune.study.quiet import optuna
from nccltune.study.sampling.pure import PureSampler

STARTUP_TRIALS = 8
_ANSWER_SECONDS = 60.0
_CLOSE_SECONDS = 5.0
_ALONE = {"CUDA_VISIBLE_DEVICES": ""} | dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
)
_OTHERWISE = "choose another --sampler, guided or tpe; what was measured is kept"


class GpSampler(PureSampler):
    """See the module. The same seed and the same trials give the same proposals, resumed or not.

    Raises: StudyError where the process does not answer.
    """

    def __init__(self, *, seed: int | None = None, startup: int = STARTUP_TRIALS) -> None:
        """`startup`: complete trials before the first proposal that is not random."""
        super().__init__()
        self._seed = int.from_bytes(os.urandom(4), "big") if seed is None else seed
        self._startup = startup
        self._child: _Child | None = None
        self._told: set[int] = set()
        self._study: tuple[str, int] | None = None

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        trials = study.get_trials(deepcopy=False)
        complete = [t for t in trials if t.state == TrialState.COMPLETE]
        if not search_space or len(complete) < self._startup:
            return {}
        child = self._child_for(study)
        new = [t for t in complete if t.number not in self._told]
        # Those that are still asked for have no parameters yet.
        running = [t for t in trials if t.state == TrialState.RUNNING and t.params]
        self._told |= {t.number for t in new}
        return child.ask(
            {
                "seed": self._derived(trial.number, "together"),
                "startup": self._startup,
                "direction": _DIRECTIONS[study.direction],
                "trials": [_told(trial) for trial in new],
                "running": [{"params": t.params} for t in running],
                "space": {name: distribution_to_json(d) for name, d in search_space.items()},
            }
        )

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        sampler = RandomSampler(seed=self._derived(trial.number, param_name))
        return sampler.sample_independent(study, trial, param_name, param_distribution)

    def close(self) -> None:
        """End the process. A later proposal starts another one."""
        if self._child is not None:
            self._child.close()
        self._child, self._told = None, set()

    def _child_for(self, study: optuna.Study) -> _Child:
        """The process that knows this study."""
        which = (study.study_name, study._study_id)
        if self._study != which:
            self.close()
            self._study = which
        if self._child is None or self._child.lost:
            self._child, self._told = _Child(), set()
        return self._child

    def _derived(self, number: int, name: str) -> int:
        return zlib.crc32(f"{self._seed} {number} {name}".encode())


def _told(trial: FrozenTrial) -> dict[str, Any]:
    return {"number": trial.number, "params": trial.params, "value": trial.value}


_DIRECTIONS = {StudyDirection.MAXIMIZE: "maximize", StudyDirection.MINIMIZE: "minimize"}


class _Child:
    """The process, and one request after another."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()
        root = Path(nccltune.__file__).resolve().parents[1]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "nccltune.study.sampling.gp_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **_ALONE},
            cwd=root,  # -m looks for modules there: no others than ours
            start_new_session=True,  # Ctrl-C is for the tuner, which closes it
        )
        self._end = weakref.finalize(self, _end, self._process, self._errors)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lost(self) -> bool:
        return not self._end.alive or self._process.poll() is not None

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Raises StudyError, and the process is ended then."""
        line = b""
        try:
            with contextlib.suppress(OSError):  # it has ended: the end of its stderr says why
                line = self._exchange(json.dumps(request).encode() + b"\n")
            if not line.endswith(b"\n"):
                raise StudyError(self._why())
        except BaseException:  # interrupted: its answer is nobody's
            self.close()
            raise
        proposal: dict[str, Any] = json.loads(line)["proposal"]
        return proposal

    def _exchange(self, request: bytes) -> bytes:
        """What was answered, as far as it came in time."""
        assert self._process.stdin is not None and self._process.stdout is not None
        asks, answers = self._process.stdin.fileno(), self._process.stdout.fileno()
        deadline = time.monotonic() + _ANSWER_SECONDS
        found = b""
        with selectors.DefaultSelector() as ready:
            ready.register(asks, selectors.EVENT_WRITE)
            ready.register(answers, selectors.EVENT_READ)
            while not found.endswith(b"\n") and (left := deadline - time.monotonic()) > 0:
                for key, _ in ready.select(left):
                    if key.fd == asks:
                        request = request[os.write(asks, request) :]
                        if not request:
                            ready.unregister(asks)
                    elif part := os.read(answers, 1 << 16):
                        found += part
                    else:
                        return found
        return found

    def _why(self) -> str:
        """What went wrong, in words; ends the process."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # of one that is ending
        code = self._process.poll()
        said = _last_line(self._errors)
        self.close()
        if code is None:
            happened = f"did not answer within {_ANSWER_SECONDS:.0f} s"
        else:
            ended = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            happened = f"ended {ended}{f' ({said})' if said else ''}"
        return f"--sampler gp: the process of the Gaussian process {happened}: {_OTHERWISE}"

    def close(self) -> None:
        self._end()


def _end(process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
    """End it: politely, then for certain."""
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(_CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
    errors.close()


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    lines: Sequence[str] = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""
