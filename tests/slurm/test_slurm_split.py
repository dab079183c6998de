"""`search --split 2` over two nodes of a real Slurm: a tuner on each, on one study."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from slurm_search import Search

from nodes_search import NAME, finished, wait_for
from postgres import Postgres

pytestmark = [pytest.mark.ranks, pytest.mark.slurm]

SPACE = """
version: 1
parameters:
  bucket_cap_mb: {target: ddp, choices: [null, 1, 2, 5, 10, 25], default: null}
  gradient_as_bucket_view: {target: ddp, choices: [false, true], default: false}
"""
SEARCH = (
    *("--model", "smalljobs:tiny", "--space", "buckets.yaml", "--nproc-per-node", "1"),
    *("--search-anyway", "--split", "2"),
)
JOURNAL = (*SEARCH, "--storage", "shared.journal", "--confirm-launches", "0")


@pytest.fixture(autouse=True)
def space(search: Search) -> None:
    (search.cli.folder / "buckets.yaml").write_text(SPACE)


def log(search: Search) -> str:
    """What the tuner on the second node has said."""
    file = search.study / "part-2.log"
    return file.read_text() if file.exists() else ""


def folder_of_n1(search: Search) -> Path:
    return search.cli.study(f"{NAME}.2")


def tuners(search: Search) -> dict[str, int]:
    """Process ids: of the one that the user has started, and of the one that it has started."""
    found = {}
    for pid in search.cli.processes():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[1:4] == [b"-m", b"nccltune", b"search"]:
            led = b"NCCLTUNE_PART=2" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found["n1" if led else "n0"] = pid
    return found


def records(folder: Path) -> list[dict[str, Any]]:
    file = folder / "measurements.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def own(folder: Path) -> list[dict[str, Any]]:
    """What that folder's tuner has measured itself."""
    return [record for record in records(folder) if record["tuner"] is None]


def await_both_at_work(search: Search, process: subprocess.Popen[str]) -> None:
    """Until the tuner on the second node has measured something, and goes on."""

    def both() -> bool:
        assert process.poll() is None, (process.communicate(), log(search))
        return bool(own(folder_of_n1(search)))

    wait_for(both, "the tuner on n1 to measure", 300)


def assert_each_trial_once(search: Search, count: int) -> None:
    trials = search.trials()
    assert len(trials) == count
    assert len({trial["number"] for trial in trials}) == count
    new = [trial for trial in trials if trial["origin"] != "again"]
    assert len({json.dumps(trial["parameters"], sort_keys=True) for trial in new}) == len(new)


def test_a_whole_search(search: Search) -> None:
    run = search.run(*JOURNAL, "--trials", "6", "--measure-seconds", "0.3", launcher="slurm")
    assert run.returncode == 0, run.stderr + log(search)
    assert "part 1 of 2: node n0, this tuner" in run.stderr
    assert "part 2 of 2: node n1, output in studies/nodes/part-2.log" in run.stderr
    assert "disturb each other where they share a network" in run.stderr
    assert "nodes: n0, 1 rank each" in run.stderr and "nodes: n1, 1 rank each" in log(search)
    assert_each_trial_once(search, 6)
    by_node = [{r["trial"] for r in own(f)} for f in (search.study, folder_of_n1(search))]
    assert by_node[0] and by_node[1] and not by_node[0] & by_node[1]
    assert len(records(search.study)) == 6
    assert "ended early" not in run.stderr
    search.assert_nothing_left()


@pytest.mark.slow
def test_the_confirmation_runs_alone(search: Search, postgres: Postgres) -> None:
    storage = ("--storage", postgres.database())
    confirm = ("--confirm-launches", "6", "--measure-seconds", "0.3", "--trials", "5")
    run = search.run(*SEARCH, *storage, *confirm, launcher="slurm")
    assert run.returncode == 0, run.stderr + log(search)
    assert "the tuner that has started this one confirms the result" in log(search)
    assert all(record["purpose"] != "confirm" for record in records(folder_of_n1(search)))
    compared = [r["launch"] for r in records(search.study) if r["purpose"] == "confirm"]
    if compared:  # there was something to compare the defaults with
        first = search.study / f"logs/launch-{min(compared):04d}"
        began = min(file.stat().st_mtime_ns for file in first.iterdir())
        assert (search.study / "part-2.log").stat().st_mtime_ns < began
    assert "confirm    " in run.stderr or "no setting measured faster" in run.stdout
    search.assert_nothing_left()
    # The other's folder comes to hold that result.
    again = search.run(*SEARCH, *storage, *confirm, launcher="slurm")
    assert again.returncode == 0, again.stderr
    assert "is finished: 5 of 5 trials are there" in again.stderr
    search.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_all_end_with_the_first_and_the_same_command_goes_on(
    search: Search, number: signal.Signals
) -> None:
    process = search.start(*JOURNAL, "--trials", "9", launcher="slurm")
    await_both_at_work(search, process)
    os.kill(tuners(search)["n0"], number)
    run = finished(process)
    search.cli.assert_nothing_left(10)
    if number == signal.SIGINT:
        assert run.returncode == 130, run.stderr
        assert "go on with: nccltune search" in run.stderr and "--split 2" in run.stderr
        assert "nccltune: stopped after" in log(search), "it came to its own end"
    done = search.trials()
    assert len(done) < 9
    run = search.run(*JOURNAL, "--trials", "9", launcher="slurm")
    assert run.returncode == 0, run.stderr + log(search)
    assert_each_trial_once(search, 9)
    assert search.trials()[: len(done)] == done
    search.assert_nothing_left()


@pytest.mark.slow
def test_one_that_is_killed_is_told_and_the_others_go_on(search: Search) -> None:
    process = search.start(*JOURNAL, "--trials", "9", launcher="slurm")
    await_both_at_work(search, process)
    os.kill(tuners(search)["n1"], signal.SIGKILL)
    run = finished(process)
    assert run.returncode == 0, run.stderr
    told = "the tuner on n1 ended early (it was ended by SIGKILL"
    assert run.stderr.count(told) == 1, run.stderr
    assert_each_trial_once(search, 9)
    search.cli.assert_nothing_left()


def test_a_dry_run_shows_the_parts(search: Search) -> None:
    secret = ("--storage", "postgresql://me:hush@db/x")
    run = search.run(*SEARCH, *secret, "--dry-run", launcher="slurm")
    assert run.returncode == 0, run.stderr
    lines = [line.strip() for line in run.stdout.splitlines()]
    (tuner,) = [line for line in lines if "nccltune search" in line and line.startswith("srun")]
    assert "--nodes=1 --ntasks=1 --ntasks-per-node=1 --nodelist=n1 --overlap" in tuner
    assert "postgresql://me:***@db/x" in tuner and "--dry-run" not in tuner
    (launch,) = [line for line in lines if "torch.distributed.run" in line]
    assert "--nodes=1 --ntasks=1 --ntasks-per-node=1 --nodelist=n0 --overlap" in launch
    assert "hush" not in run.stdout + run.stderr


def test_nodes_that_cannot_be_divided_are_told(search: Search) -> None:
    run = search.run(*JOURNAL, "--split", "3", launcher="slurm")
    assert run.returncode == 2
    assert "--split 3: the 2 nodes of this allocation cannot be divided into 3" in run.stderr
    assert not search.study.exists()
