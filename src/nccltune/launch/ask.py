"""Asks the job's own Python what only it knows: its torch, whether the model and the data exist."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from nccltune.errors import StudyError, UsageError
from nccltune.launch.host import WarmHost, ask_host
from nccltune.launch.leftovers import temporary_folder
from nccltune.launch.plan import python_variables
from nccltune.launch.stopping import StopFlag
from nccltune.launch.supervised import Supervised

_LIMIT_SECONDS = 900.0  # scanning a large image folder on a slow disk takes minutes


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
            UsageError: that Python cannot run, has no torch, or model or data do not exist.
            HostFailed: the host did not come up, or died.
            StudyError: no answer (crash or time limit).
            Interrupted: the user asked to stop meanwhile.
        """
        with temporary_folder() as folder:
            question, answer = folder / "request.json", folder / "answer.json"
            question.write_text(json.dumps(request))
            if self.host is None:
                code, output = self._run(question, answer, stop)
            else:
                log = folder / "output.log"
                files = {"question": str(question), "answer": str(answer), "log": str(log)}
                code = ask_host(self.host, stop, _LIMIT_SECONDS, files)
                output = log.read_text(errors="replace") if log.exists() else ""
            if not answer.exists():
                self._refuse(code, output, request)
            reply: dict[str, Any] = json.loads(answer.read_text())
        if reply["problems"]:
            raise UsageError("\n".join(reply["problems"]))
        facts: dict[str, Any] = reply["facts"]
        return facts

    def _run(self, question: Path, answer: Path, stop: StopFlag) -> tuple[int | None, str]:
        argv = [self.python, "-m", "nccltune.worker.ask", str(question), str(answer)]
        env = {**self.base, **python_variables(self.worker_path, self.base)}
        log = question.with_name("output.log")
        process = Supervised(argv, env, log)
        deadline = time.monotonic() + _LIMIT_SECONDS
        try:
            while process.poll() is None and time.monotonic() < deadline:
                stop.check()
                time.sleep(0.02)
        finally:
            process.end()
        return process.poll(), log.read_text(errors="replace")

    def _refuse(self, code: int | None, output: str, request: Mapping[str, Any]) -> NoReturn:
        tail = "\n".join(output.strip().splitlines()[-5:]) or "it printed nothing"
        if self.host is not None:  # so the Python works
            asked = f"--model {request.get('model')}, --data {request.get('data')}"
            raise UsageError(
                f"{asked}: the process that imported them ended (exit code {code}): {tail}"
            )
        if code in (126, 127):
            raise UsageError(f"--python {self.python}: {tail}")
        if code == 0:
            raise UsageError(f"--python {self.python}: does not answer as a Python would; {tail}")
        raise StudyError(f"{self.python} did not answer (exit code {code}): {tail}")
