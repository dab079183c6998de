"""What was measured, and what of it a model is fitted to when it is very much."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Code = tuple[int, ...]
"""A configuration: for each parameter the place of its value."""

_REMEMBERED = 96  # observations that a model is fitted to: its cost grows with their cube


@dataclass(frozen=True)
class Observation:
    """A configuration measured: log speed, or None where it failed."""

    code: Code
    value: float | None
    launch: Any = None
    """Equal for measurements of one launch; None: one with the costly values of it."""


class Memory:
    """Of a history that grows: what was read of it is not read again."""

    def __init__(self) -> None:
        self._begin(())

    def _begin(self, history: Sequence[Observation]) -> None:
        self._history, self._read = history, 0
        self.good: list[Observation] = []
        """Those that have a value."""
        self.bad: list[Code] = []
        """Those that failed, each time that they did."""
        self.failed: set[Code] = set()
        self.measured: set[Code] = set()
        """With a value or without."""
        self._kept: list[Observation] | None = None
        self.means: dict[Code, float] = {}
        """Of each configuration that has values."""
        self.times: dict[Code, int] = {}
        """How many values it has."""

    def remembered(self, default: Code) -> list[Observation]:
        """All that has a value; of very many the default, the fastest configurations with all that
        was measured of them, or a lucky one would stand for each, and the last.
        """
        if len(self.good) <= _REMEMBERED:
            return self.good
        if self._kept is None:
            self._kept = self._chosen(default)
        return self._kept

    def _chosen(self, default: Code) -> list[Observation]:
        kept = {default, *(o.code for o in self.good[-_REMEMBERED // 4 :])}
        room = _REMEMBERED - sum(self.times.get(code, 0) for code in kept)
        for code in heapq.nlargest(_REMEMBERED, self.means, key=self.means.__getitem__):
            if code not in kept and (room := room - self.times[code]) >= 0:
                kept.add(code)
        return [o for o in self.good if o.code in kept]

    def catch_up(self, history: Sequence[Observation]) -> None:
        if history is not self._history or len(history) < self._read:
            self._begin(history)
        for observation in history[self._read :]:
            code, value = observation.code, observation.value
            self.measured.add(code)
            self._kept = None
            if value is None:
                self.bad.append(code)
                self.failed.add(code)
                continue
            self.good.append(observation)
            times = self.times[code] = self.times.get(code, 0) + 1
            mean = self.means.get(code, 0.0)
            self.means[code] = mean + (value - mean) / times
        self._read = len(history)
