"""The main path of `nccltune doctor`: look at the machine, time the job's parts, say what it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nccltune.cli.cache import cache_folder
from nccltune.cli.doctor_screen import Report, show
from nccltune.cli.machine_check import Look, look, look_alone
from nccltune.cli.speaking import say
from nccltune.cli.starting import Start, end_old, started, tell_setting
from nccltune.errors import StudyError
from nccltune.launch.leftovers import logs_folder
from nccltune.launch.libraries import Libraries
from nccltune.launch.protocol import Launcher
from nccltune.machine.gpu_links import Pcie, read_pcie
from nccltune.machine.gpus import Gpu, GpuProcess, processes, visible_gpus
from nccltune.machine.health import Watch
from nccltune.machine.topology import read_topology
from nccltune.output.machine_findings import all_findings
from nccltune.stats.step import Diagnosis
from nccltune.study.diagnosing import diagnose
from nccltune.study.options import SearchOptions
from nccltune.study.probing import probe_machine
from nccltune.study.survey import Survey, find_python

Probe = Mapping[str, Any] | None


def run_doctor(options: SearchOptions, *, as_json: bool, launch: bool = True) -> int:
    """Returns the exit code. Raises NccltuneError for everything that goes wrong."""
    report = _of_the_job(options) if launch else _of_the_machine(options)
    show(report, options.command, as_json=as_json)
    return 0


def _of_the_machine(options: SearchOptions) -> Report:
    found = look_alone(
        os.environ,
        find_python(options.python),
        options.nproc_per_node,
        device=options.device,
        allow_busy=options.allow_busy,
    )
    return Report(found)


def _of_the_job(options: SearchOptions) -> Report:
    """Nothing is launched beside other processes on the GPUs, unless the user knows of them: the
    report says who they are.
    """
    cache = cache_folder()
    end_old()
    with logs_folder() as logs, started(options, cache) as start:
        found = start.found
        tell_setting(found)
        busy = () if options.allow_busy else processes(found.gpus)
        examined = _Examined() if busy else _examine(start, logs, cache)
        for text in dict.fromkeys(start.launcher.warnings):
            say(f"note: {text}")
        return Report(_seen(found, examined, busy), found.task, examined.diagnosis)


@dataclass(frozen=True)
class _Examined:
    """What ranks gave. `pcie`: readings of the ranks' GPUs while they worked."""

    probe: Probe = None
    diagnosis: Diagnosis | None = None
    taints: tuple[str, ...] = ()
    pcie: tuple[tuple[Pcie, ...], ...] = ()


def _examine(start: Start, logs: Path, cache: Path) -> _Examined:
    found = start.found
    listener, watch = _Listener(found.gpus), Watch(found.gpus, found.options.allow_busy)
    try:
        probe = _probe(found, start.launcher, logs / "probe", cache)
        say("timing the job as it is, without its loader, without communication, on one rank")
        watch()
        diagnosis = diagnose(found, start.launcher, logs / "launch", progress=listener)
    except StudyError:
        _hint(found)
        raise
    return _Examined(probe, diagnosis, watch(), tuple(listener.readings))


class _Listener:
    """Tells how far the diagnosis is, and reads PCIe links when GPUs come from a window of the
    whole job: once a round, since opening NVML takes time that the ranks may want.
    """

    def __init__(self, gpus: tuple[Gpu, ...]) -> None:
        self._gpus = gpus
        self.readings: list[tuple[Pcie, ...]] = []

    def __call__(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "phase" and message["phase"] == "warmup":
            say("warming up")
        elif message["type"] == "round":
            say(f"round {message['round']} of at most {message['rounds']}")
        elif self._gpus and (message.get("window") or {}).get("part") == "whole":
            self.readings.append(read_pcie(self._gpus))


def _probe(found: Survey, launcher: Launcher, logs: Path, cache: Path) -> Probe:
    if found.task.workload.backend != "nccl":
        return None
    say("probe launch: asking NCCL what the ranks talk over")
    return probe_machine(found, launcher, logs, cache)


def _seen(found: Survey, examined: _Examined, busy: tuple[GpuProcess, ...]) -> Look:
    environ = os.environ
    use_gpus = found.task.workload.device == "cuda"
    topology = read_topology(environ, use_gpus=use_gpus)
    return look(
        environ,
        topology.with_pcie([gpu.index for gpu in found.gpus], examined.pcie),
        found.machine,
        found.site,
        visible_gpus(environ) if use_gpus else (),
        found.gpus,
        found=Libraries(nccl=found.machine.nccl, torch=found.machine.torch),
        disturbing=examined.taints,
        probe=examined.probe,
        busy=busy,
    )


def _hint(found: Survey) -> None:
    """Before ranks' failure is told: what is wrong with the machine may be its reason."""
    for finding in all_findings(_seen(found, _Examined(), ()).checked):
        if finding.severity != "note":
            say(f"{finding.severity}: {finding.fact}. Next: {finding.next}")
