"""What ranks are asked for a diagnosis, and what becomes of their failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from study_jobs import TASK

from nccltune.errors import StudyError
from nccltune.launch.protocol import Failure, Limits, Outcome, Progress
from nccltune.study.diagnosing import diagnose, own_settings
from nccltune.worker.spec import Request, Settings

FOUND = cast(Any, SimpleNamespace(task=TASK))
RESULT = {
    "world_size": 2,
    "batch_size": 64,
    "workers": 2,
    "parts": {
        "whole": [[0.1, 0.1]],
        "unsynced": [[0.08, 0.08]],
        "synthetic": [[0.1, 0.1]],
        "compute": [[0.08, 0.08]],
        "loader": [[0.02, 0.02]],
        "alone": [[0.08]],
    },
    "data_wait": [[0.0, 0.0]],
    "host": [],
    "busy": [],
    "steady": True,
    "seconds": {},
}
FAILED = Failure("crashed", "rank 1: no such head", 1, "/logs/rank1.log", ("ValueError: no",))
DONE = Outcome(RESULT, None, {}, (90.0, 80.0))


@dataclass
class Launcher:
    """Gives these answers, one a launch."""

    answers: list[Outcome]
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    opened: list[Mapping[str, str]] = field(default_factory=list)
    closed: int = 0
    name = "answers"
    warnings = ()
    alive = True

    def open(
        self, process_env: Mapping[str, str], _: Path, *, probe: bool = False, **_given: object
    ) -> Launcher:
        assert self.closed == len(self.opened) and not probe
        self.opened.append(process_env)
        return self

    def request(self, message: Mapping[str, Any], limits: Limits, progress: Progress) -> Outcome:
        self.asked.append(message)
        progress({"type": "round", "round": 1, "rounds": 4})
        return self.answers.pop(0)

    def close(self) -> None:
        self.closed += 1


def test_the_users_own_job_is_asked_for() -> None:
    launcher, told = Launcher([DONE]), list[Any]()
    found = diagnose(FOUND, launcher, Path("logs"), progress=told.append)
    assert found.communication_bound == pytest.approx(0.25)
    assert found.utilization == (90.0, 80.0)
    assert told == [{"type": "round", "round": 1, "rounds": 4}]
    assert (launcher.opened, launcher.closed) == ([{}], 1)
    [message] = launcher.asked
    assert message["type"] == "diagnose"
    asked = Request.from_message(dict(message))
    assert (asked.workload, asked.batch_size, asked.ddp) == (TASK.workload, 64, {})
    assert asked.loader == {"num_workers": 2, "pin_memory": True, "persistent_workers": True}


def test_another_configuration_and_other_windows() -> None:
    given = replace(
        own_settings(TASK),
        process_env={"NCCL_NTHREADS": "128"},
        communicator_env={"NCCL_ALGO": "Ring"},
        ddp={"bucket_cap_mb": 50},
    )
    launcher = Launcher([DONE])
    diagnose(FOUND, launcher, Path("logs"), given=given, settings=Settings(windows=2))
    assert launcher.opened == [{"NCCL_NTHREADS": "128"}]
    asked = Request.from_message(dict(launcher.asked[0]))
    assert asked.ddp == {"bucket_cap_mb": 50}
    assert asked.communicator_env == {"NCCL_ALGO": "Ring"}
    assert asked.settings.windows == 2


def test_ranks_that_fail() -> None:
    launcher = Launcher([Outcome(None, FAILED)])
    with pytest.raises(StudyError) as caught:
        diagnose(FOUND, launcher, Path("logs"))
    assert str(caught.value) == (
        "the job failed (crashed): rank 1: no such head\n  | ValueError: no\n"
        "nothing of ours was set; see /logs/rank1.log"
    )
    assert launcher.closed == 1


def test_a_lost_host_costs_one_more_launch() -> None:
    lost = Outcome(None, FAILED, host_lost=True)
    launcher = Launcher([lost, DONE])
    assert diagnose(FOUND, launcher, Path("logs")).world_size == 2
    assert launcher.closed == 2
    with pytest.raises(StudyError):
        diagnose(FOUND, Launcher([lost, lost]), Path("logs"))


def test_a_group_is_closed_whatever_happens() -> None:
    launcher = Launcher([])  # asked, it raises
    with pytest.raises(IndexError):
        diagnose(FOUND, launcher, Path("logs"))
    assert launcher.closed == 1
