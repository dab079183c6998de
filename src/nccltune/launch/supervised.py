"""A command that cannot outlive us: it runs under `supervisor.py`, which ends all of it with us."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nccltune.worker import supervisor

LARGEST_OUTPUT = 64 << 20
"""Bytes that a helper process may print: far more than any does that works."""

_LARGEST_ANSWER = 4 << 20
_END_SECONDS = 10.0
_LOOK_SECONDS = 0.05


class Supervised:
    """The command and all its descendants. Output goes to `log`; `remove` are folders that
    go with them, even when the tuner is killed. A command that prints more than `most` bytes is
    ended. It reads what is in the file `stdin`, or nothing.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        *,
        remove: Sequence[Path] = (),
        cwd: Path | None = None,
        most: int | None = None,
        stdin: Path | None = None,
    ) -> None:
        self.flooded = False
        self._trusted = threading.Event()
        options = [word for folder in remove for word in ("--remove", str(folder))]
        options += [] if stdin is None else ["--input", str(stdin)]
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
        if most is not None:
            threading.Thread(target=self._watch, args=(log, most), daemon=True).start()

    def _watch(self, log: Path, most: int) -> None:
        while not self._trusted.wait(_LOOK_SECONDS) and self.poll() is None:
            if is_flooded(log, most):
                self.flooded = True
                self.ask_to_end()
                return

    def trust(self) -> None:
        """It is what it should be: its output is not watched any more."""
        self._trusted.set()

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
        """End the command with every descendant."""
        self.ask_to_end()
        try:
            self._process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask_to_end(self) -> None:
        """Close the supervisor's stdin: it kills every descendant and ends."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()


def is_flooded(log: Path, most: int = LARGEST_OUTPUT) -> bool:
    """Whether more than `most` bytes were printed; a log that is not there is empty."""
    try:
        return log.stat().st_size > most
    except OSError:
        return False


def read_answer(file: Path) -> dict[str, Any] | None:
    """The mapping that a helper process wrote as JSON; None where there is none."""
    try:
        with file.open("rb") as opened:
            text = opened.read(_LARGEST_ANSWER + 1)
        found = json.loads(text) if len(text) <= _LARGEST_ANSWER else None
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
