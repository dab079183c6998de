"""What is measured, and the worker group that measures now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nccltune.launch.protocol import Group, Launcher, Limits, Outcome, Progress
from nccltune.space import Value
from nccltune.study.effective import Effective
from nccltune.study.records import Compared, Purpose, Stage
from nccltune.study.store import Store

_MEASUREMENTS_A_GROUP = 10
_MEMORY_SLACK = 512 << 20  # bytes that a rank may hold more than after its first measurement


Judge = Callable[[Sequence[float]], bool]
"""Whether a measurement is hopeless, from the samples/s of its windows so far."""


@dataclass(frozen=True)
class Subject:
    """What is measured, and what for. `fresh`: in a worker group of its own, or the launch's luck
    would be shared with another measurement.
    """

    configuration: Mapping[str, Value]
    stage: Stage
    origin: str
    trial: int | None
    purpose: Purpose = "search"
    fresh: bool = False
    cut_below: float | None = None
    judge: Judge | None = None
    """Says after each window, from the third on, whether to end the measurement."""
    compared: Compared | None = None
    given: Effective | None = None
    """What the ranks are given, where it does not follow from the configuration."""


@dataclass
class LiveGroup:
    """The worker group that measures now, and what it was started with."""

    group: Group
    launch: int
    log_dir: Path
    process_env: Mapping[str, str]
    measured: int = 0
    held: Sequence[int] = ()
    """Bytes in use by rank after the first measurement."""

    @classmethod
    def open(
        cls,
        launcher: Launcher,
        store: Store,
        given: Effective,
        later: int = 0,
        *,
        tuning_log: bool = False,
    ) -> LiveGroup:
        """`tuning_log`: NCCL logs how it runs each collective, which costs time."""
        launch = store.next_launch(later)
        log_dir = store.paths.launch_logs(launch)
        group = launcher.open(
            given.process_env, log_dir, probe=tuning_log, placed=given.placed or None
        )
        return cls(group, launch, log_dir, given.process_env)

    def request(
        self,
        message: Mapping[str, Any],
        limits: Limits,
        progress: Progress,
        judge: Judge | None = None,
    ) -> Outcome:
        """What the ranks answer; with a judge they ask it after windows whether to go on."""
        if judge is None:
            return self.group.request(message, limits, progress)
        asked: list[Sequence[float]] = []

        def hear(told: Mapping[str, Any]) -> None:
            if told["type"] == "ask":
                asked.append(told["rates"])
            else:
                progress(told)

        outcome = self.group.begin({**message, "asks": True}, limits, hear)
        while outcome is None:
            outcome = self.group.turn(cut=judge(asked[-1]))
        return outcome

    def serves(self, given: Effective) -> bool:
        """Whether it can measure that too. It is replaced now and then all the same, so that what
        a long life may bring (fragmented memory, a slow launch) does not follow all trials.
        """
        same = self.process_env == given.process_env
        return same and self.measured < _MEASUREMENTS_A_GROUP and self.group.alive

    def gave_memory_back(self, result: Mapping[str, Any]) -> bool:
        """Whether ranks hold no more after this measurement than they did after their first."""
        now = result["held_memory_bytes"]
        self.held = self.held or now
        pairs = zip(now, self.held, strict=True)
        return all(held - before <= _MEMORY_SLACK for held, before in pairs)
