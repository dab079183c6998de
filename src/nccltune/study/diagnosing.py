"""Ask ranks where a step's time goes."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nccltune.errors import StudyError
from nccltune.launch.alone import ask_twice_if_lost
from nccltune.launch.protocol import Failure, Launcher, Progress
from nccltune.stats.step import Diagnosis, diagnosis_of
from nccltune.study.definition import Task
from nccltune.study.effective import Effective, loader_arguments, request_for
from nccltune.study.store import Store
from nccltune.study.survey import Survey
from nccltune.worker.spec import Settings


def diagnose(
    found: Survey,
    launcher: Launcher,
    log_dir: Path,
    *,
    given: Effective | None = None,
    settings: Settings | None = None,
    progress: Progress = lambda _message: None,
) -> Diagnosis:
    """The job in a worker group of its own, whose logs go to `log_dir`. `given` is the
    configuration, the user's own where it is left out; `settings` hold windows and rounds.

    A launch that fails because its host died is repeated once.

    Raises: StudyError when the ranks fail, with the reason found in their logs; Interrupted.
    """
    given = given or own_settings(found.task)
    message = request(found.task, given, settings or Settings())
    outcome = ask_twice_if_lost(launcher, given.process_env, log_dir, message, progress)
    if outcome.result is None:
        assert outcome.failure is not None
        raise StudyError(_failed(outcome.failure))
    return diagnosis_of(outcome.result, outcome.utilization)


def diagnosis_in(store: Store) -> Diagnosis | None:
    """The diagnosis that a study has on record."""
    for measurement in store.measurements:
        if measurement.purpose == "diagnose" and measurement.result is not None:
            return Diagnosis.from_dict(measurement.result)
    return None


def record(store: Store, found: Diagnosis, launcher: str, seconds: float) -> None:
    """Keep it with the study, so that a resumed search leaves out the same."""
    store.add_extra(
        replace(
            store.measurement(store.trials[0]),
            id=store.next_id(),
            launch=store.next_launch(),
            launcher=launcher,
            purpose="diagnose",
            trial=None,
            origin="diagnosis",
            value=found.samples_per_second,
            result=found.to_dict(),
            nccl=None,
            utilization=found.utilization,
            seconds={"diagnosis": round(seconds, 3)},
            taints=(),
        )
    )


def own_settings(task: Task) -> Effective:
    """The job as the user has it: nothing of ours is set."""
    return Effective(
        process_env={},
        communicator_env={},
        communicator_config={},
        ddp={},
        loader=loader_arguments({}, task),
        batch_size=task.batch_size,
    )


def request(task: Task, given: Effective, settings: Settings) -> dict[str, Any]:
    """What the ranks are asked; any live group with `given.process_env` can be."""
    return {"type": "diagnose", **asdict(request_for(given, task, settings, id="diagnosis"))}


def _failed(failure: Failure) -> str:
    tail = f"\n{failure.excerpt}" if failure.tail else ""
    return (
        f"the job failed ({failure.kind}): {failure.message}{tail}\n"
        f"nothing of ours was set; see {failure.log}"
    )
