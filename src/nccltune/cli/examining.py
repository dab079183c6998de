"""The main path of `nccltune doctor`: look at the machine, time the job's parts, say what it is."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from nccltune.cli import tables
from nccltune.cli.speaking import say
from nccltune.cli.starting import cache_folder, end_old, started, tell_setting
from nccltune.launch.leftovers import logs_folder
from nccltune.launch.protocol import Launcher
from nccltune.output import words
from nccltune.output.diagnosis import findings, paragraph
from nccltune.stats.step import Diagnosis
from nccltune.study.diagnosing import diagnose
from nccltune.study.options import SearchOptions
from nccltune.study.probing import probe_machine
from nccltune.study.survey import Survey, refuse_busy

Probe = Mapping[str, Any] | None


def run_doctor(options: SearchOptions, *, as_json: bool) -> int:
    """Returns the exit code. Raises NccltuneError for everything that goes wrong."""
    cache = cache_folder()
    end_old()
    with logs_folder() as logs, started(options, cache) as start:
        found, launcher = start.found, start.launcher
        tell_setting(found)
        if not options.allow_busy:
            refuse_busy(found.gpus)
        probe = _probe(found, launcher, logs / "probe", cache)
        say("timing the job as it is, without its loader, without communication, on one rank")
        diagnosis = diagnose(found, launcher, logs / "launch", progress=_tell)
        warnings = tuple(dict.fromkeys(launcher.warnings))
    for text in warnings:
        say(f"note: {text}")
    search = shlex.join(["nccltune", "search", *_job(options.command)])
    if as_json:
        print(json.dumps(as_document(found, probe, diagnosis), indent=2))
    else:
        _print_result(found, probe, diagnosis, search)
    return 0


def _probe(found: Survey, launcher: Launcher, logs: Path, cache: Path) -> Probe:
    if found.task.workload.backend != "nccl":
        return None
    say("probe launch: asking NCCL what the ranks talk over")
    return probe_machine(found, launcher, logs, cache)


def _tell(message: Mapping[str, Any]) -> None:
    if message["type"] == "phase" and message["phase"] == "warmup":
        say("warming up")
    elif message["type"] == "round":
        say(f"round {message['round']} of at most {message['rounds']}")


def as_document(found: Survey, probe: Probe, diagnosis: Diagnosis) -> dict[str, Any]:
    """The result in plain values."""
    backend = found.task.workload.backend
    return {
        "job": found.task.to_dict(),
        "machine": found.machine.to_dict(),
        "nccl": None if probe is None else dict(probe),
        "site": {name: variable.value for name, variable in found.site.items()},
        "diagnosis": diagnosis.to_dict(),
        "summary": paragraph(diagnosis),
        "findings": findings(diagnosis, backend=backend),
    }


def _job(command: Sequence[str]) -> list[str]:
    """The options of the job, as they were given to this verb."""
    return [word for word in command[2:] if word != "--json"]


def _print_result(found: Survey, probe: Probe, diagnosis: Diagnosis, search: str) -> None:
    console = tables.console_on(sys.stdout)
    console.print(tables.facts_table(facts(found, probe)))
    console.print()
    console.print(_ranks_table(diagnosis))
    console.print()
    console.print(Text(paragraph(diagnosis)))
    told = findings(diagnosis, backend=found.task.workload.backend)
    for finding in told:
        console.print()
        console.print(Text(finding.replace("nccltune search", search)))
    if not told:
        console.print(Text("Nothing is out of the ordinary."))


def facts(found: Survey, probe: Probe) -> list[tuple[str, str]]:
    """What the job runs on, as rows of name and value."""
    machine, ranks = found.machine, found.task.nproc_per_node
    kinds = sorted(set(zip(machine.gpus, machine.gpu_memory_bytes, strict=True)))
    gpus = ", ".join(
        f"{machine.gpus.count(name)}x {name}, {words.size(memory)}" for name, memory in kinds
    )
    rows = [
        ("GPUs", gpus or "none in use"),
        ("driver", machine.driver or "-"),
        ("torch", f"{machine.torch}{f', CUDA {machine.cuda}' if machine.cuda else ''}"),
        ("ranks", f"{ranks} with {found.task.workload.backend}"),
        ("CPU", f"{machine.cpu}, {machine.cores} cores: {machine.cores / ranks:g} a rank"),
        ("loader", f"{found.task.num_workers} workers a rank"),
    ]
    if probe is not None:
        transport = "+".join(probe["transport"]) or "none"
        network = f", network {probe['network']}" if probe["network"] else ""
        rows += [("NCCL", str(probe["version"])), ("transport", f"{transport}{network}")]
    site = [f"{v.name}={v.value}" for v in found.site.values() if v.name != "LD_LIBRARY_PATH"]
    return [*rows, ("site variables", " ".join(site) or "none")]


def _ranks_table(diagnosis: Diagnosis) -> Table:
    """Shares of the step by rank; the columns of GPUs only where there are some."""
    titles = ["rank", "data", "compute", "communication"]
    gpu_titles = ["host", "kernels", "NVML"] if diagnosis.gpu_busy else []
    columns = [*titles, *gpu_titles, "alone", "awaiting data"]
    table = tables.table_of(*((title, "right") for title in columns))
    for rank, shares in enumerate(diagnosis.ranks):
        cells = [_percent(s) for s in (shares.data, shares.compute, shares.communication)]
        if diagnosis.gpu_busy:
            seen = diagnosis.utilization[rank : rank + 1]
            cells += [_percent(shares.host), _percent(diagnosis.gpu_busy[rank])]
            cells.append(f"{seen[0]:.0f}%" if seen else "-")
        times = (diagnosis.compute_seconds[rank], diagnosis.data_wait_seconds[rank])
        cells += [f"{1000 * seconds:.1f} ms" for seconds in times]
        table.add_row(str(rank), *(Text(cell) for cell in cells))
    return table


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f}%"
