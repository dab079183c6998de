"""Faults injected for real: ranks that hang, leave, run out of memory, die; the tuner as well."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

from running import Cli, shared_memory, warm_hosts

pytestmark = pytest.mark.ranks

COMMAND = (
    *("search", "--model", "smalljobs:faulty", "--device", "cpu", "--batch-size", "4"),
    *("--confirm-launches", "0"),
    *("--image-size", "16", "--data", "synthetic", "--space", "cpu", "--study", "faults"),
)

FAULTS = {
    "hang": ("timeout", "rank 1"),
    "leave": ("crashed", "rank 1 ended by itself with exit code 3"),
    "oom": ("out_of_memory", "allocate"),
    "die": ("crashed", "rank 1 was ended by SIGKILL"),
    "diverge": ("wrong_result", "is not the same on all ranks: rank 1 differs"),
}


SPACE = """
version: 1
parameters:
  GLOO_INERT: {target: env, choices: [null, 1, 2, 3, 4, 5, 6, 7, 8, 9], default: null}
"""


def test_a_faulty_rank_is_a_record_and_the_study_goes_on(cli: Cli) -> None:
    """Each trial has ranks of its own, since a variable of the process is searched."""
    (cli.folder / "inert.yaml").write_text(SPACE)
    faults = ",".join(f"{number}:{fault}" for number, fault in enumerate(FAULTS, start=1))
    total = len(FAULTS) + 2
    run = cli.run(*COMMAND, "--space", "inert.yaml", "--trials", str(total), FAULTS=faults)
    assert run.returncode == 0, run.stderr
    cli.assert_nothing_left()
    trials = cli.trials("faults")
    assert len(trials) == total, "a failed trial counts, and none is lost or repeated"
    lines = (cli.study("faults") / "measurements.jsonl").read_text().splitlines()
    assert len(lines) == total
    for number, (kind, words) in enumerate(FAULTS.values(), start=1):
        trial, failure = trials[number], json.loads(lines[number])["failure"]
        assert (trial["state"], trial["failure"]) == ("failed", kind), run.stderr
        assert words in failure["message"], failure
        assert failure["rank"] == 1
        assert failure["log"] == f"logs/launch-{number:04d}/rank1.log"
        assert (
            f"trial {number} ({number + 1}/{total})  failed: {kind.replace('_', ' ')}" in run.stderr
        )
    assert trials[0]["state"] == "complete"
    assert trials[-1]["state"] in ("complete", "pruned")
    stack = (cli.study("faults") / "logs/launch-0001/rank1.log").read_text()
    assert "_hang" in stack, "a silent rank is asked where it is"


def test_what_is_fast_because_its_sums_are_wrong_never_wins(cli: Cli) -> None:
    space = (
        "version: 1\nparameters:\n  GLOO_FAST: {target: env, choices: [null, 1], default: null}\n"
    )
    (cli.folder / "fast.yaml").write_text(space)
    job = ("--model", "smalljobs:miscounting", "--device", "cpu", "--batch-size", "4")
    run = cli.run(
        *("search", *job, "--image-size", "16", "--data", "synthetic", "--study", "wrong"),
        *("--space", "fast.yaml", "--trials", "2", "--confirm-launches", "0"),
    )
    assert run.returncode == 0, run.stderr
    baseline, fast = cli.trials("wrong")
    assert baseline["state"] == "complete"
    assert (fast["state"], fast["failure"], fast["value"]) == ("failed", "wrong_result", None)
    assert fast["parameters"] == {"GLOO_FAST": 1}
    line = (cli.study("wrong") / "measurements.jsonl").read_text().splitlines()[1]
    told = r"all_reduce of \d+ x float32 gave [\d.]+ at position \d+, right is [\d.]+"
    assert re.search(told, json.loads(line)["failure"]["message"])
    best = (cli.study("wrong") / "best.env").read_text()
    assert [text for text in best.splitlines() if not text.startswith("#")] == []
    cli.assert_nothing_left()


def _wait_for_measuring(cli: Cli, after: int) -> None:
    """Until so many trials are on record and rank 1 is among the windows of the next."""
    status = cli.study("faults") / "logs/launch-0000/rank1.status"
    records = cli.study("faults") / "trials.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        done = records.read_text().count("\n") if records.exists() else 0
        if done == after and status.exists():
            if status.read_text().startswith(("warmup", "measure")):
                return
        time.sleep(0.02)
    raise AssertionError(f"trial {after} never measured")


def test_sigint_saves_everything_and_the_same_command_resumes(cli: Cli) -> None:
    tuner = cli.start(*COMMAND, "--trials", "3")
    _wait_for_measuring(cli, after=1)
    tuner.send_signal(signal.SIGINT)
    _, err = tuner.communicate(timeout=30)
    assert tuner.returncode == 130
    assert "stopped after 1 of 3 trials" in err
    assert "go on with: nccltune search --model smalljobs:faulty" in err
    cli.assert_nothing_left()
    _resumes_to_three(cli, before=(cli.study("faults") / "trials.jsonl").read_text())


def test_sigkill_loses_no_finished_trial(cli: Cli) -> None:
    shared = set(os.listdir("/dev/shm"))
    tuner = cli.start(*COMMAND, "--trials", "3")
    _wait_for_measuring(cli, after=1)
    tuner.kill()
    tuner.communicate(timeout=30)
    cli.assert_nothing_left()
    assert set(shared_memory()) <= shared
    records = cli.study("faults") / "trials.jsonl"
    before = records.read_text()
    with records.open("a") as file:  # and a line that was cut while being written
        file.write('{"number":1,"sta')
    _resumes_to_three(cli, before)


def _resumes_to_three(cli: Cli, before: str) -> None:
    assert len(before.splitlines()) == 1
    resumed = cli.run(*COMMAND, "--trials", "3")
    assert resumed.returncode == 0, resumed.stderr
    assert "goes on: 1 of 3 trials are there" in resumed.stderr
    after = (cli.study("faults") / "trials.jsonl").read_text()
    assert after.startswith(before), "the baseline was not measured again"
    assert [t["number"] for t in cli.trials("faults")] == [0, 1, 2]
    cli.assert_nothing_left()


def test_two_tuners_do_not_share_a_study(cli: Cli) -> None:
    first = cli.start(*COMMAND, "--trials", "30")
    _wait_for_measuring(cli, after=0)
    second = cli.run(*COMMAND, "--trials", "30")  # refused before anything is started
    assert second.returncode == 2
    assert f"process {first.pid} of user" in second.stderr
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=30)
    assert first.returncode == 130
    cli.assert_nothing_left()


def test_a_baseline_that_fails_ends_the_study_with_its_reason(cli: Cli) -> None:
    run = cli.run(*COMMAND, "--trials", "2", FAULT="leave", FAULT_LAUNCH="0")
    assert run.returncode == 1
    assert "the baseline itself failed (crashed): rank 1 ended by itself" in run.stderr
    assert not (cli.study("faults") / "trials.jsonl").exists()
    cli.assert_nothing_left()


@pytest.mark.slow
def test_new_keeps_the_old_study(cli: Cli) -> None:
    assert cli.run(*COMMAND, "--trials", "1").returncode == 0
    again = cli.run(*COMMAND, "--trials", "1", "--new")
    assert again.returncode == 0, again.stderr
    kept = [p for p in (cli.folder / "studies").iterdir() if p.name != "faults"]
    assert len(kept) == 1 and (kept[0] / "trials.jsonl").exists()
    assert str(Path("studies") / kept[0].name) in again.stderr


@pytest.mark.slow
def test_a_search_survives_the_end_of_its_warm_host(cli: Cli) -> None:
    tuner = cli.start(*COMMAND, "--trials", "4")
    _wait_for_measuring(cli, after=1)
    os.kill(warm_host(cli), signal.SIGKILL)
    _, err = tuner.communicate(timeout=120)
    assert tuner.returncode == 0, err
    trials = cli.trials("faults")
    assert len(trials) == 4
    assert {t["state"] for t in trials} <= {"complete", "pruned"}  # measured again, in new ranks
    records = (cli.study("faults") / "measurements.jsonl").read_text().splitlines()
    assert any("failed before" in json.loads(line)["seconds"] for line in records)
    cli.assert_nothing_left()


def warm_host(cli: Cli) -> int:
    [found] = warm_hosts(cli.processes())
    return found


@pytest.mark.slow
def test_what_a_killed_supervisor_left_is_ended_by_the_next_search(cli: Cli) -> None:
    with tempfile.TemporaryDirectory(prefix="tmp") as name:  # short: sockets are made in it
        _killed_supervisor(cli, Path(name))


def _killed_supervisor(cli: Cli, temporary: Path) -> None:
    tuner = cli.start(*COMMAND, "--trials", "30", TMPDIR=str(temporary))
    _wait_for_measuring(cli, after=1)
    assert len(list(temporary.glob("nccltune-*"))) == 2  # the worker's and the host's
    tuner.send_signal(signal.SIGSTOP)  # it must not see what happens now
    for pid in cli.processes():  # nobody is left to end the ranks
        if b"supervisor.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
            break
    else:
        raise AssertionError("no supervisor")
    host = warm_host(cli)
    os.kill(host, signal.SIGSTOP)  # nor does it notice that the tuner is gone
    tuner.kill()
    tuner.communicate(timeout=30)
    assert cli.processes() != []
    other = cli.run(*COMMAND[:-1], "another", "--trials", "1", TMPDIR=str(temporary))
    assert other.returncode == 0, other.stderr
    assert "processes that an earlier, killed run had left" in other.stderr
    assert list(temporary.glob("nccltune-*")) == []
    cli.assert_nothing_left()


@pytest.mark.parametrize("launcher", [pytest.param("auto", marks=pytest.mark.slow), "warm"])
def test_where_no_warm_host_comes_up(cli: Cli, launcher: str) -> None:
    python = cli.folder / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *worker.host*) echo no room >&2; exit 3;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    run = cli.run(
        *(*COMMAND, "--trials", "2", "--launcher", launcher, "--python", str(python)),
    )
    reason = "the warm host ended: no room"
    assert run.stderr.count(reason) == 1
    if launcher == "auto":
        assert run.returncode == 0, run.stderr
        assert "every launch is a plain torchrun command" in run.stderr
        assert len(cli.trials("faults")) == 2
    else:
        assert run.returncode == 1
        assert "--launcher warm: " in run.stderr
    cli.assert_nothing_left()
