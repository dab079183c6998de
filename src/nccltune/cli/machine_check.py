"""What doctor sees without starting a rank: the machine, its settings, and who disturbs it."""

from __future__ import annotations

import platform
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nccltune.errors import UsageError
from nccltune.launch.libraries import Libraries, libraries_of
from nccltune.machine.facts import Machine, this_machine
from nccltune.machine.gpus import Gpu, GpuProcess, compute_capabilities, processes
from nccltune.machine.health import read, taints
from nccltune.machine.topology import Topology, best_gpus, read_topology
from nccltune.nccl.catalog import NEWEST
from nccltune.nccl.circumstances import Circumstances, MachineFacts
from nccltune.nccl.env_files import environment_files
from nccltune.nccl.findings import Finding, shown
from nccltune.nccl.lint import lint_files
from nccltune.nccl.site import SiteVariable, site_variables
from nccltune.nccl.versions import known_version, torch_release
from nccltune.output.machine_view import Checked, Told
from nccltune.study.survey import no_gpu

_WATCHED_SECONDS = 0.6  # the least time that tells who uses the cores is 0.5 s


@dataclass(frozen=True)
class Look:
    """The machine alone. `lint` is of the environment and NCCL's own files."""

    topology: Topology
    machine: Machine
    site: Mapping[str, SiteVariable]
    lint: tuple[Finding, ...]
    checked: Checked


def look_alone(
    environ: Mapping[str, str], python: str, ranks: int | None, *, device: str, allow_busy: bool
) -> Look:
    """In about a second; starts nothing but the job's Python, for its versions.

    Raises: UsageError when more ranks are asked for than there are GPUs.
    """
    began, use_gpus = time.monotonic(), device != "cpu"
    machine, gpus = this_machine(environ, use_gpus=use_gpus)
    before = read(gpus)
    topology = read_topology(environ, use_gpus=use_gpus)
    found = libraries_of(python, environ)
    if gpus and ranks is not None and ranks > len(gpus):
        raise UsageError(f"--nproc-per-node {ranks}: more ranks than GPUs ({len(gpus)} visible)")
    used = gpus[: ranks or len(gpus)]
    time.sleep(max(0.0, _WATCHED_SECONDS - (time.monotonic() - began)))
    disturbing = taints(before, read(gpus), allow_busy=allow_busy)
    machine = replace(machine, torch=found.torch, nccl=_plain(found.nccl))
    site = site_variables(environ)
    seen = look(environ, topology, machine, site, gpus, used, found=found, disturbing=disturbing)
    trouble = f", which {shown(found.trouble, 300)}" if found.trouble else ""
    torchless = None if found.torch else f"{shown(python, 200)}{trouble}"
    gpuless = no_gpu(environ) if device == "cuda" and not gpus else None
    return replace(seen, checked=replace(seen.checked, torchless=torchless, gpuless=gpuless))


def look(
    environ: Mapping[str, str],
    topology: Topology,
    machine: Machine,
    site: Mapping[str, SiteVariable],
    gpus: Sequence[Gpu],
    used: Sequence[Gpu],
    *,
    found: Libraries,
    disturbing: tuple[str, ...] = (),
    probe: Mapping[str, Any] | None = None,
    busy: Sequence[GpuProcess] = (),
) -> Look:
    """What was read, put together. `gpus` are all that jobs see, `used` those of the ranks."""
    version = known_version((probe or {}).get("version") or found.nccl) or NEWEST
    facts = _facts(topology, gpus) if gpus else None
    around = Circumstances(version, torch_release(found.torch), facts, site)
    files, unread = environment_files(environ)
    told = lint_files(files, around)
    occupied = {p.gpu for p in processes(gpus)} - {p.gpu for p in processes(used)}
    checked = Checked(
        machine=topology,
        used=tuple(gpu.index for gpu in used),
        best=_best(topology, len(used), occupied),
        probe=probe,
        taints=disturbing,
        busy=tuple(_named(process) for process in busy),
        lint=tuple(map(_told, told)),
        unread=unread,
        cuda=machine.cuda,
        nccl=machine.nccl,
    )
    return Look(topology, machine, site, told, checked)


def _told(found: Finding) -> Told:
    file = None if found.line is None else shown(found.file, 4096)
    return Told(found.severity, shown(found.name), found.message, file, found.line)


def _facts(topology: Topology, gpus: Sequence[Gpu]) -> MachineFacts:
    rdma, interfaces = topology.rdma, topology.interfaces
    return MachineFacts(
        capabilities=compute_capabilities(gpus) or None,
        nvlinks=tuple(gpu.nvlinks for gpu in gpus),
        rdma=None if rdma is None else tuple(dict.fromkeys(port.device for port in rdma)),
        verbs=topology.verbs,
        interfaces=None if interfaces is None else ("lo", *(i.name for i in interfaces)),
        architecture=platform.machine() or None,
        shm_bytes=topology.host.shm_bytes,
    )


def _best(topology: Topology, ranks: int, busy: Collection[int]) -> dict[int, tuple[int, ...]]:
    """For the job's ranks, and for 2, 4, 8 ... as far as there are more GPUs."""
    most = len(topology.gpus)
    counts = {ranks, *(1 << n for n in range(1, 6) if 1 << n < most)}
    return {n: best_gpus(topology, n, busy) for n in sorted(counts) if 1 <= n <= most}


def _named(process: GpuProcess) -> str:
    name = f" ({shown(process.name)})" if process.name else ""
    return f"GPU {process.gpu}: process {process.pid}{name}"


def _plain(nccl: str | None) -> str | None:
    """NCCL's version as it is spoken of: a library gives its code, 22809."""
    version = known_version(nccl)
    return None if version is None else str(version)
