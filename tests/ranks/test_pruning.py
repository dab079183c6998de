"""Real ranks that ask after windows whether they are hopeless, and do what they are told."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from nccltune.launch.plan import LaunchSettings
from nccltune.launch.protocol import Limits, Outcome
from nccltune.launch.script import ScriptRun, read_script
from nccltune.launch.stopping import StopFlag
from nccltune.launch.warm import WarmLauncher
from nccltune.launch.worker_files import place_worker
from nccltune.study.live_group import Judge, LiveGroup
from nccltune.study.pruning import Pruning
from nccltune.study.records import Measurement
from nccltune.study.script_task import ScriptTask
from nccltune.worker.spec import Settings
from running import MARK, marked
from workloads import WORKLOAD, launcher, left, quiet, request

pytestmark = pytest.mark.ranks

WINDOWS = 6
SETTINGS = Settings(
    windows=WINDOWS, window_seconds=0.03, warmup_window_seconds=0.03, window_steps=2
)
SLOW = replace(WORKLOAD, model="smalljobs:Sleepy")
SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert left() == []


def live(group: Any, folder: Path) -> LiveGroup:
    return LiveGroup(group, 0, folder, {})


def record(number: int, outcome: Outcome) -> Measurement:
    """As a search keeps it."""
    result = outcome.result
    assert outcome.failure is None and result is not None
    state = "pruned" if result["cut"] else "complete"
    return Measurement(
        f"m{number:04d}", 0, "warm", "search", number, "search", "sampler", {}, {}, state,
        result["samples_per_second"], result, None, None, (), {},
    )  # fmt: skip


def counting(outcome: Outcome) -> int:
    assert outcome.result is not None
    return sum(window["counts"] for window in outcome.result["windows"])


def test_a_hopeless_trial_is_cut_by_the_median_of_others_and_the_ranks_go_on(
    tmp_path: Path,
) -> None:
    starter = launcher("warm", tmp_path, STEP_MS="60")
    found = live(starter.open({}, tmp_path / "logs"), tmp_path)
    pruning, past = Pruning("median", WINDOWS), list[Measurement]()

    def measure(message: Mapping[str, Any]) -> Outcome:
        outcome = found.request(message, Limits(), quiet, pruning.judge(past))
        past.append(record(len(past), outcome))
        return outcome

    for _ in range(5):
        assert counting(measure(request(settings=SETTINGS))) >= WINDOWS
    pids = dict(found.group.pids)  # type: ignore[attr-defined]
    slow = measure(request(SLOW, SETTINGS))
    assert slow.result is not None and slow.result["cut"] is True
    assert counting(slow) == 3  # at the first word
    assert past[-1].state == "pruned" and past[-1].value is not None
    assert past[-1].value < min(m.value or 0 for m in past[:-1])
    # The ranks are the same, and answer as before: without a judge too.
    after = found.request(request(SLOW, SETTINGS), Limits(), quiet)
    assert after.result is not None and after.result["cut"] is False
    assert found.group.pids == pids  # type: ignore[attr-defined]
    found.group.close()
    starter.close()


def told_at(count: int) -> tuple[Judge, list[int]]:
    """A judge that cuts after so many windows, and how many there were each time it was asked."""
    asked: list[int] = []

    def judge(rates: Sequence[float]) -> bool:
        assert all(rate > 0 for rate in rates)
        asked.append(len(rates))
        return len(rates) >= count

    return judge, asked


@pytest.mark.slow
def test_ranks_of_a_plain_torchrun_command_ask_too(tmp_path: Path) -> None:
    starter = launcher("torchrun", tmp_path)
    found = live(starter.open({}, tmp_path / "logs"), tmp_path)
    judge, asked = told_at(4)
    outcome = found.request(request(settings=SETTINGS), Limits(), quiet, judge)
    assert asked == [3, 4] and counting(outcome) == 4
    found.group.close()
    starter.close()


def test_ranks_that_wait_for_the_word_end_with_their_group(tmp_path: Path) -> None:
    starter = launcher("warm", tmp_path)
    group = starter.open({}, tmp_path / "logs")
    assert group.begin({**request(settings=SETTINGS), "asks": True}, Limits(), quiet) is None
    [host] = starter.hosts  # type: ignore[union-attr]
    group.close()
    assert not group.alive
    again = starter.open({}, tmp_path / "again")
    assert again.request(request(settings=SETTINGS), Limits(), quiet).failure is None
    again.close()
    assert starter.hosts == [host] and host.alive  # type: ignore[union-attr]
    starter.close()


def test_the_ranks_of_a_script_ask_too(tmp_path: Path) -> None:
    mark = f"script-{os.getpid()}"
    settings = LaunchSettings(
        python=sys.executable,
        nproc_per_node=2,
        backend="gloo",
        worker_path=place_worker(tmp_path / "worker"),
        base={**os.environ, MARK: mark},
        site={},
    )
    command = read_script((str(SCRIPTS / "exact.py"), "--steps", "100000"), settings.base)
    starter = WarmLauncher(settings, StopFlag(), script=ScriptRun(command))
    found = live(starter.open({}, tmp_path / "logs"), tmp_path)
    asked_of_it = ScriptTask(command).request({}, {})
    asked_of_it["script"]["training"] = None
    message = {"type": "measure", "id": "m0", "settings": asdict(SETTINGS), **asked_of_it}
    judge, asked = told_at(4)
    outcome = found.request(message, Limits(), quiet, judge)
    found.group.close()
    starter.close()
    assert outcome.failure is None, outcome.failure
    assert outcome.result is not None and outcome.result["cut"] is True
    assert asked == [3, 4] and counting(outcome) == 4
    assert marked(mark) == []
