"""What the ranks report against what it can be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from study_jobs import (
    SYNTHETIC,
    TASK,
    Asked,
    FormulaLauncher,
    definition,
    result,
    search_in,
    space_of,
)

from nccltune.launch.protocol import Outcome
from nccltune.study.checking import checked, usual_loss
from nccltune.study.folder import StudyPaths, locked
from nccltune.study.store import Store


def outcome(**changes: Any) -> Outcome:
    return Outcome({**result(100.0), "first_loss": 7.0, **changes}, None)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf"), None, "fast"])
def test_what_is_no_speed_is_a_wrong_result(speed: object) -> None:
    failure = checked(outcome(samples_per_second=speed)).failure
    assert failure is not None and failure.kind == "wrong_result"
    assert f"{speed} samples/s" in failure.message


@pytest.mark.parametrize("loss", [7.0, 7.06, 6.94])
def test_a_loss_like_the_baselines_is_right(loss: float) -> None:
    assert checked(outcome(first_loss=loss), 7.0).failure is None


@pytest.mark.parametrize(("loss", "told"), [(7.08, "7.08"), (6.9, "6.9"), (None, "not finite")])
def test_another_loss_with_the_same_data_is_a_wrong_result(loss: float | None, told: str) -> None:
    found = checked(outcome(first_loss=loss), 7.0)
    assert found.result is None and found.failure is not None
    assert found.failure.kind == "wrong_result"
    assert f"is {told}, in the baseline it is 7 " in found.failure.message


@pytest.mark.parametrize(
    ("losses", "usual"),
    [
        ([7.0, 7.0, 7.001], 7.0),
        ([7.0], None),  # one launch does not tell whether it is always so
        ([7.0, 7.02], None),
        ([7.0, None], None),
        ([], None),
    ],
)
def test_the_usual_loss_is_what_the_baseline_shows_each_time(
    losses: list[float | None], usual: float | None
) -> None:
    assert usual_loss([{"first_loss": loss} for loss in losses]) == usual
    if usual is None:
        assert checked(outcome(first_loss=1.0), usual).failure is None


@pytest.mark.parametrize("data", ["synthetic", "images"])
def test_a_fast_trial_with_another_loss_never_wins(tmp_path: Path, data: str) -> None:
    """With images each measurement has its own order of the data, and so its own loss."""

    def losses(asked: Asked) -> dict[str, float]:
        return {"first_loss": 6.0 if asked.ddp.get("bucket_cap_mb") else 7.0}

    workload = SYNTHETIC if data == "synthetic" else replace(SYNTHETIC, data=data)
    space = space_of(only=("bucket_cap_mb",))
    launcher = FormulaLauncher(lambda asked: 200.0 if asked.ddp else 100.0, extra=losses)
    task = replace(TASK, workload=workload)
    paths = StudyPaths(tmp_path / "s")
    with locked(paths):
        definition(space, task=task).write(paths)
        search = search_in(paths, launcher, space, 4, task=task)
        search.confirm = True  # so that the baseline is launched again
        search.run()
    trials = Store(paths).trials
    kinds = {trial.failure for trial in trials[1:]}
    assert trials[0].state == "complete" and len(trials) == 4
    assert kinds == ({"wrong_result"} if data == "synthetic" else {None})
