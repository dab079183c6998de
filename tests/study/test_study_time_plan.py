"""How a time budget is divided: trials, verdict, tests of what pays, the files. Time passes with
launches whose speed is a formula.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from study_jobs import Asked, FormulaLauncher, Listener, Speed, definition, search_in, space_of

from nccltune.launch.protocol import Failure
from nccltune.output import verdicts
from nccltune.study.blocks import Launch
from nccltune.study.budget import FLOOR_TRIALS, Budget
from nccltune.study.confirming import NOISE_LAUNCHES, confirm_results, plain_more
from nccltune.study.folder import StudyPaths, locked
from nccltune.study.outcomes import verdict_line
from nccltune.study.summary import Summary
from nccltune.study.time_plan import PLAIN_MORE, Costs, costs, reserve

LAUNCH, PLAIN = 3.0, 3.0 + PLAIN_MORE
VERDICT = 12 * LAUNCH + 2 * PLAIN
LEAST = LAUNCH + (NOISE_LAUNCHES - 1 + 2 + FLOOR_TRIALS) * LAUNCH + VERDICT
"""The baseline, and all that has to fit after it."""
THREE = {"bucket_cap_mb": 50, "NCCL_ALGO": "Ring", "NCCL_BUFFSIZE": 1048576}
SPACE = space_of(presets=[{"name": "three", "source": "a/b#1", "values": THREE}], only=tuple(THREE))


def two_pay() -> Callable[[Asked], float]:
    """Buckets give a fifth, Ring a tenth; launches scatter by half a per cent."""
    luck, launches = random.Random(1), dict[int, float]()

    def speed(asked: Asked) -> float:
        found = 120.0 if asked.ddp.get("bucket_cap_mb") == 50 else 100.0
        found *= 1.1 if "ring" in asked.env.get("NCCL_ALGO", "") else 1.0
        return found * launches.setdefault(id(asked.group), luck.gauss(1, 0.005))

    return speed


@dataclass
class Run:
    summary: Summary
    listener: Listener
    notes: list[str]
    spent: float

    @property
    def compared(self) -> list[str]:
        """The comparisons, each once, in the order in which they were begun."""
        return list(dict.fromkeys(launch.comparison for launch in self.listener.launches))


def searched(
    folder: Path,
    seconds: float | None,
    trials: int = 40,
    by_files: Speed | None = None,
    *,
    confirming: float | None = None,
    diagnoses: bool = True,
) -> Run:
    """By the clock of the launches: 3 s each, 23 s by plain commands, whose speed is `by_files`.
    `confirming`: so many seconds are left then, whatever was kept.
    """
    warm, plain = FormulaLauncher(two_pay()), FormulaLauncher(by_files or two_pay())
    plain.name = "torchrun"
    plain.seconds = {"start": PLAIN - 2.0, "measure": 2.0}
    paths, listener, notes = StudyPaths(folder), Listener(), list[str]()

    def now() -> float:
        return LAUNCH * len(warm.asked) + PLAIN * len(plain.asked)

    with locked(paths):
        definition(SPACE).write(paths)
        search = search_in(paths, warm, SPACE, trials, listener=listener)
        search.budget = Budget(trials, seconds, now)
        search.confirm, search.plain_more = True, plain_more(warm, plain)
        search.diagnoses, search.known = diagnoses, lambda: Summary.read(paths).own
        search.run()
        if confirming is not None:
            search.budget = Budget(trials, confirming, now)
        if search.confirm:
            notes = confirm_results(
                search.measurer, search.budget, listener, search.stop, SPACE, 12, plain
            )
    return Run(Summary.read(paths), listener, notes, now())


def test_what_has_to_fit_is_told_where_it_does_not(tmp_path: Path) -> None:
    run = searched(tmp_path / "s", LEAST - 1, 12)
    assert run.listener.refused == [LEAST - LAUNCH]
    assert [m for m in run.summary.measurements.values() if m.purpose != "search"] == []
    assert verdict_line(run.summary).startswith("not confirmed")
    assert len(run.summary.trials) == 12  # all the time is theirs


def test_what_is_recorded_need_not_fit_again(tmp_path: Path) -> None:
    """Small budgets end a confirmation one after the other, and do not undo it."""
    begun = searched(tmp_path / "s", None, 5, confirming=10 * LAUNCH + 1)
    verdict = begun.summary.own and begun.summary.own.verdict
    assert verdict is not None and verdict.launches == 5
    run = searched(tmp_path / "s", 2 * LAUNCH + 2 * PLAIN + 1, 5)
    verdict = run.summary.own and run.summary.own.verdict
    assert run.listener.refused == []
    assert verdict is not None and verdict.launches == 6 and verdict.word == "FASTER"
    again = searched(tmp_path / "s", LAUNCH, 5)
    assert again.listener.refused == [] and again.summary.own == run.summary.own
    longer = searched(tmp_path / "s", 2 * LAUNCH, 9)  # all the time is for trials
    assert longer.listener.refused == [] and len(longer.summary.trials) == 7


def test_trials_that_are_there_need_not_fit_again(tmp_path: Path) -> None:
    searched(tmp_path / "s", LEAST - 1, 9)
    seconds = (NOISE_LAUNCHES - 1 + 2) * LAUNCH + VERDICT
    assert searched(tmp_path / "s", seconds - 1, 9).listener.refused == [seconds]
    run = searched(tmp_path / "s", seconds + 1, 12)
    assert run.listener.refused == [] and run.summary.own is not None
    assert run.summary.own.faster


def test_no_diagnosis_takes_no_time(tmp_path: Path) -> None:
    run = searched(tmp_path / "s", LEAST - 2 * LAUNCH + 1, 12, diagnoses=False)
    assert run.listener.refused == [] and run.summary.own is not None
    assert run.summary.own.faster


def test_with_little_time_there_are_fewer_trials_and_a_verdict_on_the_files(tmp_path: Path) -> None:
    seconds = LEAST + 6.0
    run = searched(tmp_path / "s", seconds)
    assert run.listener.refused == []
    assert FLOOR_TRIALS + 1 <= len(run.summary.trials) <= FLOOR_TRIALS + 5
    assert run.compared == ["winner", "files"]
    assert run.spent <= seconds
    own = run.summary.own
    assert own is not None and own.faster and own.files is not None
    assert any("left are kept for the confirmation" in note for note in run.listener.notes)
    assert any("which settings pay (NCCL, DDP, NCCL_ALGO" in note for note in run.notes), run.notes


def test_tests_of_what_pays_leave_their_time_to_the_files(tmp_path: Path) -> None:
    usual = searched(tmp_path / "usual", None, 8)
    seconds = usual.spent - 40.0
    run = searched(tmp_path / "s", seconds, 8)
    assert usual.notes == []
    assert "reduced" in usual.compared and usual.compared[-1] == "files"
    assert {"winner", "without NCCL"} < set(run.compared) and run.compared[-1] == "files"
    assert run.spent <= seconds
    own = run.summary.own
    assert own is not None and own.faster and own.files is not None
    assert any("no time to find out which settings pay" in note for note in run.notes)
    assert verdicts.through_files(own.files).startswith("plain torchrun launches, without and with")


def test_files_that_fall_short_where_no_time_is_left_to_repeat_it_show_their_figures(
    tmp_path: Path,
) -> None:
    run = searched(tmp_path / "s", LEAST + 6.0, by_files=lambda _asked: 100.0)
    assert run.summary.own is not None and run.summary.own.faster
    assert run.summary.own.files == (100.0, 100.0)

    def fails(asked: Asked) -> float | Failure:
        set_by_us = asked.env.keys() & THREE.keys() or asked.ddp
        return Failure("crashed", "no such library") if set_by_us else 100.0

    run = searched(tmp_path / "f", LEAST + 6.0, by_files=fails)
    assert "best.env and best.yaml failed" in verdict_line(run.summary)


def test_half_of_the_budget_at_most_unless_a_verdict_takes_more() -> None:
    cost = Costs(LAUNCH, PLAIN)
    assert cost.verdict == VERDICT and cost.usual == VERDICT + 9 * LAUNCH
    assert reserve(Budget(9, None), cost, cost) == cost.usual
    assert reserve(Budget(9, 1000.0), cost, cost) == cost.usual
    assert reserve(Budget(9, 2 * VERDICT + 10), cost, cost) == VERDICT + 5
    assert reserve(Budget(9, VERDICT), cost, cost) == VERDICT


@pytest.mark.parametrize(
    ("comparison", "block", "kept"),
    [
        ("finalists", 0, VERDICT + 6 * LAUNCH),
        ("finalists", 2, VERDICT),
        ("winner", 5, 0.0),
        ("winner", 6, 2 * PLAIN),
        ("without NCCL", 0, VERDICT + 4 * LAUNCH),
        ("without NCCL", 2, VERDICT),
        ("without NCCL", 3, VERDICT + 4 * LAUNCH),
        ("reduced", 0, 2 * PLAIN),
        ("files", 0, 0.0),
        ("larger batch", 0, 0.0),
    ],
)
def test_what_each_comparison_leaves(comparison: str, block: int, kept: float) -> None:
    launch = Launch(comparison, block, "candidate", {}, "search", 1, 12, "of")
    assert Costs(LAUNCH, PLAIN).kept(launch) == kept


def test_what_launches_took_is_believed(tmp_path: Path) -> None:
    run = searched(tmp_path / "s", None, 3)
    found = list(run.summary.measurements.values())
    first = [m for m in found if m.compared is None]
    assert costs([], 1.0, 0.0) is None
    # Windows take 2 of a launch's 3 seconds.
    assert costs(first, 2.0, 7.0) == Costs(LAUNCH + 2.0, LAUNCH + 2.0 + 7.0)
    assert costs(found, 2.0, 7.0) == Costs(LAUNCH, PLAIN)
