"""What doctor prints: findings first, then the step, then the facts; or all of it as JSON."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nccltune.cli import tables
from nccltune.cli.machine_check import Look
from nccltune.cli.speaking import tell
from nccltune.nccl.findings import shown
from nccltune.output.diagnosis import paragraph
from nccltune.output.findings import Finding
from nccltune.output.link_findings import fewer_ranks
from nccltune.output.machine_facts import machine_rows
from nccltune.output.machine_findings import all_findings
from nccltune.output.pair_findings import slowest_pair
from nccltune.stats.step import Diagnosis
from nccltune.study.definition import Task

_MOST = 8
_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold"}


@dataclass(frozen=True)
class Report:
    """`task` and `diagnosis` are None where no job was looked at, or none was run."""

    look: Look
    task: Task | None = None
    diagnosis: Diagnosis | None = None

    def findings(self) -> tuple[Finding, ...]:
        backend = "nccl" if self.task is None else self.task.workload.backend
        return all_findings(self.look.checked, self.diagnosis, backend=backend)


def show(report: Report, command: Sequence[str], *, as_json: bool) -> None:
    """On stdout. `command` is this one, whose options of the job go on to the next."""
    if as_json:
        tell(json.dumps(as_document(report), indent=2))
        return
    console = tables.console_on(sys.stdout)
    search = shlex.join(["nccltune", "search", *of_the_job(command)])
    _print_findings(console, report.findings(), search)
    if report.diagnosis is not None:
        console.print()
        console.print(Text(paragraph(report.diagnosis)))
        console.print()
        console.print(_ranks_table(report.diagnosis))
    console.print()
    console.print(tables.facts_table(facts(report)))


def as_document(report: Report) -> dict[str, Any]:
    """The result in plain values."""
    look, task, diagnosis = report.look, report.task, report.diagnosis
    checked = look.checked
    return {
        "findings": [finding.to_dict() for finding in report.findings()],
        "summary": None if diagnosis is None else paragraph(diagnosis),
        "job": None if task is None else task.to_dict(),
        "machine": look.machine.to_dict(),
        "topology": look.topology.to_dict(),
        "used": list(checked.used),
        "best_gpus": {str(count): list(chosen) for count, chosen in checked.best.items()},
        "nccl": None if checked.probe is None else dict(checked.probe),
        "site": {name: variable.value for name, variable in look.site.items()},
        "lint": [item.to_dict() for item in look.lint],
        "contaminations": [*checked.busy, *checked.taints],
        "diagnosis": None if diagnosis is None else diagnosis.to_dict(),
    }


def of_the_job(command: Sequence[str]) -> list[str]:
    """The options of the job, as they were given to this verb."""
    return [word for word in command[2:] if word not in ("--json", "--no-launch")]


def _print_findings(console: Console, findings: Sequence[Finding], search: str) -> None:
    if not findings:
        console.print(Text("Nothing is out of the ordinary."))
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for finding in findings[:_MOST]:
        step = finding.next.replace("nccltune search", search)
        text = Text.assemble(f"{finding.fact}.\n", ("next: ", "bold"), step)
        table.add_row(Text(finding.severity, style=_STYLES[finding.severity]), text)
    console.print(table)
    if len(findings) > _MOST:
        console.print(Text(f"and {len(findings) - _MOST} more: --json has all"))


def facts(report: Report) -> list[tuple[str, str]]:
    """What jobs run on, as rows of name and value."""
    look, checked = report.look, report.look.checked
    rows = machine_rows(look.topology, look.machine.cpu)
    if fewer := fewer_ranks(checked):
        rows.insert(2, ("ranks", fewer))
    if pair := slowest_pair(checked, report.diagnosis):
        rows.insert(2, ("pairs", pair))
    rows.append(("software", _software(look)))
    if report.task is not None:
        rows.append(("job", _job(report.task, look.machine.cores)))
    if checked.probe is not None:
        rows.append(("NCCL chose", _chosen(checked.probe)))
    site = [
        f"{shown(v.name)}={shown(v.value)}"
        for v in look.site.values()
        if v.name != "LD_LIBRARY_PATH"
    ]
    return [*rows, ("site variables", " ".join(site) or "none")]


def _software(look: Look) -> str:
    machine, newest = look.machine, look.topology.cuda
    nccl = (look.checked.probe or {}).get("version") or machine.nccl
    parts = [
        f"driver {machine.driver}{f' (CUDA {newest})' if newest else ''}" if machine.driver else "",
        f"torch {machine.torch or 'unknown'}{f' (CUDA {machine.cuda})' if machine.cuda else ''}",
        f"NCCL {nccl}" if nccl else "",
    ]
    return ", ".join(part for part in parts if part)


def _job(task: Task, cores: int) -> str:
    ranks, workload = task.nproc_per_node, task.workload
    share = cores / ranks
    return (
        f"{workload.model}, {ranks} {'rank' if ranks == 1 else 'ranks'} with {workload.backend}, "
        f"batch {task.batch_size}, {task.num_workers} loader workers and {share:g} "
        f"{'core' if share == 1 else 'cores'} a rank"
    )


def _chosen(probe: Any) -> str:
    transport = "+".join(probe["transport"]) or "no transport"
    parts = [
        transport,
        f"network {probe['network']}" if probe.get("network") else "",
        f"{probe['channels']} channels" if probe.get("channels") else "",
        "NVLS" if probe.get("nvls") else "",
    ]
    return ", ".join(part for part in parts if part)


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
