"""What `nccltune run --watch` asks the job's rank 0 for, beside the arguments that are passed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nccltune.errors import UsageError
from nccltune.launch.commands import JobCommand
from nccltune.nccl.findings import printable
from nccltune.output.best import Best
from nccltune.output.promise import NotPromised, promised
from nccltune.study.settings_file import JobSettings

USUAL_EVERY = 100


@dataclass(frozen=True)
class Watching:
    """What the user asked for: a report after every so many steps, and where metrics go."""

    every: int = USUAL_EVERY
    metrics: str | None = None


def check_watch(asked: Watching, job: JobCommand) -> list[str]:
    """What is to be told of it. Raises UsageError where nothing of the job could be watched."""
    if job.without_python is not None:
        raise UsageError(
            f"--watch: {job.without_python} starts no Python that could be watched; take that "
            "option out, or leave out --watch"
        )
    if asked.metrics is not None and os.path.isdir(asked.metrics):
        raise UsageError(f"--metrics {asked.metrics}: is a folder; give a file in it, as job.prom")
    notes = []
    folder = os.path.dirname(os.path.abspath(asked.metrics or "."))
    if asked.metrics is not None and not os.path.isdir(folder):
        notes.append(f"--metrics {asked.metrics}: no folder {folder}: nothing is written")
    if job.way == "other":
        program = os.path.basename(job.argv[0])
        notes.append(f"--watch reaches only ranks that torchrun starts below {program}")
    return notes


def watched(
    asked: Watching, file: str, best: Best | None, given: JobSettings, arguments: JobSettings
) -> tuple[dict[str, Any], list[str]]:
    """What is handed to rank 0, and what is to be told. `given` are the settings of the file,
    `arguments` those of which the job gets DDP and loader arguments.
    """
    wanted: dict[str, Any] = {
        "every": asked.every,
        "next_step": _next_step(file, best),
        # The script may go elsewhere before the first report.
        "metrics": None if asked.metrics is None else os.path.abspath(asked.metrics),
        "labels": {} if best is None else _labels(best),
    }
    try:
        if best is None:
            raise NotPromised("it is no best.yaml")
        if (given.ddp, given.loader) != (arguments.ddp, arguments.loader):
            raise NotPromised("the job does not get all that it was measured with")
        promise = promised(best)
    except NotPromised as why:
        return wanted, [f"--watch: {file} promises no samples/s: {why}; speeds are told alone"]
    return {**wanted, "promise": promise.to_dict(), **_measured_with(best)}, []


def _measured_with(best: Best) -> dict[str, Any]:
    """By which the job is known again."""
    workload = best.workload
    batch_size, told = (_number(workload.get(n)) for n in ("batch_size", "samples_per_step"))
    if told and batch_size:
        told = round(told * best.batch_size / batch_size)
    script = workload.get("model")
    return {
        "script": printable(str(script)) if script else None,
        "ranks": _number(workload.get("nproc_per_node")),
        "batch_size": best.batch_size,
        "optimizer": _number(workload.get("optimizer")),
        "samples_per_step": told,
    }


def _number(value: Any) -> int | None:
    """A file may hold anything."""
    return value if type(value) is int and value >= 0 else None


def _labels(best: Best) -> dict[str, str]:
    found: Mapping[str, Any] = {
        "study": best.provenance.get("study"),
        "model": best.workload.get("model"),
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def _next_step(file: str, best: Best | None) -> str:
    if best is None:
        return "`nccltune doctor` looks for what slows this machine"
    return (
        f"`nccltune verify {shlex.quote(file)}` measures whether these settings still pay here, "
        "`nccltune doctor` looks for what slows this machine"
    )
