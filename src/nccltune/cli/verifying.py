"""The main path of `nccltune verify`: the job of a result, what differs here, a comparison."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nccltune.cli.again import command_with, options_again
from nccltune.cli.cache import cache_folder
from nccltune.cli.first_launch import first_launch, suited
from nccltune.cli.idle import IdleFlag, wait_for_idle
from nccltune.cli.launching import comparison_of, tell_notes
from nccltune.cli.speaking import say, tell
from nccltune.cli.starting import Start, end_old, plain_launcher, started, tell_setting
from nccltune.errors import UsageError
from nccltune.launch.leftovers import logs_folder
from nccltune.launch.protocol import Launcher
from nccltune.launch.stopping import StopFlag
from nccltune.machine.fingerprint import differences
from nccltune.machine.gpus import visible_gpus
from nccltune.output.best import Best
from nccltune.output.fingerprints import difference_lines
from nccltune.output.verdicts import how_many
from nccltune.output.words import duration
from nccltune.output.writers import others_can_write
from nccltune.stats.verdict import FEWEST, MOST, Verdict
from nccltune.study.comparing import Comparison, SideFailed
from nccltune.study.fingerprinting import DIGEST, fingerprint_of, of_result
from nccltune.study.options import SearchOptions, parse_duration
from nccltune.study.script_survey import with_facts, with_scripts_python
from nccltune.study.settings_file import read_settings
from nccltune.study.survey import Survey, no_gpu, refuse_busy
from nccltune.study.target import Target, harmless, read_target
from nccltune.study.verifying import (
    WORDS,
    Acting,
    Check,
    acting_here,
    by_failure,
    by_verdict,
    nothing_set,
    sets_something,
)

NOT_GOOD = 3
"""Exit code: no longer better, harmful, or not known."""
_Tell = Callable[[Sequence[str]], None]


def run_verify(
    text: str,
    studies_dir: Path,
    typed: Mapping[str, Any],
    budget: float,
    when_idle: str | None,
    *,
    as_json: bool,
) -> int:
    """Returns the exit code. Raises NccltuneError for everything that goes wrong."""
    target = read_target(text, studies_dir)
    if warning := others_can_write(target.file):
        say(f"warning: {warning}")
    cache = cache_folder()
    end_old()
    options, stop = idle_flag(options_of(target, typed), when_idle, typed)
    deadline = time.monotonic() + budget
    with logs_folder() as logs, started(options, cache, stop=stop) as start:
        tell_setting(start.found)
        check = Checker(start, logs, deadline, silent if as_json else print_lines)(target)
    if as_json:
        document = {
            "file": str(target.file),
            "study": None if target.paths is None else target.paths.name,
            **check.to_dict(),
            "promised": target.best.verdict,
        }
        tell(json.dumps(document, indent=2))
    else:
        tell(f"{WORDS[check.status]}: {check.sentence}")
        for line in _advice(check, target):
            say(line)
    return 0 if check.holds else NOT_GOOD


def options_of(target: Target, typed: Mapping[str, Any]) -> SearchOptions:
    """The job of the target, with what the user has typed of it. Raises UsageError."""
    changed = {name: value for name, value in typed.items() if value is not None}
    options = harmless(target, options_again(target.command), frozenset(changed))
    words = {n: v for n, v in changed.items() if n != "script"}
    options = replace(options, command=command_with(options.command, words, options.only))
    if changed.get("emulate_hosts") == 1:
        changed["emulate_hosts"] = None
    unpin = tuple(name for name in options.unpin if name in os.environ)
    options = replace(options, **{"unpin": unpin, **changed})
    gpus = () if options.device == "cpu" else visible_gpus(os.environ)
    if not gpus and target.best.workload.get("device") == "cuda":
        raise UsageError(
            f"{target.file}: was measured on GPUs, and here jobs get none: {no_gpu(os.environ)}; "
            "nothing was started"
        )
    if gpus and "nproc_per_node" not in changed and (options.nproc_per_node or 0) > len(gpus):
        say(f"{options.nproc_per_node} ranks were measured, on the {len(gpus)} GPUs here as many")
        options = replace(options, nproc_per_node=None)
    if not options.script:
        return options
    try:
        return with_scripts_python(options, os.environ)
    except UsageError as error:
        raise UsageError(
            f"{error}\nthe job of {target.file} is started again from the folder where its command "
            f"was typed: {target.command}"
        ) from error


def idle_flag(
    options: SearchOptions, when_idle: str | None, typed: Mapping[str, Any]
) -> tuple[SearchOptions, StopFlag | None]:
    """With --when-idle: waits, then gives a flag that also stops for the GPUs' other users, and the
    options without what allows these.
    """
    if when_idle is None:
        return options, None
    seconds = 0.0 if when_idle.strip() in ("0", "0s") else parse_duration(when_idle)
    if typed.get("allow_busy"):
        raise UsageError("--when-idle and --allow-busy contradict each other; leave one out")
    gpus = () if options.device == "cpu" else visible_gpus(os.environ)
    used = gpus[: options.nproc_per_node]
    wait_for_idle(used, seconds)
    return replace(options, allow_busy=False), IdleFlag(used)


class Checker:
    """Checks results in what `started` gives. `tell` is given what differs here as soon as it is
    known; `found`, `probe`, `launcher` and `plain` are what a search can go on with.
    """

    def __init__(self, start: Start, logs: Path, deadline: float | None, tell: _Tell) -> None:
        self._start, self._logs, self._deadline, self._tell = start, logs, deadline, tell
        self.found: Survey = start.found
        self.launcher: Launcher = start.launcher
        self.plain = plain_launcher(start.launcher, start.stop)
        self.probe: dict[str, Any] | None = None

    def __call__(self, target: Target) -> Check:
        """Raises NccltuneError where the job itself does not work here."""
        best = target.best
        measured = of_result(best, target.file)  # which may be damaged
        if sets_something(best):
            self._probe()
        here = fingerprint_of(self.found, self.probe)
        differ = tuple(differences(measured, here))
        self._tell(difference_lines(differ))
        # Without a launch, what NCCL chose is not known.
        digests = (
            best.fingerprint.get(DIGEST),
            str(here[DIGEST]) if sets_something(best) else None,
        )
        acting = self.acting(target)
        if not sets_something(best):
            text = "the result is to keep the defaults"
            return Check("nothing_to_check", text, differ, acting, digests=digests)
        self._tell([f"{n} does nothing here: {why}" for n, why in acting.dead.items()])
        self._tell([f"{n} is not set by us here: {why}" for n, why in acting.kept.items()])
        if (nothing := nothing_set(acting)) is not None:
            return Check(*nothing, differ, acting, digests=digests)
        return self._compared(
            best, acting, Check("cannot_tell", "", differ, acting, None, (), digests)
        )

    def look_closer(self) -> None:
        """The probe launch, where there was no need for it so far."""
        if self.probe is None:
            self._probe()

    def acting(self, target: Target) -> Acting:
        """What of a result takes effect here, as far as is known."""
        settings = read_settings(str(target.file))
        return acting_here(target.best, settings, self.found, self.probe)

    def comparison(self, deadline: float | None = None) -> Comparison:
        return comparison_of(self.found, self.launcher, self._logs, self._start.stop, deadline)

    def _probe(self) -> None:
        if not self.found.options.allow_busy:
            self._start.stop.check_now()
            refuse_busy(self.found.gpus)
        logs = self._logs / "probe"
        self.probe = first_launch(self.found, self.launcher, self.plain, logs, cache_folder())
        self.found = with_facts(self.found, self.probe)
        self.launcher = suited(self.found, self.launcher, self.plain, self.probe)

    def _compared(self, best: Best, acting: Acting, check: Check) -> Check:
        comparison = self.comparison(self._deadline)
        say(f"comparing it with the defaults: {how_many(MOST)} of each, in turn")
        try:
            verdict = comparison.run(acting.without, acting.settings, MOST)
        except SideFailed as error:
            return self._failed(error, comparison, acting, check)
        tell_notes(comparison, self.launcher.warnings)
        status, text = by_verdict(verdict, best.verdict)
        if status == "cannot_tell" and self._deadline is not None:
            text += _more_time(verdict, comparison, self._deadline)
        rows = tuple(comparison.rows)
        return replace(check, status=status, sentence=text, verdict=verdict, rows=rows)

    def _failed(
        self, error: SideFailed, comparison: Comparison, acting: Acting, check: Check
    ) -> Check:
        """One launch can fail by somebody else's doing, so both sides are tried once more."""
        if error.side.name == acting.without.name:
            raise error
        say("a launch with the result failed: trying it once more, and the defaults")
        if (again := comparison.failing(acting.settings)) is None:
            text = f"one launch with it failed and the next did not ({error.failure})"
            return replace(check, sentence=text, rows=tuple(comparison.rows))
        if comparison.failing(acting.without) is not None:
            raise error
        status, text = by_failure(again.failure, acting.settings)
        return replace(check, status=status, sentence=text, rows=tuple(comparison.rows))


def _more_time(verdict: Verdict, comparison: Comparison, deadline: float) -> str:
    """What would let it be told, where time ended the comparison."""
    left, block = deadline - time.monotonic(), comparison.longest
    wanted = max(verdict.more or 0, FEWEST - verdict.launches)
    if not block or not wanted or block <= left:
        return ""
    return f"; about {duration(wanted * block - left)} more of --time-budget would do"


def print_lines(lines: Sequence[str]) -> None:
    for line in lines:
        tell(line)


def silent(_lines: Sequence[str]) -> None:
    return None


def _advice(check: Check, target: Target) -> list[str]:
    """What to do next."""
    if check.holds:
        return []
    study = target.paths
    search = f"nccltune retune {study.folder}" if study else "nccltune search, on this machine,"
    if check.status == "cannot_tell":
        return [f"to know: a longer --time-budget, or a quieter machine; `{search}` measures anew"]
    return [f"keep the defaults here; {search} looks for what is better now"]
