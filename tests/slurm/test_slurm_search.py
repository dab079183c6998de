"""Whole searches over two nodes of a real Slurm, gloo on the CPU."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from slurm_search import Search

from nodes_search import FAULTY, JOB, NAME, ONE
from running import Cli

pytestmark = [pytest.mark.ranks, pytest.mark.slurm]

PLAIN = "slurm-torchrun"
slow_plain = pytest.param(PLAIN, marks=pytest.mark.slow)
either = pytest.mark.parametrize("launcher", ["slurm", slow_plain])


@pytest.mark.parametrize(("launcher", "ranks"), [("slurm", 2), (PLAIN, 1)])
def test_a_whole_search_over_two_nodes(search: Search, launcher: str, ranks: int) -> None:
    search.check_a_whole_search(launcher, ranks)
    definition = (search.study / "study.yaml").read_text()
    assert re.search(r"nodes: 2\n  nproc_per_node", definition)
    assert definition.count("digest:") == 3, "one of each node, and one of the study"


@either
def test_a_faulty_rank_of_another_node_is_a_record(search: Search, launcher: str) -> None:
    search.check_faults_of_the_other_node(launcher)


def test_a_node_that_is_gone_ends_the_search_with_its_name(search: Search) -> None:
    """The daemon of the second node is killed in mid-trial: what it has started goes on, and the
    next launch finds nobody there.
    """
    process = search.start(*FAULTY, *ONE, "--trials", "3", launcher=PLAIN)
    search.await_measuring(1, process)
    search.slurm.kill_node("n1")
    search.check_stops_with_its_name(process, PLAIN, search.slurm.recover)


@pytest.mark.slow
@either
def test_a_node_that_is_lost_in_mid_trial_does_so_too(search: Search, launcher: str) -> None:
    process = search.start(*FAULTY, *ONE, "--trials", "3", launcher=launcher)
    search.await_measuring(1, process)
    search.end_node("n1")
    search.check_stops_with_its_name(process, launcher, search.slurm.recover)


@pytest.mark.slow
@either
def test_an_agent_that_is_killed_leaves_nothing_and_costs_no_trial(
    search: Search, launcher: str
) -> None:
    """A node is not gone for it: the launch is repeated, once the nodes are clean."""
    search.check_agent_that_is_killed(launcher)


@either
def test_a_cancelled_step_is_launched_again(search: Search, launcher: str) -> None:
    process = search.start(*FAULTY, *ONE, "--trials", "3", launcher=launcher)
    search.await_measuring(1, process)
    steps = search.slurm.run("squeue", "-h", "-s", "-o", "%i %j").splitlines()
    (ours,) = [line.split()[0] for line in steps if "nccltune-" in line]
    search.slurm.run("scancel", ours)
    search.check_repeated(process)


@pytest.mark.parametrize(
    ("launcher", "number"),
    [
        ("slurm", signal.SIGKILL),
        pytest.param(PLAIN, signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("slurm", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_nothing_outlives_a_tuner_that_ends(
    search: Search, launcher: str, number: signal.Signals
) -> None:
    search.check_tuner_that_ends(launcher, number)


def test_a_node_with_other_settings_is_named_and_so_is_the_variable(search: Search) -> None:
    with search.slurm.setting("n1", "NCCL_BUFFSIZE", "1048576"):
        run = search.run(*FAULTY, *ONE, "--trials", "2", launcher=PLAIN)
    assert run.returncode == 1
    told = r"rank \d on node n1 has NCCL_BUFFSIZE set, and rank \d on node n0 has not"
    assert re.search(told, run.stderr), run.stderr
    assert "1048576" not in run.stderr
    search.assert_nothing_left()


@pytest.mark.slow
def test_a_slow_node_is_named(search: Search) -> None:
    with search.slurm.setting("n1", "STEP_MS", "20"):
        slow = ("--model", "smalljobs:Sleepy", "--space", "inert.yaml", "--confirm-launches", "0")
        run = search.run(*slow, *ONE, "--trials", "1", launcher=PLAIN)
    assert run.returncode == 0, run.stderr
    (measurement,) = search.measurements()
    slowest = measurement["result"]["slowest"]
    assert slowest["node"] == 1 and slowest["behind"] > 0.2
    assert measurement["result"]["rank_nodes"][slowest["rank"]] == 1
    assert f"slowest: rank {slowest['rank']} on node n1" in run.stderr
    search.assert_nothing_left()


def test_a_dry_run_shows_srun_and_torchrun(search: Search) -> None:
    run = search.run(*FAULTY, *ONE, "--dry-run", launcher=PLAIN)
    assert run.returncode == 0, run.stderr
    (line,) = [each.strip() for each in run.stdout.splitlines() if "srun" in each and "--" in each]
    for words in (
        "--nodes=2 --ntasks=2 --ntasks-per-node=1 --nodelist=n0,n1 --overlap",
        "-m nccltune.worker.node -- ",
        "-m torch.distributed.run --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d",
        "'--rdzv-endpoint=127.0.0.1:{port}'",
    ):
        assert words in line
    assert not search.study.exists()


def submit(search: Search, example: str, *arguments: str) -> None:
    """The batch job of examples/, with `nccltune` in its PATH; waits for its end."""
    folder = search.cli.folder
    program = folder / "bin" / "nccltune"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m nccltune "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{search.slurm.environment['PATH']}"
    script = str(Path(__file__).parents[2] / "examples" / example)
    done = subprocess.run(
        ["sbatch", "--wait", "--output=job.log", script, *arguments],
        cwd=folder,
        env={**search.cli.env, **search.slurm.environment, "PATH": path},
        timeout=500,
    )
    assert done.returncode == 0, (folder / "job.log").read_text()


@pytest.mark.slow
def test_the_example_of_a_batch_job_searches(search: Search) -> None:
    submit(search, "search.sbatch", *JOB[1:], *FAULTY, *ONE, "--trials", "1")
    assert len(search.trials()) == 1
    search.assert_nothing_left()


@pytest.mark.slow
def test_the_example_of_a_job_for_now_and_then_retunes(search: Search) -> None:
    """A study of one node, in a job of one node."""
    small = ("--model", "smalljobs:tiny", "--space", "inert.yaml", "--trials", "2")
    short = ("--measure-seconds", "0.3", "--confirm-launches", "0", "--nproc-per-node", "2")
    begun = search.cli.run(*JOB, *small, *short)
    assert begun.returncode == 0, begun.stderr
    submit(search, "retune.sbatch", NAME)
    (result,) = search.cli.folder.glob("retune-*.json")
    assert {"check", "reason"} <= json.loads(result.read_text()).keys()
    assert (search.study / "history.jsonl").exists(), "it is noted that the study was checked"
    search.assert_nothing_left()


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "outside": ({}, "this is no Slurm allocation; get one with `salloc --nodes=2 --exclusive`"),
    "elsewhere": (
        {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[0-1]", "SLURMD_NODENAME": "login"},
        "this machine is not one of the job's nodes (n[0-1])",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_where_it_cannot_work_it_says_what_to_do(slurm: Cluster, cli: Cli, case: str) -> None:
    env, words = MISTAKES[case]
    run = cli.run(*JOB, "--launcher", "slurm", **slurm.environment, **env)
    assert run.returncode == 2
    assert words in run.stderr
    assert not cli.study("nodes").exists()


QUICK = """
version: 1
parameters:
  GLOO_QUICK: {target: env, choices: [null, 1], default: null}
  GLOO_OTHER: {target: env, choices: [null, 1], default: null}
"""


@pytest.mark.slow
def test_with_fewer_nodes_it_begins_anew_once_that_is_accepted(search: Search) -> None:
    """A node is gone for good: what was best over two is tried first on the one that is left."""
    (search.cli.folder / "quick.yaml").write_text(QUICK)
    command = (
        *("--model", "verdictjobs:switched", "--space", "quick.yaml", "--nproc-per-node", "2"),
        *("--trials", "4", "--search-anyway", "--confirm-launches", "0"),
    )
    run = search.run(*command, launcher="slurm")
    assert run.returncode == 0, run.stderr
    before = search.trials()
    search.nodes = 1
    run = search.run(*command, launcher="slurm")
    assert run.returncode == 2
    assert "workload.nodes: 2 in the study, None now" in run.stderr
    assert "--accept-machine begins anew on these, with what was best before first" in run.stderr
    accepted = (*command, "--accept-machine")
    run = search.run(*accepted, launcher="slurm")
    assert run.returncode == 0, run.stderr
    (old,) = search.study.parent.glob(f"{NAME}.2*")
    assert [json.loads(line) for line in (old / "trials.jsonl").open()] == before
    trials = search.trials()
    best = max(before, key=lambda trial: trial["value"])
    assert best["parameters"]["GLOO_QUICK"] == 1
    assert trials[1]["origin"] == f"trial {best['number']} of {old.name}"
    assert trials[1]["parameters"] == best["parameters"]
    run = search.run(*accepted, launcher="slurm")
    assert "is finished: 4 of 4 trials are there" in run.stderr
    assert search.trials() == trials
    search.assert_nothing_left()
