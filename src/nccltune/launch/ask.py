"""Asks the job's own Python what only it knows: its torch, whether the model and the data exist."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from nccltune.errors import StudyError, UsageError
from nccltune.launch.diagnosis import read_end
from nccltune.launch.host import WarmHost, ask_host
from nccltune.launch.leftovers import new_tag, temporary_folder
from nccltune.launch.plan import python_variables
from nccltune.launch.stopping import StopFlag
from nccltune.launch.supervised import LARGEST_OUTPUT, Supervised, is_flooded, read_answer
from nccltune.worker.owners import TAG

_LIMIT_SECONDS = 900.0  # scanning a large image folder on a slow disk takes minutes
_LAST_BYTES, _LONGEST_TAIL = 1 << 16, 2000
_NAME_PYTHON = "give the interpreter of the job, as in --python /path/to/venv/bin/python"


@dataclass(frozen=True)
class JobPython:
    """The job's interpreter, asked through a warm host where there is one: that has torch imported
    already.
    """

    python: str
    worker_path: Path
    base: Mapping[str, str]
    host: WarmHost | None = None

    def ask(self, request: Mapping[str, Any], stop: StopFlag) -> dict[str, Any]:
        """The facts that `nccltune.worker.ask` found.

        Raises:
            UsageError: that Python cannot run, has no torch, says too much or nothing for too long,
                or model or data do not exist.
            HostFailed: the host did not come up, or died.
            StudyError: no answer, but a crash.
            Interrupted: the user asked to stop meanwhile.
        """
        with temporary_folder() as folder:
            question, answer = folder / "request.json", folder / "answer.json"
            log = folder / "output.log"
            question.write_text(json.dumps(request))
            if self.host is None:
                code = self._run(question, answer, log, stop)
            else:
                files = {"question": str(question), "answer": str(answer), "log": str(log)}
                code = ask_host(self.host, stop, _LIMIT_SECONDS, files)
            reply = read_answer(answer)
            if reply is None or not {"problems", "facts"} <= reply.keys():
                self._refuse(code, log, request)
        if reply["problems"]:
            raise UsageError("\n".join(map(str, reply["problems"])))
        facts: dict[str, Any] = reply["facts"]
        return facts

    def _run(self, question: Path, answer: Path, log: Path, stop: StopFlag) -> int | None:
        """The exit code; None where it printed far too much or was not done in time."""
        argv = [self.python, "-m", "nccltune.worker.ask", str(question), str(answer)]
        env = {**self.base, **python_variables(self.worker_path, self.base), TAG: new_tag()}
        process = Supervised(argv, env, log, most=LARGEST_OUTPUT)
        deadline = time.monotonic() + _LIMIT_SECONDS
        try:
            while (code := process.poll()) is None and time.monotonic() < deadline:
                stop.check()
                time.sleep(0.02)
        finally:
            process.end()
        return None if process.flooded else code

    def _refuse(self, code: int | None, log: Path, request: Mapping[str, Any]) -> NoReturn:
        tail = "\n".join(read_end(log, _LAST_BYTES).strip().splitlines()[-5:])
        tail = tail[-_LONGEST_TAIL:] or "it printed nothing"
        asked = f"--python {self.python}"
        if self.host is not None:  # so the Python works
            asked = f"--model {request.get('model')}, --data {request.get('data')}"
        if code is None:
            flood = f"printed more than {LARGEST_OUTPUT >> 20} MiB"
            late = f"was not done within {_LIMIT_SECONDS:.0f} s"
            what = flood if is_flooded(log) else late
            if self.host is not None:
                raise UsageError(f"{asked}: the process that imported them {what}: {tail}")
            raise UsageError(f"{asked}: {what} and did not answer; {_NAME_PYTHON}: {tail}")
        if self.host is not None:
            raise UsageError(
                f"{asked}: the process that imported them ended (exit code {code}): {tail}"
            )
        if code in (126, 127):
            raise UsageError(f"{asked}: {tail}")
        if code == 0:
            raise UsageError(f"{asked}: does not answer as a Python would; {_NAME_PYTHON}: {tail}")
        raise StudyError(f"{self.python} did not answer (exit code {code}): {tail}")
