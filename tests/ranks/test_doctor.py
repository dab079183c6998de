"""Real ranks whose data or whose communication is late by a known time, and the command itself."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nccltune.launch.group import RankGroup
from nccltune.launch.protocol import Limits
from nccltune.stats.step import diagnosis_of
from nccltune.worker.spec import Settings
from running import Cli
from workloads import WORKLOAD, launcher, left, quiet, request

pytestmark = pytest.mark.ranks

SHORT = Settings(windows=2, max_warmup_windows=6)
QUICK = replace(SHORT, window_seconds=0.02, warmup_window_seconds=0.02, window_steps=2)
LOADER = {"num_workers": 1, "persistent_workers": True}
DELAYS = {"STEP_MS": "60", "SLOW_MS": "30", "COMM_MS": "60"}
"""A pass, a sample of four in a batch, an all-reduce: each of them doubles the time of a step."""
LATE_DATA = ("--model", "smalljobs:Sleepy", "--data", "smalljobs:slow", "--batch-size", "4")


def asked(
    group: RankGroup, kind: str, settings: Settings = SHORT, **changes: Any
) -> Mapping[str, Any]:
    message = request(replace(WORKLOAD, **changes), settings, loader=LOADER)
    outcome = group.request({**message, "type": kind}, Limits(), quiet)
    assert outcome.failure is None and outcome.result is not None
    return outcome.result


@pytest.mark.slow
def test_late_data_and_late_communication_are_told_apart(tmp_path: Path) -> None:
    """What would be won by a loader, or an all-reduce, that costs nothing is measured as well."""
    starter = launcher("warm", tmp_path, **DELAYS)
    group = starter.open({}, tmp_path / "logs")
    plain = {"model": "smalljobs:Sleepy"}
    talking = {"model": "smalljobs:Talkative"}
    starved = {**plain, "data": "smalljobs:slow"}
    late_data = diagnosis_of(asked(group, "diagnose", **starved))
    speed = {
        name: asked(group, "measure", **job)["samples_per_second"]
        for name, job in (("starved", starved), ("plain", plain), ("talking", talking))
    }
    late_news = diagnosis_of(asked(group, "diagnose", **talking))
    group.close()
    starter.close()
    assert left() == []

    assert late_data.loader_bound == pytest.approx(speed["plain"] / speed["starved"] - 1, rel=0.2)
    assert late_data.communication_bound < 0.3 * late_data.loader_bound
    for rank, waited in zip(late_data.ranks, late_data.data_wait_seconds, strict=True):
        assert rank.data == pytest.approx(1 - speed["starved"] / speed["plain"], rel=0.3)
        assert rank.data > 2 * rank.communication
        assert 0 < waited < 1.1 * rank.data * late_data.step_seconds  # and for the other rank's
    assert late_data.loader_seconds == pytest.approx(late_data.step_seconds, rel=0.15)
    assert late_data.scaling_efficiency == pytest.approx(1, rel=0.15)  # one rank waits as long

    won = speed["plain"] / speed["talking"] - 1
    assert late_news.communication_bound == pytest.approx(won, rel=0.2)
    assert late_news.loader_bound == 0
    for rank in late_news.ranks:
        assert rank.communication == pytest.approx(1 - speed["talking"] / speed["plain"], rel=0.2)
    assert late_news.scaling_efficiency == pytest.approx(1 / (1 + won), rel=0.2)


@pytest.mark.slow
def test_the_command_says_what_is_late(cli: Cli) -> None:
    temporary = cli.folder / "temporary"
    temporary.mkdir()
    run = cli.run(
        *("doctor", *LATE_DATA, "--num-workers", "1", "--device", "cpu", "--json"),
        STEP_MS="30",
        SLOW_MS="15",
        TMPDIR=str(temporary),
    )
    assert run.returncode == 0, run.stderr
    cli.assert_nothing_left()
    assert list(cli.folder.iterdir()) == [temporary] and not list(temporary.iterdir())
    told: Mapping[str, Any] = json.loads(run.stdout)
    assert 0.3 < told["diagnosis"]["loader_bound"] < 1.3  # 1 but for what a step takes beside
    assert told["job"]["model"] == "smalljobs:Sleepy"
    assert told["machine"]["torch"] and told["nccl"] is None
    awaited = [found for found in told["findings"] if "while data is awaited" in found["fact"]]
    assert len(awaited) == 1 and awaited[0]["next"] == "nccltune search --only loader"
    assert told["topology"]["host"]["cores"]
    assert "loader settings at most" in told["summary"]
    assert "warming up" in run.stderr and "round 1 of at most 4" in run.stderr


def test_three_ranks_are_measured_in_pairs(tmp_path: Path) -> None:
    starter = launcher("warm", tmp_path, ranks=3)
    group = starter.open({}, tmp_path / "logs")
    found = asked(group, "diagnose", QUICK)
    again = asked(group, "measure", QUICK)  # the job is gone, and the ranks go on
    group.close()
    starter.close()
    assert left() == []
    pairs = found["pairs"]
    assert [(first, second) for first, second, _ in pairs] == [(0, 1), (0, 2), (1, 2)]
    assert all(1e7 < speed < 1e12 for *_, speed in pairs)
    assert 0 < found["seconds"]["pairs"] < 10
    assert again["samples_per_second"] > 0


@pytest.mark.slow
def test_an_interrupted_one_leaves_nothing(cli: Cli) -> None:
    temporary = cli.folder / "temporary"
    temporary.mkdir()
    process = cli.start(
        *("doctor", *LATE_DATA, "--device", "cpu"), **{**DELAYS, "TMPDIR": str(temporary)}
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("warming up"):
            break
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "interrupted" in err
    cli.assert_nothing_left()
    assert not list(temporary.iterdir())


@pytest.mark.slow
def test_ranks_that_fail_are_told_and_their_log_is_kept(cli: Cli) -> None:
    (cli.folder / "broken.py").write_text(
        "import torch\n\n"
        "class Broken(torch.nn.Linear):\n"
        "    def __init__(self): super().__init__(3, 3)\n"
        "    def forward(self, images): raise ValueError('no such head')\n"
    )
    path = f"{cli.env['PYTHONPATH']}:{cli.folder}"
    temporary = cli.folder / "temporary"
    temporary.mkdir()
    run = cli.run(
        *("doctor", "--model", "broken:Broken", "--data", "synthetic", "--device", "cpu"),
        PYTHONPATH=path,
        TMPDIR=str(temporary),
    )
    assert (run.returncode, run.stdout) == (1, "")
    assert "the job failed (crashed)" in run.stderr and "no such head" in run.stderr
    log = run.stderr.rpartition("; see ")[2].strip()
    assert Path(log).is_file() and Path(log).is_relative_to(temporary)
    cli.assert_nothing_left()
