"""The main path of `nccltune compare`: read both sides, launch them in turn, say the verdict."""

from __future__ import annotations

import json
from typing import Any

from nccltune.cli.cache import cache_folder
from nccltune.cli.speaking import say
from nccltune.cli.starting import end_old, started, tell_setting
from nccltune.cli.studying import settings_for
from nccltune.errors import Interrupted, UsageError
from nccltune.launch.leftovers import logs_folder
from nccltune.machine.health import Watch
from nccltune.output import verdicts, words
from nccltune.stats.verdict import Verdict
from nccltune.study.comparing import Comparison, process_env
from nccltune.study.options import SearchOptions
from nccltune.study.settings_file import JobSettings, read_settings
from nccltune.study.survey import Survey, refuse_busy


def run_compare(options: SearchOptions, a: str, b: str, limit: int, *, as_json: bool) -> int:
    """Returns the exit code. Raises NccltuneError for everything that goes wrong."""
    if limit == 0:
        raise UsageError("--launches must be 6 to 12: without launches nothing is compared")
    one, other = read_settings(a), read_settings(b)
    end_old()
    with logs_folder() as logs, started(options, cache_folder()) as start:
        found = start.found
        tell_setting(found)
        _refuse(found, one, other)
        say(f"comparing {b} with {a}: {verdicts.how_many(limit)} of each, in turn")
        comparison = Comparison(
            task=found.task,
            launcher=start.launcher,
            settings=settings_for(options.measure_seconds),
            site=found.site,
            gpus=found.gpus,
            logs=logs,
            told=_tell,
            again=_tell_again,
            stop=start.stop,
            health=Watch(found.gpus, allow_busy=options.allow_busy),
        )
        try:
            verdict = comparison.run(one, other, limit)
        except Interrupted:
            done = len(comparison.rows)
            raise Interrupted(
                f"stopped after {done} launches; nothing is kept of an unfinished comparison"
            ) from None
        warnings = list(dict.fromkeys(start.launcher.warnings))
        if comparison.disturbed:
            warnings.append(verdicts.repeated(comparison.disturbed, "block"))
        if comparison.turns.refused is not None:
            warnings.append(verdicts.one_by_one(comparison.turns.refused))
    for text in warnings:
        say(f"note: {text}")
    print_result(one, other, verdict, comparison.rows, found, as_json=as_json)
    return 0


def _refuse(found: Survey, one: JobSettings, other: JobSettings) -> None:
    """Raises UsageError for what cannot be compared, before anything is launched."""
    if not found.options.allow_busy:
        refuse_busy(found.gpus)
    for side in (one, other):
        process_env(side, found.site)
    sizes = [side.batch_size or found.task.batch_size for side in (one, other)]
    if sizes[0] != sizes[1]:
        say(
            f"note: batch {sizes[0]} a rank against {sizes[1]}: another training, the learning "
            "rate has to be adapted"
        )


def _tell(block: int, side: JobSettings, speed: float) -> None:
    say(f"launch {block + 1}  {words.samples(speed):>7} samples/s  {side.name}")


def _tell_again(block: int, reason: str) -> None:
    say(f"launch {block + 1} again: {reason}")


def print_result(
    one: JobSettings,
    other: JobSettings,
    verdict: Verdict,
    rows: list[dict[str, Any]],
    found: Survey,
    *,
    as_json: bool,
) -> None:
    """On stdout: one sentence, or the numbers."""
    sentence = verdicts.sentence(verdict, one.name)
    if not as_json:
        print(f"{other.name}: {sentence}")
        return
    document = {
        "a": one.name,
        "b": other.name,
        **verdict.to_dict(),
        "sentence": sentence,
        "job": found.task.to_dict(),
        "machine": found.machine.to_dict(),
        "launched": rows,
    }
    print(json.dumps(document, indent=2))
