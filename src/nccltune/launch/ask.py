"""Asks the job's own Python what only it knows: its torch, whether the model and the data exist."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nccltune.errors import StudyError, UsageError
from nccltune.launch import supervisor
from nccltune.launch.stopping import StopFlag

_LIMIT_SECONDS = 900.0  # scanning a large image folder on a slow disk takes minutes


def ask_job(
    python: str,
    worker_path: Path,
    request: Mapping[str, Any],
    base: Mapping[str, str],
    stop: StopFlag,
) -> dict[str, Any]:
    """The facts that `nccltune.worker.ask` found.

    Raises:
        UsageError: that Python cannot run, has no torch, or model or data do not exist.
        StudyError: no answer (crash or time limit).
        Interrupted: the user asked to stop meanwhile.
    """
    with tempfile.TemporaryDirectory(prefix="nccltune-ask-") as name:
        folder = Path(name)
        question, answer = folder / "request.json", folder / "answer.json"
        question.write_text(json.dumps(request))
        argv = [python, "-m", "nccltune.worker.ask", str(question), str(answer)]
        path = [str(worker_path), base.get("PYTHONPATH", "")]
        env = {**base, "PYTHONPATH": os.pathsep.join(part for part in path if part)}
        code, output = _run(argv, env, folder, stop)
        if not answer.exists():
            tail = "\n".join(output.strip().splitlines()[-5:]) or "it printed nothing"
            if code in (126, 127):
                raise UsageError(f"--python {python}: {tail}")
            if code == 0:
                raise UsageError(f"--python {python}: does not answer as a Python would; {tail}")
            raise StudyError(f"{python} did not answer (exit code {code}): {tail}")
        reply: dict[str, Any] = json.loads(answer.read_text())
    if reply["problems"]:
        raise UsageError("\n".join(reply["problems"]))
    facts: dict[str, Any] = reply["facts"]
    return facts


def _run(
    argv: list[str], env: Mapping[str, str], folder: Path, stop: StopFlag
) -> tuple[int | None, str]:
    log = folder / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-I", supervisor.__file__, "--", *argv],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
    assert process.stdin is not None
    deadline = time.monotonic() + _LIMIT_SECONDS
    try:
        while process.poll() is None and time.monotonic() < deadline:
            stop.check()
            time.sleep(0.02)
    finally:
        process.stdin.close()  # the supervisor ends whatever still runs
        process.wait()
    return process.returncode, log.read_text(errors="replace")
