"""One launch under NCCL's full log tells what the ranks of this machine talk over; kept in a cache
for the dry run of an equal machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nccltune.errors import StudyError
from nccltune.launch.alone import ask_alone
from nccltune.launch.nccl_logs import NcclLogs
from nccltune.launch.protocol import Launcher
from nccltune.nccl.values import spell
from nccltune.study.fingerprinting import DIGEST
from nccltune.study.folder import write_text
from nccltune.study.script_survey import look_at
from nccltune.study.survey import Survey, nccl_version


def fixed_env(survey: Survey) -> dict[str, str]:
    """Variables that --fix holds: they shape what NCCL does in the probe launch too."""
    fixed = survey.options.fix.items()
    version = nccl_version(survey, None)
    return {
        name: spell(name, value, version)
        for name, value in fixed
        if name.isupper() and value is not None and name not in survey.site
    }


def probe_key(survey: Survey) -> str:
    """The same where a probe would find the same: machine, ranks, interpreter, site, --fix."""
    parts = [
        survey.machine.digest(),
        survey.task.nproc_per_node,
        survey.python,
        sorted((v.name, v.value) for v in survey.site.values()),
        fixed_env(survey),
        *([survey.task.emulate_hosts] if survey.task.emulate_hosts else []),
        *(f"node {node[DIGEST]}" for node in survey.nodes),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def cached_probe(survey: Survey, cache: Path) -> dict[str, Any] | None:
    """What the last probe of an equal machine found; None where there was none."""
    try:
        found = json.loads((cache / "probes" / f"{probe_key(survey)}.json").read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def probe_script(survey: Survey, launcher: Launcher, log_dir: Path) -> dict[str, Any]:
    """Run the user's script as it is for some steps. What NCCL's log says of its ranks is in it as
    for our own job, where it uses NCCL; `script` has what was seen of the script.

    Raises: StudyError when it fails.
    """
    seen = look_at(survey, launcher, log_dir, fixed_env(survey))
    facts = NcclLogs(log_dir).facts() or {}
    facts.pop("choices", None)  # a line for each collective
    return {**facts, "script": seen}


def probe_machine(survey: Survey, launcher: Launcher, log_dir: Path, cache: Path) -> dict[str, Any]:
    """Start ranks, run a few collectives, read NCCL's log.

    Raises: StudyError when the ranks fail, with the reason found in their logs.
    """
    workload = survey.task.workload
    message = {"type": "probe", "backend": workload.backend, "device": workload.device}
    outcome = ask_alone(launcher, fixed_env(survey), log_dir, message, probe=True)
    if outcome.failure is not None:
        raise StudyError(
            f"ranks cannot talk to each other here ({outcome.failure.kind}): "
            f"{outcome.failure.message}\n{outcome.failure.excerpt}\nsee {outcome.failure.log}"
        )
    facts = NcclLogs(log_dir).facts()
    if facts is None or not facts["transport"] and survey.task.ranks > 1:
        raise StudyError(
            f"NCCL's log in {log_dir} names no transport between ranks; is NCCL_DEBUG redirected?"
        )
    hosts = survey.task.emulate_hosts
    if hosts and facts["nodes"] not in (None, hosts):  # NCCL before 2.20 does not tell
        raise StudyError(f"NCCL's log in {log_dir} counts {facts['nodes']} hosts, not {hosts}")
    _remember(survey, cache, facts)
    return facts


def _remember(survey: Survey, cache: Path, facts: Mapping[str, Any]) -> None:
    folder = cache / "probes"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / f"{probe_key(survey)}.json", json.dumps(facts, indent=1))
    except (OSError, StudyError):
        return  # only the dry run misses it
