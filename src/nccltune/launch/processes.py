"""The processes of one launch, as a worker group sees them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Protocol

from nccltune.launch.leftovers import is_running


class Processes(Protocol):
    """The processes of one launch."""

    @property
    def ready(self) -> bool:
        """Whether the launch itself has begun: a warm host may have to start first."""
        ...

    @property
    def host_lost(self) -> bool:
        """Whether what should have looked after the ranks died, which is no fault of theirs."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why no rank came up, where the launch itself knows."""
        ...

    def running(self) -> bool:
        """Whether the launch goes on. Called often; does what a launch needs to go on."""
        ...

    @property
    def over(self) -> bool:
        """Whether it has told all that it can tell of its end."""
        ...

    def gather(self) -> None:
        """Have all in the launch's folder that ranks have written up to now."""
        ...

    def lost(self, pids: Mapping[int, int]) -> list[int]:
        """Those of these ranks (process id by rank) that are known to be gone."""
        ...

    def signal(self, pids: Mapping[int, int], number: int) -> list[int]:
        """Send that signal to those of these ranks that are still there; they are returned."""
        ...

    def exit_codes(self) -> Mapping[int, int]:
        """By rank, as far as known; negative for a signal. The first to fail comes first."""
        ...

    def exit_code(self) -> int | None:
        """Of the launch itself."""
        ...

    def end(self) -> None:
        """End every process of this launch, for certain."""
        ...


class LocalRanks:
    """What `Processes` say of ranks where all of them are processes of this machine."""

    @property
    def over(self) -> bool:
        return not self.running()

    def running(self) -> bool:
        raise NotImplementedError

    def gather(self) -> None: ...

    def lost(self, pids: Mapping[int, int]) -> list[int]:
        return [rank for rank, pid in pids.items() if not is_running(pid)]

    def signal(self, pids: Mapping[int, int], number: int) -> list[int]:
        there = [rank for rank, pid in pids.items() if is_running(pid)]
        for rank in there:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pids[rank], number)
        return there
