"""Two settings on the same job, by fresh launches in turn: `nccltune compare`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from nccltune.errors import StudyError
from nccltune.launch.alone import ask_twice_if_lost
from nccltune.launch.protocol import Failure, Launcher, Limits, Outcome
from nccltune.launch.stopping import StopFlag
from nccltune.launch.turns import Side, Turns, take_turns
from nccltune.machine.gpus import Gpu
from nccltune.nccl.site import SiteVariable
from nccltune.space.arguments import OF_LOADER
from nccltune.stats.verdict import Block, Verdict, baseline_first, settle
from nccltune.study.budget import patient
from nccltune.study.definition import Task
from nccltune.study.effective import Effective, loader_arguments, loads_beside, request_for
from nccltune.study.measuring import REPEATS
from nccltune.study.settings_file import DEFAULTS, JobSettings, taking_effect
from nccltune.worker.spec import Settings

Told = Callable[[int, JobSettings, float], None]
"""Called with the block, the side and its samples/s."""
Again = Callable[[int, str], None]
"""Called with a block that is launched once more, and what disturbed it."""


class SideFailed(StudyError):
    """A launch of one side failed."""

    def __init__(self, text: str, side: JobSettings, failure: Failure | None) -> None:
        super().__init__(text)
        self.side, self.failure = side, failure


@dataclass
class Comparison:
    """Blocks of one fresh launch of each side, opened in random order; the two of a block measure
    in turn where that can be done.
    """

    task: Task
    launcher: Launcher
    settings: Settings
    site: Mapping[str, SiteVariable]
    gpus: Sequence[Gpu]
    logs: Path
    told: Told
    stop: StopFlag
    rows: list[dict[str, Any]] = field(default_factory=list)
    turns: Turns = field(default_factory=Turns)
    health: Callable[[], tuple[str, ...]] | None = None
    """Called before a block and after it: what disturbed the machine since the call before."""
    again: Again = lambda _block, _reason: None
    disturbed: list[str] = field(default_factory=list)
    """What disturbed blocks; each was launched once more, as long as that was of use."""
    deadline: float | None = None
    """By the monotonic clock: no block is begun that would probably end later."""
    longest: float = 0.0
    """Seconds that the longest block took."""

    def run(self, one: JobSettings, other: JobSettings, limit: int) -> Verdict:
        """`other` against `one`. Raises StudyError when a launch fails, Interrupted."""

        def block(number: int) -> Block | None:
            if not self._fits():
                return None
            began = time.monotonic()
            sides = [one, other]
            if not baseline_first(f"{one.name} {other.name}", number):
                sides.reverse()
            speeds = self._undisturbed(number, sides)
            if sides[0] is not one:
                speeds.reverse()
            self.longest = max(self.longest, time.monotonic() - began)
            return speeds[0], speeds[1]

        return settle(block, [], limit)

    def _fits(self) -> bool:
        return self.deadline is None or time.monotonic() + self.longest <= self.deadline

    def _undisturbed(self, block: int, sides: Sequence[JobSettings]) -> list[float]:
        """The speeds of the sides. What disturbs a block twice is noted in its rows."""
        done = len(self.rows)
        speeds, found = self._watched(block, sides)
        if found and len(self.disturbed) < REPEATS and self._fits():
            self.disturbed.append(found[0])
            del self.rows[done:]
            self.again(block, found[0])
            speeds, found = self._watched(block, sides)
        for row in self.rows[done:]:
            row["taints"] = list(found)
        return speeds

    def _watched(
        self, block: int, sides: Sequence[JobSettings]
    ) -> tuple[list[float], tuple[str, ...]]:
        if self.health is None:
            return self._block(block, sides), ()
        self.health()
        return self._block(block, sides), self.health()

    def _block(self, block: int, sides: Sequence[JobSettings]) -> list[float]:
        """The speeds of the sides, in their order."""
        self.stop.check()
        outcomes = self._in_turn(block, sides)
        if outcomes is not None:
            pairs = zip(sides, outcomes, strict=True)
            return [self._speed(block, side, outcome, turns=True) for side, outcome in pairs]
        return [self._alone(block, place, side) for place, side in enumerate(sides)]

    def _in_turn(self, block: int, sides: Sequence[JobSettings]) -> tuple[Outcome, Outcome] | None:
        """None where the two cannot take turns."""
        given = [effective_of(side, self.task, self.site) for side in sides]
        if self.task.script is not None or any(map(loads_beside, given)):
            return None
        several = [
            Side(
                partial(
                    self.launcher.open,
                    each.process_env,
                    self._log_dir(block, place),
                    placed=each.placed or None,
                ),
                self._message(block, each, turns=True),
            )
            for place, each in enumerate(given)
        ]
        return self.turns.attempt(lambda: take_turns(several, self.gpus))

    def _alone(self, block: int, place: int, side: JobSettings) -> float:
        self.stop.check()
        given = effective_of(side, self.task, self.site)
        log_dir, message = self._log_dir(block, place), self._message(block, given)
        outcome = ask_twice_if_lost(
            self.launcher,
            given.process_env,
            log_dir,
            message,
            placed=given.placed or None,
            limits=Limits() if self.task.script is None else patient(Limits()),
        )
        return self._speed(block, side, outcome)

    def failing(self, side: JobSettings) -> SideFailed | None:
        """How one more launch with these settings fails; None where it does not. Raises
        Interrupted.
        """
        try:
            self._alone(len(self.rows), 2, side)
        except SideFailed as error:
            return error
        self.rows.pop()
        return None

    def _log_dir(self, block: int, place: int) -> Path:
        return self.logs / f"launch-{block:02d}-{place}"

    def _message(self, block: int, given: Effective, *, turns: bool = False) -> dict[str, Any]:
        script = self.task.script
        if script is not None:
            factor = given.batch_size / self.task.batch_size
            asked = script.request(given.ddp, given.loader, factor)
            return {
                "type": "measure",
                "id": f"b{block}",
                "settings": asdict(self.settings),
                **asked,
            }
        # Both sides of a block get the same data in the same order.
        request = request_for(given, self.task, self.settings, id=f"b{block}", data_seed=block)
        return {"type": "measure", **asdict(request), "turns": turns}

    def _speed(
        self, block: int, side: JobSettings, outcome: Outcome, *, turns: bool = False
    ) -> float:
        if outcome.failure is not None or outcome.result is None:
            worked = sorted({row["side"] for row in self.rows})
            raise SideFailed(_failed(side, outcome.failure, worked), side, outcome.failure)
        speed = float(outcome.result["samples_per_second"])
        self.rows.append(
            {
                "block": block,
                "side": side.name,
                "turns": turns,
                "samples_per_second": speed,
                "steady": outcome.result["steady"],
                "step_seconds": outcome.result["step_seconds"],
                "seconds": dict(outcome.seconds),
            }
        )
        self.told(block, side, speed)
        return speed


def process_env(side: JobSettings, site: Mapping[str, SiteVariable]) -> dict[str, str]:
    """The variables of a side, without those that the site holds: it wins in every launch, as it
    does in the job (`taking_effect` says which).
    """
    return dict(taking_effect(side, {}, site)[0].env)


def effective_of(side: JobSettings, task: Task, site: Mapping[str, SiteVariable]) -> Effective:
    """What ranks are given for a side; all its variables are there when they start."""
    workers = {k: v for k, v in side.loader.items() if k in OF_LOADER}
    script = task.script
    return Effective(
        process_env=process_env(side, site),
        communicator_env={},
        communicator_config={},
        ddp=side.ddp,
        loader=loader_arguments(workers, task) if script is None else workers,
        batch_size=side.batch_size or task.batch_size,
        placed={} if script is None else {**task.placed_texts({}), **side.placed},
    )


def _failed(side: JobSettings, failure: Failure | None, worked: Sequence[str]) -> str:
    if failure is None:
        return f"{side.name}: gave no result"
    told = f"{side.name}: a launch failed ({failure.kind}): {failure.message}\n{failure.excerpt}"
    return f"{told}\nsee {failure.log}\n{_advice(side, failure, worked)}"


def _advice(side: JobSettings, failure: Failure, worked: Sequence[str]) -> str:
    """What to do; `worked` are the sides of which launches worked before."""
    if failure.kind == "out_of_memory":
        return "a smaller --batch-size takes less memory"
    if side.name in worked:
        return "it worked before, so run the same command again: nothing is kept of this one"
    if side.name == DEFAULTS:
        return "the job itself does not work here: `nccltune doctor`, same options, says more"
    if worked:
        return f"{worked[0]} worked, so look at what {side.name} sets"
    return f"to see whether the job works without {side.name}: `nccltune doctor`, same options"
