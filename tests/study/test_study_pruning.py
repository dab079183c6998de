"""When a measurement is hopeless by a pruner of Optuna: what it is told, and what it ends."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from study_jobs import (
    Asked,
    FormulaGroup,
    FormulaLauncher,
    definition,
    measurement,
    result,
    search_in,
    space_of,
)

from nccltune.errors import UsageError
from nccltune.launch.protocol import Limits, Outcome
from nccltune.study.folder import StudyPaths, locked
from nccltune.study.live_group import LiveGroup, Subject
from nccltune.study.pruning import DEFAULT, PRUNERS, Pruning
from nccltune.study.records import Measurement

OPTUNAS = ("median", "wilcoxon", "hyperband")
WINDOWS = 12


def recorded(number: int, rates: Sequence[float], **changes: Any) -> Measurement:
    """A record with a window of one second for each rate."""
    ordered = sorted(rates)
    value = ordered[len(rates) // 2]
    windows = [
        {"steps": 10, "rank_seconds": [0.9, 1.0], "samples": rate, "counts": True} for rate in rates
    ]
    early = {**windows[0], "samples": 1, "counts": False}
    found = {**result(value), "windows": [early, *windows]}
    return measurement(number, value, **{"result": found, **changes})


def around(value: float, count: int = WINDOWS) -> list[float]:
    return [value + (0.1 if n % 2 else -0.1) for n in range(count)]


PAST = [recorded(n, around(100.0 + n)) for n in range(9)]


def ended_after(
    name: str, rates: Sequence[float], past: Sequence[Measurement] = PAST
) -> int | None:
    """The windows after which a measurement with such windows is ended."""
    judge = Pruning(name, WINDOWS).judge(past)
    assert judge is not None
    for count in range(3, len(rates) + 1):
        if judge(list(rates[:count])):
            return count
    return None


@pytest.mark.parametrize("name", OPTUNAS)
def test_what_is_slow_is_ended_and_what_is_fast_is_not(name: str) -> None:
    ended = ended_after(name, around(60.0))
    assert ended is not None and ended <= (9 if name == "hyperband" else 4)
    assert ended_after(name, around(120.0)) is None


def test_the_median_ends_the_lower_half_from_three_windows_on() -> None:
    assert ended_after("median", around(103.0)) == 3
    assert ended_after("median", around(105.0)) is None
    late = [*around(120.0, 3), *around(60.0, 9)]  # its best median counts
    assert ended_after("median", late) is None


def test_the_median_waits_for_some_complete_trials() -> None:
    assert ended_after("median", around(60.0), PAST[:4]) is None
    cut = [recorded(n, around(50.0, 3), state="pruned") for n in range(4, 9)]
    assert ended_after("median", around(60.0), [*PAST[:4], *cut]) is None
    assert ended_after("median", around(60.0), [*PAST[:5], *cut]) == 3


def test_the_signed_rank_test_compares_windows_with_those_of_the_best() -> None:
    assert ended_after("wilcoxon", around(107.0)) == 4  # the best has 108
    wild = [60.0, 160.0, 60.0, 160.0, 60.0, 160.0]
    assert ended_after("wilcoxon", wild) is None


def test_hyperband_ends_what_is_not_in_the_best_third_of_a_rung() -> None:
    past = [recorded(n, around(100.0 + n)) for n in range(30)]
    found = [ended_after("hyperband", around(100.0 + 3 * n), past) for n in range(10)]
    assert found[0] in (3, 9) and found[-1] is None
    assert None not in found[:5] and set(found) <= {3, 9, None}


@pytest.mark.parametrize("name", OPTUNAS)
def test_only_measurements_of_the_search_at_the_users_batch_size_count(name: str) -> None:
    other = [
        *(recorded(n, around(500.0), stage="batch") for n in range(9)),
        *(recorded(n, around(500.0), purpose="noise", trial=0) for n in range(9)),
        *(measurement(n, None) for n in range(9)),
    ]
    assert ended_after(name, around(60.0), other) is None
    mixed = [m for pair in zip(PAST, other, strict=False) for m in pair]
    for speed in (60.0, 103.0, 120.0):
        expected = ended_after(name, around(speed))
        assert ended_after(name, around(speed), mixed) == expected


@pytest.mark.parametrize("name", OPTUNAS)
def test_the_same_records_give_the_same_end_and_a_second_measurement_begins_anew(name: str) -> None:
    judge = Pruning(name, WINDOWS).judge(PAST)
    assert judge is not None
    slow = around(60.0)
    first = [judge(slow[:count]) for count in range(3, 10)]
    again = [judge(slow[:count]) for count in range(3, 10)]  # it was disturbed
    other = Pruning(name, WINDOWS).judge(list(PAST))
    assert other is not None
    assert first == again == [other(slow[:count]) for count in range(3, 10)]
    assert any(first)


def test_windows_without_samples_are_those_of_earlier_versions() -> None:
    past = [measurement(n, 100.0 + n) for n in range(9)]  # two windows each: nothing at three
    assert ended_after("median", around(60.0), past) is None
    longer = [{**result(v), "windows": result(v)["windows"] * 3} for v in (100.0, 110.0)]
    old = [measurement(n, 100.0, result=longer[0]) for n in range(9)]
    assert ended_after("median", around(99.0), old) == 3
    assert ended_after("median", around(101.0), old) is None


def test_our_own_rule_and_none_ask_nobody() -> None:
    assert DEFAULT == "own" and set(PRUNERS) == {"own", "none", *OPTUNAS}
    assert Pruning("own").judge(PAST) is None and Pruning("own").cut_below(5.0) == 5.0
    for name in PRUNERS:
        if name != "own":
            assert Pruning(name).cut_below(5.0) is None
    assert Pruning("none").judge(PAST) is None


@pytest.mark.parametrize(
    ("name", "windows", "seconds"),
    [("median", 3, "1.2"), ("hyperband", 2, "1.2"), ("wilcoxon", 4, "1.5")],
)
def test_a_measurement_that_is_too_short_for_a_pruner_is_refused(
    name: str, windows: int, seconds: str
) -> None:
    with pytest.raises(UsageError) as refused:
        Pruning(name, windows).check()
    fewest = 5 if name == "wilcoxon" else 4
    assert str(refused.value) == (
        f"--pruner {name} can end nothing early in {windows} windows: it takes {fewest} or more, "
        f"--measure-seconds {seconds}"
    )
    Pruning(name, fewest).check()
    Pruning("own", 1).check()


def test_the_names_cost_no_optuna() -> None:
    code = (
        "import sys\nfrom nccltune.study.pruning import PRUNERS, Pruning\n"
        "assert Pruning().judge([]) is None and 'optuna' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


@dataclass
class AskingGroup:
    """Asks after each of its windows from the third on, as ranks do."""

    rates: Sequence[float]
    told: list[bool] = field(default_factory=list)
    place: int = 2
    alive: bool = True

    def begin(self, message: Any, limits: Limits, progress: Any) -> Outcome | None:
        assert message == {"id": "m", "asks": True}
        self._progress = progress
        return self._ask()

    def turn(self, *, cut: bool = False) -> Outcome | None:
        self.told.append(cut)
        return Outcome({"cut": cut, "windows": self.place}, None) if cut else self._ask()

    def _ask(self) -> Outcome | None:
        self.place += 1
        if self.place > len(self.rates):
            return Outcome({"cut": False, "windows": len(self.rates)}, None)
        self._progress({"type": "window", "window": {}})
        self._progress({"type": "ask", "rates": list(self.rates[: self.place])})
        return None


def test_a_group_is_told_what_the_judge_says_and_listeners_hear_of_windows_alone() -> None:
    heard: list[str] = []
    for value, windows in ((60.0, 3), (120.0, WINDOWS)):
        group = AskingGroup(around(value))
        live = LiveGroup(group, 0, Path(), {})  # type: ignore[arg-type]
        judge = Pruning("median", WINDOWS).judge(PAST)
        outcome = live.request({"id": "m"}, Limits(), lambda m: heard.append(m["type"]), judge)
        assert outcome.result == {"cut": value < 100, "windows": windows}
        assert group.told == ([True] if value < 100 else [False] * (WINDOWS - 2))
    assert set(heard) == {"window"}


def counted(value: float, windows: int) -> dict[str, Any]:
    """A result of so many windows, all of which count."""
    whole = result(value)
    return {**whole, "windows": [whole["windows"][0]] * windows}


class FormulaThatAsks(FormulaGroup):
    """Six windows of a formula's speed, unless it is cut."""

    def begin(self, message: Any, limits: Limits, progress: Any) -> Outcome | None:
        assert message["asks"] and not message["turns"]
        self.waiting, self.done = (message, limits, progress), 2
        return self.turn()

    def turn(self, *, cut: bool = False) -> Outcome | None:
        assert self.waiting is not None
        whole = self.request(*self.waiting)
        if cut or whole.failure is not None or self.done == 6:
            found = {**(whole.result or {}), "cut": cut}
            return replace(whole, result=None if whole.failure else found)
        self.done += 1
        assert whole.result is not None
        rates = [whole.result["samples_per_second"]] * self.done
        self.waiting[2]({"type": "ask", "rates": rates})
        return None


class LauncherThatAsks(FormulaLauncher):
    def open(self, process_env: Any, log_dir: Path, **_: object) -> FormulaGroup:
        self.groups.append(FormulaThatAsks(self, process_env, log_dir))
        return self.groups[-1]


def test_a_search_records_what_the_pruner_ended(tmp_path: Path) -> None:
    space = space_of(
        {"bucket_cap_mb": {"target": "ddp", "default": None, "choices": [None, *range(1, 30)]}}
    )

    def speed(asked: Asked) -> float:
        return 100.0 + asked.ddp.get("bucket_cap_mb", 0)

    launcher = LauncherThatAsks(speed, extra=lambda asked: counted(speed(asked), 6))
    paths = StudyPaths(tmp_path / "study")
    with locked(paths):
        definition(space).write(paths)
        search = search_in(paths, launcher, space, 20)
        measure = search.measurer.measure

        def judged(subject: Subject, progress: Any) -> Any:
            judge = Pruning("median", 6).judge(search.store.measurements)
            return measure(replace(subject, judge=judge), progress)

        search.measurer.measure = judged  # type: ignore[method-assign]
        search.run()
    trials = search.store.trials
    cut = [t for t in trials if t.state == "pruned"]
    assert cut and all(t.number > 5 for t in cut)
    for trial in trials[6:]:
        complete = [t.value for t in trials[: trial.number] if t.state == "complete"]
        assert trial.value is not None
        assert (trial.state == "pruned") == (trial.value < statistics.median(complete))
