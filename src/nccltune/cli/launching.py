"""A comparison of two settings that tells each of its launches."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nccltune.cli.speaking import say
from nccltune.cli.studying import settings_for
from nccltune.launch.protocol import Launcher
from nccltune.launch.stopping import StopFlag
from nccltune.machine.health import Watch
from nccltune.output import verdicts, words
from nccltune.study.comparing import Comparison
from nccltune.study.settings_file import JobSettings
from nccltune.study.survey import Survey


def comparison_of(
    found: Survey,
    launcher: Launcher,
    logs: Path,
    stop: StopFlag,
    deadline: float | None = None,
) -> Comparison:
    """For the job and machine of `found`. `deadline`: see `Comparison`."""
    options = found.options
    return Comparison(
        task=found.task,
        launcher=launcher,
        settings=settings_for(options.measure_seconds),
        site=found.site,
        gpus=found.gpus,
        logs=logs,
        told=_tell,
        again=_tell_again,
        stop=stop,
        health=Watch(found.gpus, allow_busy=options.allow_busy),
        deadline=deadline,
    )


def tell_notes(comparison: Comparison, launchers: Iterable[str]) -> None:
    """What the user should know of the launches; `launchers` are the launcher's own warnings."""
    notes = list(dict.fromkeys(launchers))
    if comparison.disturbed:
        notes.append(verdicts.repeated(comparison.disturbed, "block"))
    if comparison.turns.refused is not None:
        notes.append(verdicts.one_by_one(comparison.turns.refused))
    for text in notes:
        say(f"note: {text}")


def _tell(block: int, side: JobSettings, speed: float) -> None:
    say(f"launch {block + 1}  {words.samples(speed):>7} samples/s  {side.name}")


def _tell_again(block: int, reason: str) -> None:
    say(f"launch {block + 1} again: {reason}")
