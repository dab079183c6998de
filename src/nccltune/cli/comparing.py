"""The main path of `nccltune compare`: read both sides, launch them in turn, say the verdict."""

from __future__ import annotations

import json
import os
from typing import Any

from nccltune.cli.cache import cache_folder
from nccltune.cli.launching import comparison_of, tell_notes
from nccltune.cli.speaking import say, tell
from nccltune.cli.starting import end_old, started, tell_setting
from nccltune.errors import Interrupted, UsageError
from nccltune.launch.emulation import emulating
from nccltune.launch.leftovers import logs_folder
from nccltune.output import verdicts
from nccltune.output.writers import others_can_write
from nccltune.stats.verdict import Verdict
from nccltune.study.comparing import effective_of
from nccltune.study.options import SearchOptions
from nccltune.study.settings_file import DEFAULTS, JobSettings, read_settings, taking_effect
from nccltune.study.survey import Survey, refuse_busy


def run_compare(options: SearchOptions, a: str, b: str, limit: int, *, as_json: bool) -> int:
    """Returns the exit code. Raises NccltuneError for everything that goes wrong."""
    if limit == 0:
        raise UsageError("--launches must be 6 to 12: without launches nothing is compared")
    one, other = read_settings(a), read_settings(b)
    for side in (one, other):
        if side.name != DEFAULTS and (warning := others_can_write(side.name)):
            say(f"warning: {warning}")
    end_old()
    with logs_folder() as logs, started(options, cache_folder()) as start:
        found = start.found
        tell_setting(found)
        if not found.options.allow_busy:
            refuse_busy(found.gpus)
        one, other, kept = _taken(found, one, other)
        say(f"comparing {b} with {a}: {verdicts.how_many(limit)} of each, in turn")
        comparison = comparison_of(found, start.launcher, logs, start.stop)
        try:
            verdict = comparison.run(one, other, limit)
        except Interrupted:
            done = len(comparison.rows)
            raise Interrupted(
                f"stopped after {done} launches; nothing is kept of an unfinished comparison"
            ) from None
        tell_notes(comparison, start.launcher.warnings)
    print_result(one, other, verdict, comparison.rows, found, kept, as_json=as_json)
    return 0


def _taken(
    found: Survey, one: JobSettings, other: JobSettings
) -> tuple[JobSettings, JobSettings, list[str]]:
    """The sides as a job would take them here, and what stays as the site has it, which is told."""
    environ = emulating(os.environ, found.options.emulate_hosts)
    sides, kept = [], []
    for side in (one, other):
        taken, lines = taking_effect(side, environ, found.site)
        sides.append(taken)
        kept += [f"{side.name}: {line}" for line in lines]
    sizes = [side.batch_size or found.task.batch_size for side in sides]
    if sizes[0] != sizes[1]:
        say(
            f"note: batch {sizes[0]} a rank against {sizes[1]}: another training, the learning "
            "rate has to be adapted"
        )
    given = [effective_of(side, found.task, found.site) for side in sides]
    if given[0] == given[1]:
        why = " once the site's variables hold" if kept else ""
        kept.append(
            f"{one.name} and {other.name} set the same here{why}: what is compared is one "
            "configuration with itself"
        )
    for line in kept:
        say(f"note: {line}")
    return sides[0], sides[1], kept


def print_result(
    one: JobSettings,
    other: JobSettings,
    verdict: Verdict,
    rows: list[dict[str, Any]],
    found: Survey,
    kept: list[str],
    *,
    as_json: bool,
) -> None:
    """On stdout: one sentence, or the numbers."""
    sentence = verdicts.sentence(verdict, one.name)
    if not as_json:
        tell(f"{other.name}: {sentence}")
        return
    document = {
        "a": one.name,
        "b": other.name,
        **verdict.to_dict(),
        "sentence": sentence,
        "job": found.task.to_dict(),
        "machine": found.machine.to_dict(),
        "notes": kept,
        "launched": rows,
    }
    tell(json.dumps(document, indent=2))
