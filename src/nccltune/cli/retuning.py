"""The main path of `nccltune retune`: check, search a new generation, let the better one hold."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nccltune.cli import documents, tables
from nccltune.cli.again import command_with
from nccltune.cli.cache import cache_folder
from nccltune.cli.launching import tell_notes
from nccltune.cli.speaking import say, tell
from nccltune.cli.starting import Start, end_old, started, tell_setting
from nccltune.cli.studying import carry_out
from nccltune.cli.verifying import NOT_GOOD, Checker, idle_flag, options_of, print_lines, silent
from nccltune.errors import UsageError
from nccltune.launch.leftovers import logs_folder
from nccltune.machine.fingerprint import Difference, differences
from nccltune.output.best import read_best
from nccltune.output.verdicts import sentence
from nccltune.space import ResolvedSpace
from nccltune.stats.verdict import MOST
from nccltune.study.comparing import SideFailed
from nccltune.study.definition import OtherStudy
from nccltune.study.fingerprinting import fingerprint_of, without_digest
from nccltune.study.folder import StudyPaths, find_study, locked
from nccltune.study.generations import (
    Event,
    adopt,
    append,
    current,
    examined,
    finish_adoption,
    next_number,
    now,
    read_history,
)
from nccltune.study.planner import Earlier
from nccltune.study.search import Ending
from nccltune.study.summary import Summary
from nccltune.study.survey import Survey, resolve_space
from nccltune.study.target import Target, read_target
from nccltune.study.verifying import WORDS, Acting, Check, mattering, sets_something
from nccltune.study.warm_start import earlier_points, targets_of

_FEWEST_TRIALS = 8


@dataclass(frozen=True)
class _Decision:
    """Whether the new generation's files become the study's, and why."""

    adopted: bool
    reason: str


def run_retune(
    study: str,
    studies_dir: Path,
    typed: Mapping[str, Any],
    search: Mapping[str, Any],
    budget: float,
    when_idle: str | None,
    *,
    check_only: bool,
    as_json: bool,
) -> int:
    """Returns the exit code. `search` holds what was given for the search itself, `budget` seconds
    for the check. Raises NccltuneError.
    """
    paths = find_study(study, studies_dir)
    cache = cache_folder()
    end_old()
    target = _own_target(paths, studies_dir)
    options, stop = idle_flag(options_of(target, typed), when_idle, typed)
    with contextlib.nullcontext() if check_only else locked(paths):
        events = read_history(paths)
        if not check_only:
            finish_adoption(paths, events)
        target = _own_target(paths, studies_dir)  # as it is now that nobody else works on it
        options = replace(options, **search, new=False)
        with logs_folder() as logs, started(options, cache, stop=stop) as start:
            tell_setting(start.found)
            deadline = time.monotonic() + budget
            checker = Checker(start, logs, deadline, silent if as_json else print_lines)
            retuning = _Retuning(paths, events, target, start, checker, "trials" in search)
            return retuning.run(check_only=check_only, as_json=as_json)


def _own_target(paths: StudyPaths, studies_dir: Path) -> Target:
    target = read_target(str(paths.folder), studies_dir)
    if target.own:
        return target
    raise UsageError(
        f"{paths.folder}: others can write its files, or they are not yours: its command is "
        "started again only where nobody else can have changed it (chmod go-w)"
    )


def _is_open(summary: Summary) -> bool:
    """Whether a candidate is there of which more launches could still tell something."""
    own = summary.own
    if own is None:
        return True
    return own.trial is not None and (own.verdict is None or own.verdict.word == "INCONCLUSIVE")


@dataclass
class _Retuning:
    paths: StudyPaths
    events: Sequence[Event]
    target: Target
    start: Start
    checker: Checker
    trials_given: bool

    def run(self, *, check_only: bool, as_json: bool) -> int:
        check = self.checker(self.target)
        generation = current(self.events)
        if not as_json:
            tell(f"generation {generation}: {WORDS[check.status]}: {check.sentence}")
        self.checker.look_closer()
        changed = self._changed_since()
        why = self._why_search(check, changed)
        if check_only or why is None:
            if not check_only:
                append(self.paths, self._event(check))
            return self._stay(check, why, as_json=as_json)
        say(f"searching anew: {why}")
        number = next_number(self.paths, self.events)
        number, summary, ending = self._search(number, check)
        if ending == "time" and _is_open(summary):
            append(self.paths, self._event(check))
            return self._later(check, number, summary, as_json=as_json)
        decision = self._decide(check, self.paths.generation(number), summary)
        append(
            self.paths,
            replace(
                self._event(check), made=number, adopted=decision.adopted, reason=decision.reason
            ),
        )
        if decision.adopted:
            adopt(self.paths, number)
        self._tell(check, number, summary, decision, as_json=as_json)
        return 0

    # Whether to search.

    def _changed_since(self) -> list[Difference]:
        """What matters and has changed since a search last came to its end here."""
        was = without_digest(examined(self.paths, self.events))
        here = fingerprint_of(self.checker.found, self.checker.probe)
        return mattering(differences(was, without_digest(here)), self.target.best)

    def _why_search(self, check: Check, changed: Sequence[Difference]) -> str | None:
        if changed:
            return f"{', '.join(each.name for each in changed)} changed since the last search"
        if check.holds:
            return None
        last = next((event for event in reversed(self.events) if event.made is not None), None)
        if last is not None and last.status == check.status:
            return None  # the last search found nothing better, on this very machine
        return f"the result is {WORDS[check.status]}"

    def _stay(self, check: Check, why: str | None, *, as_json: bool) -> int:
        text = "nothing that matters has changed; the files stay as they are"
        if why:
            text = f"a new search is due: {why}"
        elif not check.holds:
            text = "the last search found nothing better on this machine; the files stay"
        if as_json:
            due = {"searched": False, "search_due": why, "adopted": False, "reason": text}
            tell(json.dumps({"check": check.to_dict(), **due}, indent=2))
        else:
            tell(text)
        return 0 if why is None else NOT_GOOD

    def _later(self, check: Check, number: int, summary: Summary, *, as_json: bool) -> int:
        """Time has ended the search: it is not known yet what holds."""
        text = f"generation {number} is not at its end: the same command goes on with it"
        if as_json:
            due = {"searched": True, "generation": number, "adopted": False, "reason": text}
            result = documents.as_json(summary)
            tell(json.dumps({"check": check.to_dict(), **due, "result": result}, indent=2))
        else:
            tables.print_summary(summary)
            tell(f"\n{text}")
        return 0

    # The search.

    def _search(self, number: int, check: Check) -> tuple[int, Summary, Ending]:
        """The number of the generation, and what came of it. One that was begun elsewhere and not
        ended stays as it is, and the next number is taken.
        """
        made = self.paths.generation(number)
        begun = made.definition.exists()
        say(f"generation {number} {'goes on' if begun else 'begins'}, in {made.folder}")
        private = {str(self.start.worker_path.absolute()): "worker"}
        try:
            with locked(made):
                summary, ending = carry_out(
                    self._asked(check),
                    made,
                    self.checker.launcher,
                    self.checker.plain,
                    cache_folder(),
                    self.start.stop,
                    private,
                    self._earlier,
                    again=f"nccltune retune {self.paths.name}",
                    probed=self.checker.probe,
                )
        except OtherStudy as error:
            if not begun:
                raise
            say(f"generation {number} cannot go on here, and is left as it is: {error}")
            return self._search(max(self.paths.generations()) + 1, check)
        return number, summary, ending

    def _asked(self, check: Check) -> Survey:
        """What the search is to do: less where the old answer still leads; and where nothing of
        what the study's own --only names can act here, all that is set in the same place.
        """
        found = self.start.found
        options, trials = found.options, found.options.trials or 40
        if check.status == "still_good" and not self.trials_given:
            trials = max(_FEWEST_TRIALS, -(-trials // 2))
        only = options.only
        if only and not resolve_space(self.checker.found, self.checker.probe).parameters:
            only = targets_of(only)
            say(
                f"nothing of --only {','.join(options.only)} can act here, so that all of "
                f"{' and '.join(only)} is searched"
            )
        command = command_with(options.command, {}, only)
        asked = replace(options, trials=trials, only=only, command=command)
        return replace(found, options=asked)

    def _earlier(self, space: ResolvedSpace) -> Sequence[Earlier]:
        generation = current(self.events)
        old = Summary.read(self.paths.generation(generation))
        points, dropped = earlier_points(old, generation, space)
        for line in dropped:
            say(f"not tried again: {line}")
        if points:
            say(f"tried first: {', '.join(each.origin for each in points)}")
        return points

    # Which of the two holds from now on.

    def _decide(self, check: Check, made: StudyPaths, summary: Summary) -> _Decision:
        if summary.own is None or not summary.own.faster:
            keeps = not sets_something(read_best(made.best_yaml))
            if keeps and check.status in ("no_longer_better", "harmful"):
                return _Decision(True, "the defaults are kept: nothing is confirmed to be faster")
            return _Decision(False, "no new setting is confirmed to be faster than the defaults")
        new = read_target(str(made.folder), made.folder.parent)
        one, other = self.checker.acting(self.target), self.checker.acting(new)
        if replace(one.settings, name="") == replace(other.settings, name=""):
            return _Decision(True, "the old settings are confirmed anew")
        if not one.differs or check.status == "harmful":
            return _Decision(True, "confirmed to be faster than the defaults, the old ones are not")
        return self._against_old(one, other)

    def _against_old(self, one: Acting, other: Acting) -> _Decision:
        say("comparing the new settings with the old ones")
        comparison = self.checker.comparison()
        old, new = replace(one.settings, name="old"), replace(other.settings, name="new")
        try:
            verdict = comparison.run(old, new, MOST)
        except SideFailed as error:
            failed_old = error.side.name == "old" and comparison.failing(old) is not None
            what = "the old ones fail here" if failed_old else f"a launch failed: {error.failure}"
            return _Decision(failed_old, what)
        tell_notes(comparison, self.checker.launcher.warnings)
        faster = verdict.word == "FASTER"
        return _Decision(faster, sentence(verdict, "the old settings").removesuffix("."))

    # What is kept and told of it.

    def _event(self, check: Check) -> Event:
        speeds = {
            side: statistics.median(found)
            for side in {str(row["side"]) for row in check.rows}
            if (found := [r["samples_per_second"] for r in check.rows if r["side"] == side])
        }
        names = (check.acting.without.name, check.acting.settings.name)
        verdict = check.verdict
        here = fingerprint_of(self.checker.found, self.checker.probe)
        return Event(
            date=now(),
            generation=current(self.events),
            status=check.status,
            sentence=check.sentence,
            fingerprint=here,
            differences=[each.to_dict() for each in check.differences],
            ratio=None if verdict is None else verdict.ratio,
            low=None if verdict is None else verdict.low,
            high=None if verdict is None else verdict.high,
            defaults=speeds.get(names[0]),
            best=speeds.get(names[1]),
        )

    def _tell(
        self, check: Check, number: int, summary: Summary, decision: _Decision, *, as_json: bool
    ) -> None:
        if as_json:
            document = {
                "check": check.to_dict(),
                "searched": True,
                "generation": number,
                "adopted": decision.adopted,
                "reason": decision.reason,
                "result": documents.as_json(summary),
            }
            tell(json.dumps(document, indent=2))
            return
        tables.print_summary(summary)
        holds = (
            f"generation {number} holds from now on"
            if decision.adopted
            else (f"generation {current(self.events)} goes on holding")
        )
        tell(f"\n{holds}: {decision.reason}")
        tell(f"its files: {self.paths.best_env}, {self.paths.best_yaml}")
