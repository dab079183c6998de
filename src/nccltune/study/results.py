"""The files that a study ends with: best.env, best.yaml, best-batch.yaml."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import nccltune
from nccltune.errors import NccltuneError
from nccltune.output.best import Best
from nccltune.output.env_file import env_file
from nccltune.output.words import settings
from nccltune.space import changes
from nccltune.study.fingerprinting import with_digest
from nccltune.study.folder import StudyPaths, study_names, write_text
from nccltune.study.outcomes import Outcome, larger_outcome, own_outcome, verdict_dict
from nccltune.study.records import Measurement
from nccltune.study.summary import Summary


def read_all(studies_dir: Path) -> tuple[list[Summary], list[str]]:
    """The studies below a folder, newest first, and why others cannot be read."""
    summaries, unreadable = [], []
    for name in study_names(studies_dir):
        try:
            summary = Summary.read(StudyPaths(studies_dir / name))
            summary.check()
            summaries.append(summary)
        except NccltuneError as error:
            unreadable.append(str(error))
    return summaries, unreadable


def write_results(summary: Summary) -> list[str]:
    """Write best.env, best.yaml and, where a larger batch is faster, best-batch.yaml.

    Returns: the names of the files written, in that order; none before the baseline is measured.
    """
    paths, own = summary.paths, own_outcome(summary)
    if own is None:
        return []
    best = _best(summary, own)
    write_text(paths.best_env, env_file(best.env, _header(summary, own)))
    write_text(paths.best_yaml, best.to_yaml())
    written = [paths.best_env.name, paths.best_yaml.name]
    larger = larger_outcome(summary)
    if larger is None:
        paths.best_batch_yaml.unlink(missing_ok=True)
        return written
    write_text(paths.best_batch_yaml, _best(summary, larger).to_yaml())
    return [*written, paths.best_batch_yaml.name]


def _best(summary: Summary, outcome: Outcome) -> Best:
    measurement = summary.given_to(outcome.configuration)
    given, baseline = measurement.effective, summary.baseline
    assert baseline is not None
    return Best(
        env=_with_effect(summary, measurement),
        ddp=given["ddp"],
        loader=given["loader"],
        batch_size=given["batch_size"],
        workload=_workload(summary, measurement),
        verdict=verdict_dict(summary, outcome),
        machine=summary.definition["machine"],
        fingerprint=_fingerprint(summary),
        provenance={
            "nccltune": nccltune.__version__,
            "study": summary.paths.name,
            "trial": outcome.trial.number,
            "trials": len(summary.trials),
            "date": datetime.now().astimezone().isoformat(timespec="seconds"),
            "command": summary.definition["command"],
            "search_value": outcome.trial.value,
            "baseline_value": baseline.value,
            "unit": "samples/s of all ranks; search values rank candidates, they are no gain",
            "nccl": _nccl_version(summary),
            **({"unpinned": summary.unpinned} if summary.unpinned else {}),
        },
    )


def _fingerprint(summary: Summary) -> dict[str, Any]:
    """That of the study, with what its baseline has shown of the model."""
    found = summary.definition.get("fingerprint")
    if not found or summary.baseline is None:
        return {}
    result = summary.measurement(summary.baseline).result or {}
    seen = {"parameters": result.get("parameters"), "buckets": result.get("bucket_bytes")}
    return with_digest({**found, **{n: value for n, value in seen.items() if value is not None}})


def _workload(summary: Summary, measurement: Measurement) -> dict[str, Any]:
    """What was timed; of a script also which of its loaders the loader arguments are for."""
    workload = {**summary.definition["workload"], "launcher": measurement.launcher}
    script = (summary.definition.get("probe") or {}).get("script")
    if script is None:
        return workload
    placed = measurement.effective.get("placed") or {}
    return {**workload, "placed": dict(placed), "training_loader": list(script["training"])}


def _with_effect(summary: Summary, measurement: Measurement) -> dict[str, str]:
    """The variables of a measurement, without searched ones that NCCL never came to read."""
    silent = summary.without_effect(measurement)
    return {n: v for n, v in measurement.effective["env"].items() if n not in silent}


def _which(summary: Summary, own: Outcome) -> str:
    """Whose settings they are; where the defaults are kept, what was compared with them."""
    if own.trial.number:
        return f"trial {own.trial.number} of {len(summary.trials)}"
    count = len(summary.trials)
    kept = f"the defaults, after {count} trial{'' if count == 1 else 's'}"
    answer = summary.own
    if answer is None or answer.verdict is None or answer.trial is None:
        return kept
    compared = settings(changes(answer.configuration, summary.space.baseline))
    return f"{kept}; compared with them was trial {answer.trial}: {compared}"


def _nccl_version(summary: Summary) -> str | None:
    probe = summary.definition.get("probe") or {}
    version = probe.get("version")
    return None if version is None else str(version)


def _header(summary: Summary, own: Outcome) -> list[str]:
    machine = summary.definition["machine"]
    gpus = [f"{machine['gpus'].count(n)}x {n}" for n in dict.fromkeys(machine["gpus"])]
    hardware = ", ".join(gpus) or f"{machine['cores']} CPU cores, no GPU"
    if nodes := summary.definition["workload"].get("nodes"):
        hardware = f"{nodes} nodes of {hardware}"
    lines = [
        f"nccltune {nccltune.__version__}: study {summary.paths.name}, {_which(summary, own)}",
        f"date: {datetime.now().astimezone().isoformat(timespec='seconds')}",
        f"command: {summary.definition['command']}",
        f"machine: {hardware}; driver {machine['driver'] or 'none'}; "
        f"NCCL {_nccl_version(summary) or 'none'}; torch {machine['torch']}",
        f"verdict: {own.line}",
    ]
    if not _with_effect(summary, summary.given_to(own.configuration)):
        lines.append("no variable to set: keep NCCL's defaults")
        if own.trial.number:
            lines.append("what this trial changed is in best.yaml, for nccltune.load")
    if unpinned := summary.unpinned:
        lines.append(
            f"measured without {' '.join(unpinned)}: take that out of the job's environment"
        )
    return lines
