"""Two settings on the same job, by fresh launches in turn: `nccltune compare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nccltune.errors import StudyError, UsageError
from nccltune.launch.alone import ask_twice_if_lost
from nccltune.launch.protocol import Failure, Launcher
from nccltune.launch.stopping import StopFlag
from nccltune.nccl.site import SiteVariable
from nccltune.output.settings_file import JobSettings
from nccltune.stats.verdict import Block, Verdict, baseline_first, settle
from nccltune.study.definition import Task
from nccltune.study.effective import Effective, loader_arguments, request_for
from nccltune.worker.spec import Settings

Told = Callable[[int, JobSettings, float], None]
"""Called with the block, the side and its samples/s."""


@dataclass
class Comparison:
    """Blocks of one fresh launch of each side, in random order."""

    task: Task
    launcher: Launcher
    settings: Settings
    site: Mapping[str, SiteVariable]
    logs: Path
    told: Told
    stop: StopFlag
    seed: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)

    def run(self, one: JobSettings, other: JobSettings, limit: int) -> Verdict:
        """`other` against `one`. Raises StudyError when a launch fails, Interrupted."""

        def block(number: int) -> Block | None:
            sides = [one, other]
            if not baseline_first(f"{self.seed} {one.name} {other.name}", number):
                sides.reverse()
            speeds = {id(side): self._speed(number, side) for side in sides}
            return speeds[id(one)], speeds[id(other)]

        return settle(block, [], limit)

    def _speed(self, block: int, side: JobSettings) -> float:
        self.stop.check()
        log_dir = self.logs / f"launch-{len(self.rows):04d}"
        given = effective_of(side, self.task, self.site)
        # Both sides of a block get the same data in the same order.
        request = request_for(given, self.task, self.settings, id=f"b{block}", data_seed=block)
        message = {"type": "measure", **asdict(request)}
        outcome = ask_twice_if_lost(self.launcher, given.process_env, log_dir, message)
        if outcome.failure is not None or outcome.result is None:
            raise StudyError(_failed(side, outcome.failure))
        speed = float(outcome.result["samples_per_second"])
        self.rows.append(
            {
                "block": block,
                "side": side.name,
                "samples_per_second": speed,
                "steady": outcome.result["steady"],
                "step_seconds": outcome.result["step_seconds"],
                "seconds": dict(outcome.seconds),
            }
        )
        self.told(block, side, speed)
        return speed


def process_env(side: JobSettings, site: Mapping[str, SiteVariable]) -> dict[str, str]:
    """The variables of a side. Raises UsageError for one that the site has set to something else:
    it holds in every launch, so the file could not take effect.
    """
    for name, value in side.env.items():
        if name in site and site[name].value != value:
            raise UsageError(
                f"{side.name}: {name}={value}, but {name}={site[name].value} is set here and stays "
                "as it is in every launch; unset it first, or take it out of the file"
            )
    return {name: value for name, value in side.env.items() if name not in site}


def effective_of(side: JobSettings, task: Task, site: Mapping[str, SiteVariable]) -> Effective:
    """What ranks are given for a side; all its variables are there when they start."""
    workers = {k: v for k, v in side.loader.items() if k in ("num_workers", "prefetch_factor")}
    return Effective(
        process_env=process_env(side, site),
        communicator_env={},
        communicator_config={},
        ddp=side.ddp,
        loader=loader_arguments(workers, task),
        batch_size=side.batch_size or task.batch_size,
    )


def _failed(side: JobSettings, failure: Failure | None) -> str:
    if failure is None:
        return f"{side.name}: gave no result"
    return f"{side.name}: a launch failed ({failure.kind}): {failure.message}\n{failure.excerpt}"
