"""Confirmation on worker groups whose speed is a formula with noise: real records, real files."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from study_jobs import (
    PARAMETERS,
    TASK,
    WITHOUT_LOADER,
    Asked,
    FormulaLauncher,
    Listener,
    definition,
    search_in,
    space_of,
)

from nccltune.errors import Interrupted, StudyError
from nccltune.launch.protocol import Failure
from nccltune.launch.stopping import StopFlag
from nccltune.space import ResolvedSpace
from nccltune.stats.verdict import verdict
from nccltune.study.confirming import NOISE_LAUNCHES, confirm_results
from nccltune.study.definition import Task
from nccltune.study.folder import StudyPaths, locked
from nccltune.study.outcomes import larger_line, verdict_line
from nccltune.study.results import write_results
from nccltune.study.summary import Summary

Gain = Callable[[Asked], "float | Failure"]


WIDE = ("bucket_cap_mb", "NCCL_ALGO", "NCCL_BUFFSIZE")
PRESETS = [
    {"name": "buckets", "source": "a/b#1", "values": {"bucket_cap_mb": 50, "NCCL_ALGO": "Ring"}},
    {"name": "small", "source": "a/b#2", "values": {"bucket_cap_mb": 10, "NCCL_ALGO": "Tree"}},
]


def noisy(gain: Gain, spread: float = 0.005, seed: int = 1) -> Callable[[Asked], float | Failure]:
    """100 samples/s times what the settings give, times the luck of the launch."""
    luck = random.Random(seed)
    launches: dict[int, float] = {}

    def speed(asked: Asked) -> float | Failure:
        found = gain(asked)
        if isinstance(found, Failure):
            return found
        factor = launches.setdefault(id(asked.group), luck.gauss(1, spread))
        return 100 * found * factor * luck.gauss(1, spread / 5)

    return speed


def confirmed(
    folder: Path, gain: Gain, trials: int = 8, limit: int = 12, space: ResolvedSpace | None = None,
    spread: float = 0.005, seconds: float | None = None, stop: StopFlag | None = None,
    seed: int = 1, confirm: bool = True, task: Task = TASK,
    plain: FormulaLauncher | None = None, reads: frozenset[str] | None = None,
) -> tuple[Summary, FormulaLauncher, Listener]:  # fmt: skip
    paths, space = StudyPaths(folder), space or space_of(presets=PRESETS, only=WIDE)
    launcher, listener = FormulaLauncher(noisy(gain, spread, seed), reads=reads), Listener()
    with locked(paths):
        found = definition(space, task=task)
        if not paths.definition.exists():
            found.write(paths)
        search = search_in(
            paths, launcher, space, trials, seconds=seconds, listener=listener, stop=stop, task=task
        )
        search.confirm = confirm
        search.run()
        if search.confirm:
            confirm_results(
                search.measurer,
                search.budget,
                listener,
                search.stop,
                space,
                limit,
                plain or launcher,
            )
    assert launcher.all_closed
    summary = Summary.read(paths)
    write_results(summary)
    return summary, launcher, listener


def best(summary: Summary) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(summary.paths.best_yaml.read_text())
    return found


def rests_on_its_speeds(told: dict[str, Any], summary: Summary) -> None:
    """The launches that are in the file make the verdict that is in it."""
    speeds = told["speeds"]
    anew = verdict(speeds["without"], speeds["with"], [summary.noise])
    assert len(speeds["with"]) == anew.launches == told["launches"] >= 6
    assert anew.word == told["word"]
    figures = (told["ratio"], told["low"], told["high"])
    assert (anew.ratio, anew.low, anew.high) == pytest.approx(figures, rel=1e-4)


def exports(summary: Summary) -> list[str]:
    lines = summary.paths.best_env.read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def nothing(_asked: Asked) -> float:
    return 1.0


def buckets_pay(asked: Asked) -> float:
    return 1.2 if asked.ddp.get("bucket_cap_mb") == 50 else 1.0


def test_where_nothing_helps_the_defaults_are_kept(tmp_path: Path) -> None:
    summary, _, listener = confirmed(tmp_path / "s", nothing)
    assert summary.own is not None
    assert not summary.own.faster
    assert verdict_line(summary).endswith("eep the defaults")
    assert exports(summary) == []
    assert best(summary)["ddp"] == {}
    assert len(listener.noises[-1]) == NOISE_LAUNCHES
    if summary.own.verdict is not None:
        rests_on_its_speeds(best(summary)["verdict"], summary)


def test_noise_is_measured_in_launches_of_its_own(tmp_path: Path) -> None:
    summary, _, _ = confirmed(tmp_path / "s", nothing)
    repeated = [m for m in summary.measurements.values() if m.purpose == "noise"]
    assert len({m.launch for m in repeated}) == NOISE_LAUNCHES - 1
    assert all(m.trial == 0 and m.effective["env"] == {} for m in repeated)


def test_what_pays_is_kept_and_what_does_not_is_dropped(tmp_path: Path) -> None:
    summary, _, _ = confirmed(tmp_path / "s", buckets_pay)
    own = summary.own
    assert own is not None and own.faster and own.verdict is not None
    assert own.verdict.low is not None and own.verdict.high is not None
    assert own.verdict.low < 1.2 < own.verdict.high
    found = best(summary)
    assert found["ddp"] == {"bucket_cap_mb": 50}
    assert exports(summary) == []
    assert found["verdict"]["word"] == "FASTER"
    assert found["verdict"]["sentence"] == verdict_line(summary)
    rests_on_its_speeds(found["verdict"], summary)


def test_dropping_is_by_group_then_by_setting(tmp_path: Path) -> None:
    def gain(asked: Asked) -> float:
        ring = "ring" in asked.env.get("NCCL_ALGO", "")
        return 1.3 if ring and asked.ddp.get("bucket_cap_mb") == 50 else 0.9 if ring else 1.0

    presets = [{"name": "both", "source": "a/b#1", "values": {
        "NCCL_ALGO": "Ring", "NCCL_BUFFSIZE": 1048576, "bucket_cap_mb": 50}}]  # fmt: skip
    space = space_of(only=WIDE, presets=presets)
    summary, _, _ = confirmed(tmp_path / "s", gain, 4, space=space)
    own = summary.own
    assert own is not None and own.faster
    assert own.configuration["NCCL_ALGO"] == "Ring" and own.configuration["bucket_cap_mb"] == 50
    assert "NCCL_BUFFSIZE" in own.dropped and own.configuration["NCCL_BUFFSIZE"] is None
    assert set(own.shares) >= {"NCCL", "DDP"}
    assert len(exports(summary)) == 1 and "NCCL_ALGO" in exports(summary)[0]
    assert own.whole is not None and own.verdict is not None
    assert own.dropped and own.verdict != own.whole
    rests_on_its_speeds(best(summary)["verdict"], summary)


def both_pay(asked: Asked) -> float:
    ring = "ring" in asked.env.get("NCCL_ALGO", "")
    return 1.2 * (1.1 if ring else 1.0) if asked.ddp.get("bucket_cap_mb") == 50 else 1.0


@pytest.mark.parametrize(
    ("pays", "blocks"), [(buckets_pay, {"NCCL": 3}), (both_pay, {"NCCL": 6, "DDP": 6})]
)
def test_a_dropping_ends_early_where_nothing_is_carried(
    tmp_path: Path, pays: Gain, blocks: dict[str, int]
) -> None:
    space = space_of(presets=PRESETS[:1], only=WIDE)
    summary, launcher, _ = confirmed(tmp_path / "s", pays, 2, space=space)
    own = summary.own
    assert own is not None and own.faster
    found = {name: verdict.launches for name, verdict in {**own.shares, **own.dropped}.items()}
    assert {name: n for name, n in found.items() if name in ("NCCL", "DDP")} == blocks
    assert own.configuration["NCCL_ALGO"] == ("Ring" if blocks["NCCL"] == 6 else None)
    assert own.configuration["bucket_cap_mb"] == 50


def test_without_loader_workers_the_sides_of_a_block_measure_in_turn(tmp_path: Path) -> None:
    summary, launcher, _ = confirmed(tmp_path / "s", buckets_pay, task=WITHOUT_LOADER)
    own = summary.own
    assert own is not None and own.faster and own.configuration["bucket_cap_mb"] == 50
    several = list(summary.measurements.values())
    assert len({m.id for m in several}) == len(several)
    turns = {m.compared.comparison: m.compared.turns for m in several if m.compared}
    assert {"winner", "without NCCL", "reduced"} <= turns.keys()
    assert all(turned for name, turned in turns.items() if name != "finalists")
    against = [m for m in several if m.compared and m.compared.comparison != "finalists"]
    assert len({m.launch for m in against}) == len(against)


def test_groups_that_do_not_fit_together_follow_one_another(tmp_path: Path) -> None:
    def gain(asked: Asked) -> float | Failure:
        beside = sum(not group.closed for group in asked.group.launcher.groups) > 1
        return Failure("out_of_memory", "CUDA out of memory") if beside else buckets_pay(asked)

    summary, launcher, _ = confirmed(tmp_path / "s", gain, task=WITHOUT_LOADER)
    own = summary.own
    assert own is not None and own.faster and own.failed == ()
    assert best(summary)["ddp"] == {"bucket_cap_mb": 50}
    assert not any(m.compared and m.compared.turns for m in summary.measurements.values())
    assert len(launcher.turns) == 3  # it was tried once: the second group failed in its last turn


def test_a_candidate_that_fails_by_itself_does_not_end_the_turns(tmp_path: Path) -> None:
    seen: list[Asked] = []

    def gain(asked: Asked) -> float | Failure:
        if asked.ddp.get("bucket_cap_mb") == 50 and "ring" in asked.env.get("NCCL_ALGO", ""):
            seen.append(asked)
            return 1.4 if len(seen) <= 4 else Failure("crashed", "no")
        return 1.35 if asked.ddp.get("bucket_cap_mb") == 10 else 1.0

    space = space_of(presets=TWO, only=WIDE)
    summary, _, _ = confirmed(
        tmp_path / "s", gain, 3, space=space, spread=0.03, task=WITHOUT_LOADER
    )
    own = summary.own
    assert own is not None and own.failed == (1,) and own.trial == 2 and own.faster
    against = [m for m in summary.measurements.values() if m.compared and m.trial == 2]
    assert any(m.compared and m.compared.turns for m in against)


def test_a_candidate_that_fails_anew_is_left_out(tmp_path: Path) -> None:
    seen: dict[str, int] = {}

    def gain(asked: Asked) -> float | Failure:
        if asked.ddp.get("bucket_cap_mb") == 50:
            seen["50"] = seen.get("50", 0) + 1
            return 1.5 if seen["50"] == 1 else Failure("crashed", "no", None, None, ())
        return 1.2 if asked.ddp.get("bucket_cap_mb") == 10 else 1.0

    summary, _, _ = confirmed(tmp_path / "s", gain)
    own = summary.own
    assert own is not None and own.failed
    assert best(summary)["ddp"].get("bucket_cap_mb") != 50


TWO = [
    {"name": "one", "source": "a/b#1", "values": {"bucket_cap_mb": 50, "NCCL_ALGO": "Ring"}},
    {"name": "two", "source": "a/b#2", "values": {"bucket_cap_mb": 10, "NCCL_BUFFSIZE": 1048576}},
]


def test_when_the_first_finalist_fails_the_second_is_confirmed_and_written(tmp_path: Path) -> None:
    seen = {"50": 0}

    def gain(asked: Asked) -> float | Failure:
        if asked.ddp.get("bucket_cap_mb") == 50 and "ring" in asked.env.get("NCCL_ALGO", ""):
            seen["50"] += 1
            crash = Failure("crashed", "no", None, None, ())
            return 1.4 if seen["50"] <= 4 else crash  # the search, and three rounds of finalists
        return 1.35 if asked.ddp.get("bucket_cap_mb") == 10 else 1.0

    space = space_of(presets=TWO, only=WIDE)
    summary, _, _ = confirmed(tmp_path / "s", gain, 3, space=space, spread=0.03)
    own = summary.own  # read back from the records
    assert own is not None and own.failed == (1,) and own.trial == 2 and own.faster
    assert best(summary)["ddp"] == {"bucket_cap_mb": 10}
    assert "trial 1 failed when it was launched anew; Faster than" in verdict_line(summary)


@pytest.mark.parametrize("failing", range(1, 7))
def test_a_candidate_that_fails_in_any_block_is_never_written(tmp_path: Path, failing: int) -> None:
    """Whichever side came first in that block: read back, it is left out as it was live."""
    seen = {"50": 0}

    def gain(asked: Asked) -> float | Failure:
        if asked.ddp.get("bucket_cap_mb") == 50:
            seen["50"] += 1
            crash = Failure("crashed", "no", None, None, ())
            return 1.4 if seen["50"] <= failing else crash  # the first is the search's own
        return 1.0

    space = space_of(presets=PRESETS[:1], only=WIDE)
    summary, _, _ = confirmed(tmp_path / "s", gain, 2, space=space)
    assert summary.own is not None and summary.own.failed == (1,) and summary.own.trial is None
    assert best(summary)["ddp"] == {} and exports(summary) == []
    assert "failed when it was launched anew" in verdict_line(summary)
    again, launcher, _ = confirmed(tmp_path / "s", gain, 2, space=space)
    assert launcher.asked == [] and verdict_line(again) == verdict_line(summary)


def test_launches_of_another_pair_do_not_count(tmp_path: Path) -> None:
    """More trials bring another winner on a day when the machine is faster: equal all the same."""
    first, _, _ = confirmed(tmp_path / "s", nothing, 4, seed=1)
    faster, launcher, _ = confirmed(tmp_path / "s", lambda _asked: 1.05, 9, seed=2)
    own = faster.own
    assert own is not None and not own.faster
    if own.trial is not None and first.own is not None and own.trial != first.own.trial:
        sides = [a for a in launcher.asked if not a.ddp and not a.env]
        assert len(sides) >= 6, "the baseline was launched anew, too"


def test_a_block_is_measured_anew_when_only_one_side_is_there(tmp_path: Path) -> None:
    summary, _, _ = confirmed(tmp_path / "s", buckets_pay)
    lines = summary.paths.measurements.read_text().splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if '"comparison":"winner"' in line)
    summary.paths.measurements.write_text("".join(lines[: first + 1]))  # killed after one side
    again, launcher, _ = confirmed(tmp_path / "s", buckets_pay)
    assert again.own is not None and again.own.verdict is not None
    of_winner = [
        m for m in again.measurements.values() if m.compared and m.compared.comparison == "winner"
    ]
    assert len(of_winner) == 2 * again.own.verdict.launches + 1 or again.own.whole is not None
    runs = {(m.compared.block, m.compared.run) for m in of_winner if m.compared}
    assert len([block for block, _ in runs if block == 0]) == 2
    assert len(launcher.asked) == len(again.measurements) - first - 1


def test_a_baseline_that_fails_once_is_launched_again(tmp_path: Path) -> None:
    count = {"baseline": 0}

    def gain(asked: Asked) -> float | Failure:
        if asked.ddp or asked.env:
            return buckets_pay(asked)
        count["baseline"] += 1
        if count["baseline"] == NOISE_LAUNCHES + 2:
            return Failure("crashed", "busy", None, None, ())
        return 1.0

    with pytest.raises(StudyError, match="the baseline failed in the confirmation"):
        confirmed(tmp_path / "s", gain)
    summary, _, _ = confirmed(tmp_path / "s", buckets_pay)
    assert summary.own is not None and summary.own.faster and summary.own.failed == ()


def test_a_reduced_set_that_fails_leaves_the_winner(tmp_path: Path) -> None:
    def gain(asked: Asked) -> float | Failure:
        ring = "ring" in asked.env.get("NCCL_ALGO", "")
        if ring and not asked.ddp:
            return Failure("crashed", "no", None, None, ())
        return 1.3 if ring and asked.ddp.get("bucket_cap_mb") == 50 else 1.0

    space = space_of(presets=PRESETS[:1], only=WIDE)
    summary, _, _ = confirmed(tmp_path / "s", gain, 2, space=space)
    own = summary.own
    assert own is not None and own.faster and own.trial == 1
    assert best(summary)["ddp"] == {"bucket_cap_mb": 50} and len(exports(summary)) == 1


@pytest.mark.parametrize("passes", [7, 8, 9])
def test_a_winner_that_fails_while_its_settings_are_dropped_is_not_promised(
    tmp_path: Path, passes: int
) -> None:
    """It has passed its trial and six launches against the baseline."""
    seen: list[Asked] = []

    def gain(asked: Asked) -> float | Failure:
        whole = asked.ddp.get("bucket_cap_mb") == 50 and "ring" in asked.env.get("NCCL_ALGO", "")
        if whole:
            seen.append(asked)
            return 1.4 if len(seen) <= passes else Failure("crashed", "no")
        return 1.0

    space = space_of(presets=PRESETS[:1], only=WIDE)
    summary, _, _ = confirmed(tmp_path / "s", gain, 2, space=space)
    own = summary.own
    assert len(seen) == passes + 1  # failed once, while settings were dropped
    assert own is not None and not own.faster and own.failed == (1,)
    assert exports(summary) == [] and best(summary)["ddp"] == {}


def test_newer_trials_do_not_undo_what_was_confirmed(tmp_path: Path) -> None:
    space = space_of(presets=PRESETS, only=WIDE)
    before, _, _ = confirmed(tmp_path / "s", buckets_pay, 3, space=space)
    assert best(before)["ddp"] == {"bucket_cap_mb": 50}

    def better(asked: Asked) -> float:
        return 1.6 if asked.env.get("NCCL_BUFFSIZE") else buckets_pay(asked)

    after, _, _ = confirmed(tmp_path / "s", better, 8, space=space, confirm=False)
    assert after.winner is not None and after.winner.parameters["NCCL_BUFFSIZE"] is not None
    assert best(after)["ddp"] == {"bucket_cap_mb": 50} and exports(after) == []
    assert best(after)["verdict"]["word"] == "FASTER"
    again, _, _ = confirmed(tmp_path / "s", better, 8, space=space)
    assert again.own is not None and again.own.configuration["NCCL_BUFFSIZE"] is not None


def test_a_finished_study_can_be_confirmed_later(tmp_path: Path) -> None:
    confirmed(tmp_path / "s", buckets_pay, seconds=60.0)
    summary, _, _ = confirmed(tmp_path / "s", buckets_pay, trials=1)
    assert summary.own is not None and summary.own.faster


def test_a_limit_of_six_is_judged_as_six(tmp_path: Path) -> None:
    summary, _, _ = confirmed(tmp_path / "s", buckets_pay, limit=6)
    assert summary.own is not None and summary.own.verdict is not None
    assert summary.own.verdict.launches == 6 and summary.own.faster


def test_it_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    whole, _, _ = confirmed(tmp_path / "whole", buckets_pay)
    asked: list[int] = []

    def until(number: int) -> Gain:
        def gain(each: Asked) -> float:
            asked.append(1)
            if len(asked) == number:
                raise Interrupted("stop")
            return buckets_pay(each)

        return gain

    with pytest.raises(Interrupted):
        confirmed(tmp_path / "parts", until(30))
    before = len(Summary.read(StudyPaths(tmp_path / "parts")).measurements)
    again, launcher, _ = confirmed(tmp_path / "parts", buckets_pay)
    assert len(again.measurements) == before + len(launcher.asked)
    assert again.own is not None and whole.own is not None
    assert again.own.faster == whole.own.faster
    done, launcher, _ = confirmed(tmp_path / "parts", buckets_pay)
    assert launcher.asked == []
    assert verdict_line(done) == verdict_line(again)


def test_without_time_there_is_no_confirmation_and_it_is_said(tmp_path: Path) -> None:
    summary, _, listener = confirmed(tmp_path / "s", buckets_pay, seconds=60.0)
    assert [m for m in summary.measurements.values() if m.purpose != "search"] == []
    assert len(listener.refused) == 1
    assert verdict_line(summary).startswith("not confirmed")
    assert best(summary)["verdict"] is None


def test_a_larger_batch_is_another_answer(tmp_path: Path) -> None:
    def gain(asked: Asked) -> float:
        return (asked.batch_size / 64) ** 0.3

    parameters = {
        "batch_size": PARAMETERS["batch_size"],
        "bucket_cap_mb": PARAMETERS["bucket_cap_mb"],
    }
    summary, _, _ = confirmed(tmp_path / "s", gain, 12, space=space_of(parameters))
    assert summary.own is not None and not summary.own.faster
    larger = summary.with_larger
    assert larger is not None and larger.faster
    assert larger_line(summary).startswith("Faster than the defaults at your batch size: ")
    assert best(summary)["batch_size"] == 64
    found = yaml.safe_load(summary.paths.best_batch_yaml.read_text())
    assert found["batch_size"] > 64 and found["verdict"]["word"] == "FASTER"
    rests_on_its_speeds(found["verdict"], summary)


def files_checked(
    folder: Path, plain_gain: Gain, spread: float = 0.005
) -> tuple[Summary, FormulaLauncher]:
    """A search whose winner pays, and plain launches that gain as given."""
    space = space_of(presets=PRESETS[:1], only=WIDE)
    plain = FormulaLauncher(noisy(plain_gain, spread))
    summary, _, _ = confirmed(folder / "s", both_pay, 2, space=space, plain=plain)
    return summary, plain


def test_the_files_are_tried_by_plain_launches_before_anything_is_promised(tmp_path: Path) -> None:
    summary, plain = files_checked(tmp_path, both_pay)
    own = summary.own
    assert own is not None and own.faster and own.files is not None
    without, with_files = own.files
    assert with_files / without == pytest.approx(1.32, rel=0.03)
    one, other = sorted(plain.asked, key=lambda asked: len(asked.ddp))
    assert (one.env, one.ddp) == ({}, {})
    # of the whole process, as in a job that sources the file
    assert other.group.env == {"NCCL_ALGO": "ring,tree;allreduce:ring"}
    assert other.ddp == {"bucket_cap_mb": 50} and other.loader == one.loader
    assert best(summary)["verdict"]["files"] == {"without": without, "with": with_files}
    again = Summary.read(summary.paths)
    assert again.own is not None and again.own.files == own.files


@pytest.mark.parametrize(
    ("gain", "why"),
    [
        (lambda asked: Failure("crashed", "no") if asked.ddp else 1.0, "failed"),
        (nothing, "gained [+-][01]"),
    ],
)
def test_files_that_do_not_do_what_was_measured_promise_nothing(
    tmp_path: Path, gain: Gain, why: str
) -> None:
    summary, _ = files_checked(tmp_path, gain)
    own = summary.own
    assert own is not None and own.verdict is not None
    assert own.verdict.word == "INCONCLUSIVE"
    assert re.search(f"Inconclusive: plain torchrun launches.* {why}", verdict_line(summary))
    assert exports(summary) == [] and best(summary)["ddp"] == {}


def test_one_bad_block_of_the_files_is_made_up_for_by_a_second(tmp_path: Path) -> None:
    seen: list[Asked] = []

    def gain(asked: Asked) -> float | Failure:
        seen.append(asked)
        return both_pay(asked) if len(seen) > 2 else 1.0

    summary, plain = files_checked(tmp_path, gain)
    assert summary.own is not None and summary.own.faster and summary.own.files is not None
    assert len(plain.asked) == 4


def test_where_plain_launches_do_not_work_the_files_are_not_known_to_fail(tmp_path: Path) -> None:
    summary, plain = files_checked(tmp_path, lambda _asked: Failure("crashed", "no torchrun"))
    assert summary.own is not None and summary.own.faster and summary.own.files is None
    assert len(plain.asked) == 1


def test_the_files_are_tried_once(tmp_path: Path) -> None:
    space = space_of(presets=PRESETS[:1], only=WIDE)
    plain = FormulaLauncher(noisy(both_pay))
    for _ in range(2):
        confirmed(tmp_path / "s", both_pay, 2, space=space, plain=plain)
    assert len(plain.asked) == 2
