"""A command that cannot outlive us: it runs under `supervisor.py`, which ends all of it with us."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nccltune.worker import supervisor

_END_SECONDS = 10.0


class Supervised:
    """The command and all its descendants. Output goes to `log`; `remove` is a folder that goes
    with them, even when the tuner is killed.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        *,
        remove: Path | None = None,
        cwd: Path | None = None,
    ) -> None:
        options = [] if remove is None else ["--remove", str(remove)]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", supervisor.__file__, *options, "--", *argv],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )

    def poll(self) -> int | None:
        """The command's exit code as a shell would give it, or None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> bool:
        """Whether the command ends within that time."""
        try:
            self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> None:
        """Close the supervisor's stdin: it kills every descendant and ends."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
