"""Comparing two settings, on worker groups whose speed is a formula."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from study_jobs import TASK, WITHOUT_LOADER, Asked, FormulaLauncher

from nccltune.errors import StudyError
from nccltune.launch.protocol import Failure, FailureKind
from nccltune.launch.stopping import StopFlag
from nccltune.nccl.site import SiteVariable
from nccltune.study.comparing import Comparison, process_env
from nccltune.study.definition import Task
from nccltune.study.settings_file import JobSettings
from nccltune.worker.spec import Settings

A = JobSettings("a.env", env={"NCCL_ALGO": "Ring"})
B = JobSettings("b.yaml", env={"X": "1"}, ddp={"bucket_cap_mb": 50}, loader={"num_workers": 3})


def comparison(launcher: FormulaLauncher, folder: Path, task: Task = TASK) -> Comparison:
    return Comparison(
        *(task, launcher, Settings(), {}, (), folder),
        *(lambda _block, _side, _speed: None, StopFlag()),
    )


def speed(asked: Asked) -> float:
    return 110.0 if asked.ddp else 100.0


def test_each_launch_is_fresh_and_each_side_comes_first_half_the_time(tmp_path: Path) -> None:
    launcher = FormulaLauncher(speed)
    found = comparison(launcher, tmp_path).run(A, B, 12)
    assert (found.word, found.launches) == ("FASTER", 6)
    assert found.ratio == pytest.approx(1.1)
    assert launcher.asked_by_group == [1] * 12 and launcher.all_closed
    sides = ["b" if asked.ddp else "a" for asked in launcher.asked]
    blocks = [sides[2 * n : 2 * n + 2] for n in range(6)]
    assert all(sorted(block) == ["a", "b"] for block in blocks)
    assert sum(block[0] == "a" for block in blocks) == 3
    seeds = [asked.message["data_seed"] for asked in launcher.asked]
    assert seeds == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_without_loader_workers_the_two_of_a_block_measure_in_turn(tmp_path: Path) -> None:
    launcher = FormulaLauncher(speed)
    made = comparison(launcher, tmp_path, WITHOUT_LOADER)
    found = made.run(A, B, 12)
    assert (found.word, found.launches) == ("FASTER", 6)
    assert found.ratio == pytest.approx(1.1)
    assert all(row["turns"] for row in made.rows) and made.turns.refused is None
    assert launcher.asked_by_group == [1] * 12 and launcher.all_closed
    first, second = launcher.groups[:2]
    assert launcher.turns[:4] == [first, second, second, first]


def test_where_one_fails_beside_the_other_they_follow_one_another(tmp_path: Path) -> None:
    full = Failure("out_of_memory", "CUDA out of memory")

    def beside(asked: Asked) -> float | Failure:
        return full if sum(not group.closed for group in launcher.groups) > 1 else speed(asked)

    launcher = FormulaLauncher(beside)
    made = comparison(launcher, tmp_path, WITHOUT_LOADER)
    assert made.run(A, B, 12).word == "FASTER"
    assert not any(row["turns"] for row in made.rows)
    assert made.turns.refused == "out of memory: CUDA out of memory"
    assert launcher.opened == 2 + 12 and launcher.all_closed


@pytest.mark.parametrize(("crashes", "in_turn"), [((0,), 5), ((0, 2), 4), ((1, 2), 1)])
def test_turns_are_given_up_when_two_blocks_in_a_row_fail(
    tmp_path: Path, crashes: tuple[int, ...], in_turn: int
) -> None:
    """A rank that somebody else ended says nothing of the machine."""

    def killed(asked: Asked) -> float | Failure:
        beside = sum(not group.closed for group in launcher.groups) > 1
        if beside and asked.message["data_seed"] in crashes:
            return Failure("crashed", "rank 1 was ended by SIGKILL")
        return speed(asked)

    launcher = FormulaLauncher(killed)
    made = comparison(launcher, tmp_path, WITHOUT_LOADER)
    assert made.run(A, B, 6).word == "FASTER"
    assert sum(row["turns"] for row in made.rows) == 2 * in_turn
    given_up = "crashed: rank 1 was ended by SIGKILL" if in_turn == 1 else None
    assert made.turns.refused == given_up and launcher.all_closed


def test_a_disturbed_block_is_launched_once_more(tmp_path: Path) -> None:
    launcher, told = FormulaLauncher(speed), iter(["", "", "", "heat", "", ""])
    made = comparison(launcher, tmp_path)
    made.health = lambda: tuple(filter(None, [next(told, "")]))
    again: list[tuple[int, str]] = []
    made.again = lambda block, reason: again.append((block, reason))
    assert made.run(A, B, 6).word == "FASTER"
    assert launcher.opened == 14 and made.disturbed == ["heat"] and again == [(1, "heat")]
    assert [row["block"] for row in made.rows] == [n for n in range(6) for _ in range(2)]
    assert all(row["taints"] == [] for row in made.rows)


def test_where_everything_is_disturbed_blocks_are_kept_and_marked(tmp_path: Path) -> None:
    launcher = FormulaLauncher(speed)
    made = comparison(launcher, tmp_path)
    made.health = lambda: ("heat",)
    made.run(A, B, 12)
    assert len(made.disturbed) == 5 and launcher.opened == 12 + 10
    assert all(row["taints"] == ["heat"] for row in made.rows) and len(made.rows) == 12


def test_a_side_sets_what_its_file_names(tmp_path: Path) -> None:
    launcher = FormulaLauncher(speed)
    comparison(launcher, tmp_path).run(A, B, 6)
    one = next(asked for asked in launcher.asked if not asked.ddp)
    other = next(asked for asked in launcher.asked if asked.ddp)
    assert (one.env, one.batch_size) == ({"NCCL_ALGO": "Ring"}, 64)
    assert (other.env, other.ddp) == ({"X": "1"}, {"bucket_cap_mb": 50})
    assert other.loader["num_workers"] == 3
    assert one.loader["num_workers"] == TASK.num_workers


def test_the_same_on_both_sides_is_no_difference(tmp_path: Path) -> None:
    found = comparison(FormulaLauncher(lambda _asked: 100.0), tmp_path).run(A, A, 12)
    assert (found.word, found.launches) == ("WITHIN_NOISE", 6)


def test_a_side_that_fails_ends_it_and_is_named(tmp_path: Path) -> None:
    crash = Failure("crashed", "boom", None, None, ("Traceback", "boom"))
    launcher = FormulaLauncher(lambda asked: crash if asked.ddp else 100.0)
    with pytest.raises(StudyError, match="b.yaml: a launch failed .crashed.: boom"):
        comparison(launcher, tmp_path).run(A, B, 12)
    assert launcher.all_closed


@pytest.mark.parametrize(
    ("kind", "fails_from", "side", "advice"),
    [
        ("crashed", 0, "b.yaml", "(a.env worked, so look at what b.yaml sets|without b.yaml)"),
        ("crashed", 3, "b.yaml", "it worked before, so run the same command again"),
        ("crashed", 0, "defaults", "the job itself does not work here: `nccltune doctor`"),
        ("out_of_memory", 0, "b.yaml", "a smaller --batch-size"),
    ],
)
def test_a_failure_says_what_to_do(
    tmp_path: Path, kind: FailureKind, fails_from: int, side: str, advice: str
) -> None:
    def fails(asked: Asked) -> float | Failure:
        mine = bool(asked.ddp) is (side == "b.yaml")
        late = asked.message["data_seed"] >= fails_from
        return Failure(kind, "boom", log="x/rank0.log") if mine and late else 100.0

    sides = (A, B) if side == "b.yaml" else (JobSettings("defaults"), B)
    with pytest.raises(StudyError, match=f"(?s)see x/rank0.log\n.*{advice}"):
        comparison(FormulaLauncher(fails), tmp_path).run(*sides, 12)


def test_what_the_site_holds_stays_in_every_launch(tmp_path: Path) -> None:
    site = {"NCCL_ALGO": SiteVariable("NCCL_ALGO", "Tree", "environment")}
    assert process_env(A, site) == {}
    assert process_env(replace(A, env={**A.env, "NCCL_PROTO": "LL"}), site) == {"NCCL_PROTO": "LL"}
    off = {"NCCL_NVLS_ENABLE": SiteVariable("NCCL_NVLS_ENABLE", "0", "/etc/nccl.conf")}
    assert process_env(JobSettings("c", {"NCCL_ALGO": "NVLS", "NCCL_PROTO": "LL"}), off) == {
        "NCCL_PROTO": "LL"
    }
    launcher = FormulaLauncher(speed)
    made = comparison(launcher, tmp_path)
    made.site = site
    made.run(A, B, 6)
    assert all("NCCL_ALGO" not in asked.env for asked in launcher.asked)
