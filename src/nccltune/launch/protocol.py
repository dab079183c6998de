"""What the study sees of a launcher, whichever it is: open a worker group, measure in it, close."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

FailureKind = Literal[
    "out_of_memory",
    "timeout",
    "nccl_error",
    "wrong_result",
    "crashed",
    "ended",
]


@dataclass(frozen=True)
class Failure:
    """Why a measurement gave no number. `log` is the file that says most, `tail` its last lines."""

    kind: FailureKind
    message: str
    rank: int | None = None
    log: str | None = None
    tail: tuple[str, ...] = ()

    @property
    def excerpt(self) -> str:
        """The last lines of the log, as messages quote them."""
        return "\n".join(f"  | {line}" for line in self.tail[-8:])


@dataclass(frozen=True)
class Limits:
    """Seconds that may pass without news from the ranks, by phase."""

    host: float = 300.0
    start: float = 300.0
    build: float = 900.0
    first_step: float = 240.0
    check: float = 120.0
    window: float = 120.0

    def of(self, phase: str) -> float:
        phases = {
            "host": self.host,
            "start": self.start,
            "build": self.build,
            "first_step": self.first_step,
            "check": self.check,
        }
        return phases.get(phase, self.window)


@dataclass(frozen=True)
class Outcome:
    """The ranks' result (see `worker.measure`), or the failure; `seconds` by phase of the tuner's
    own watch, `utilization` per cent for each GPU.
    """

    result: Mapping[str, Any] | None
    failure: Failure | None
    seconds: Mapping[str, float] = field(default_factory=dict)
    utilization: tuple[float, ...] = ()
    host_lost: bool = False
    """What had started the ranks died: the configuration is not to blame."""


Progress = Callable[[Mapping[str, Any]], None]
"""Called with each message of the ranks while they measure: phases and windows."""


class Group(Protocol):
    """A worker group: the rank processes of one launch."""

    @property
    def alive(self) -> bool: ...
    def request(
        self, message: Mapping[str, Any], limits: Limits, progress: Progress
    ) -> Outcome: ...

    def begin(
        self, message: Mapping[str, Any], limits: Limits, progress: Progress
    ) -> Outcome | None:
        """As `request`; None when the ranks wait: for their turn, where the message has `turns`, or
        for a word whether to go on, where it has `asks`.
        """
        ...

    def turn(self, *, cut: bool = False) -> Outcome | None:
        """Let them go on until they wait again (None), or to the end. `cut`: they measure no more
        and end with what they have; only ranks that asked are told so.
        """
        ...

    def close(self) -> None: ...


class Launcher(Protocol):
    """Starts worker groups."""

    name: str

    def open(
        self,
        process_env: Mapping[str, str],
        log_dir: Path,
        *,
        probe: bool = False,
        placed: Mapping[str, str] | None = None,
    ) -> Group:
        """A new worker group with `process_env` added to the environment of its ranks. `placed` are
        values for the names in braces in the command of a script.

        Returns at once; ranks that do not come up are the failure of the first request.
        """
        ...

    @property
    def warnings(self) -> Sequence[str]:
        """What the user should know of launches so far."""
        ...

    def close(self) -> None:
        """End whatever the launcher keeps between groups."""
        ...
