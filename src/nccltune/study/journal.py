"""Optuna's journal file, in which many trials can be told at once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend


class Journal(JournalFileBackend):
    """A journal that belongs to one process."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._waiting: list[str] | None = None
        self._written = 0

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """What is told meanwhile is written at the end, under one lock and with one wait for the
        disk, which for thousands of trials take longer than all the rest. Nothing of it is where
        the block raises.
        """
        self._written = sum(1 for _ in self.read_logs(0))
        self._waiting = []
        try:
            yield
            told = [json.loads(line) for line in self._waiting]
        finally:
            self._waiting = None
        if told:
            self.append_logs(told)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        if self._waiting is None:
            super().append_logs(logs)
        else:
            self._waiting += map(json.dumps, logs)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        if self._waiting is None or log_number_from < self._written:
            yield from super().read_logs(log_number_from)
        if self._waiting is not None:
            yield from map(json.loads, self._waiting[max(0, log_number_from - self._written) :])
