"""Before anything is started: what is here, what the job's Python can do, what exactly is asked."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

from nccltune.errors import UsageError
from nccltune.launch.ask import JobPython
from nccltune.launch.emulation import check_emulation, pinned_variables
from nccltune.launch.stopping import StopFlag
from nccltune.machine.facts import Machine, this_machine
from nccltune.machine.gpus import Gpu, processes, visible_gpus
from nccltune.machine.nics import socket_interfaces
from nccltune.nccl.findings import printable
from nccltune.nccl.site import SiteVariable
from nccltune.nccl.versions import parse_version
from nccltune.space import Facts, ResolvedSpace, Selection, load, resolve
from nccltune.space.facts import Data
from nccltune.study.definition import Task
from nccltune.study.options import SearchOptions
from nccltune.worker.spec import Workload

_RANKS_A_CORE = 8  # on the CPU; each rank takes some hundred MB


@dataclass(frozen=True)
class Survey:
    """The job and the machine, checked. `options` are complete now."""

    options: SearchOptions
    task: Task
    machine: Machine
    gpus: tuple[Gpu, ...]
    site: Mapping[str, SiteVariable]
    job: Mapping[str, Any]
    python: str
    notes: tuple[str, ...]
    nodes: tuple[Mapping[str, Any], ...] = ()
    """What each node is (`study.nodes`), where ranks are on several."""
    node_names: tuple[str, ...] = ()
    """For messages; records number the nodes."""
    node_words: Mapping[str, int] = field(default_factory=dict)
    """Every name and address by which a node is known, and its number."""


@dataclass(frozen=True)
class Here:
    """The machine as the job's ranks use it."""

    machine: Machine
    gpus: tuple[Gpu, ...]
    ranks: int
    backend: str
    notes: tuple[str, ...]

    def num_workers(self, options: SearchOptions) -> int:
        """DataLoader workers of a rank in the baseline."""
        workers = options.num_workers
        if workers is None:
            workers = min(8, max(1, self.machine.cores // self.ranks))
        return whole_number(options.fix.get("num_workers"), workers)


def look_here(
    options: SearchOptions,
    asked: int | None,
    device: str,
    job: Mapping[str, Any],
    environ: Mapping[str, str],
) -> Here:
    """`asked` is how many ranks are wanted, `job` what the job's Python can do. Raises UsageError
    for what cannot work here.
    """
    machine, gpus = this_machine(environ, use_gpus=device == "cuda")
    backend = _backend(options.backend, device, job)
    usable = int(job["gpus"])  # to torch; NVML may see more, or not be there
    ranks = _ranks(asked, device, min(len(gpus), usable) or usable)
    notes = tuple(check_emulation(options.emulate_hosts, backend, ranks))
    used = machine.with_job(job).of_ranks(ranks)
    return Here(used, gpus[:ranks], ranks, backend, notes)


def survey(
    options: SearchOptions, python: JobPython, cache: Path, stop: StopFlag, *, make: bool
) -> Survey:
    """Look and ask; starts nothing but one short helper process. `make`: the image files may be
    made in `cache` if they are wanted and missing.

    Raises: UsageError for whatever cannot work, before anything was written to the study, and
    HostFailed.
    """
    environ = python.base
    if options.backend == "gloo" or options.device == "cpu" and options.backend == "auto":
        check_emulation(options.emulate_hosts, "gloo", 0)  # known before anything is asked
    visible = visible_gpus(environ) if options.device != "cpu" else ()
    likely = options.complete("cuda" if visible else "cpu")
    data, folder = data_source(options.data)
    question = {
        "model": likely.model,
        "data": data,
        "folder": folder,
        "cache": str(cache),
        "make": make,
    }
    job = python.ask(question, stop)
    device, notes = device_of(options, visible, job, environ)
    if device != ("cuda" if visible else "cpu") and options.model is None:
        job = python.ask({**question, "model": options.complete(device).model}, stop)
    options = options.complete(device)
    here = look_here(options, options.nproc_per_node, device, job, environ)
    task = Task(
        workload=Workload(
            model=options.model or "",
            data=data,
            folder=job["folder"],
            image_size=options.image_size or 224,
            precision=options.precision if device == "cuda" or _autocasts(options) else "fp32",
            channels_last=options.channels_last,
            cudnn_benchmark=options.cudnn_benchmark,
            device=device,
            backend=here.backend,
            seed=options.seed,
        ),
        nproc_per_node=here.ranks,
        batch_size=whole_number(options.fix.get("batch_size"), options.batch_size or 64),
        num_workers=0 if data == "synthetic" else here.num_workers(options),
        python=options.python,
        emulate_hosts=options.emulate_hosts,
    )
    told = (*notes, *here.notes)
    site = pinned_variables(environ)
    return Survey(options, task, here.machine, here.gpus, site, job, python.python, told)


def resolve_space(survey: Survey, probe: Mapping[str, Any] | None) -> ResolvedSpace:
    """The space for this job on this machine; `probe` is what NCCL's log said, if it was asked."""
    task, options = survey.task, survey.options
    backend = task.workload.backend
    name = options.space or ("default" if backend == "nccl" else "cpu")
    known = probe or {}
    arguments = frozenset(survey.job["ddp_arguments"])
    if task.script is not None and task.script.facts is not None and not known.get("version"):
        backend = "gloo"  # whatever the machine has, this script did not use NCCL
    facts = Facts(
        backend="nccl" if backend == "nccl" else "gloo",
        world_size=task.ranks,
        nodes=task.emulate_hosts or task.nodes,
        probed=probe is not None or backend != "nccl",
        network=known.get("network"),
        transports=tuple(known.get("transport") or ()),
        nvlinks=all(survey.machine.nvlinks) if survey.machine.nvlinks else None,
        nccl=nccl_version(survey, probe),
        interfaces=_common_interfaces(survey),
        site=survey.site,
        ddp_arguments=arguments,
        cpus_per_rank=max(1, survey.machine.cores // task.nproc_per_node),
        batch_size=task.batch_size,
        num_workers=task.num_workers,
        data=_kind_of_data(task),
        no_place={} if task.script is None else task.script.no_place(arguments),
    )
    selection = Selection(
        fix=options.fix,
        only=options.only,
        exclude=options.exclude,
        allow_guarded=options.allow_guarded,
        allow_unsafe=options.allow_unsafe,
    )
    return resolve(load(name), facts, selection, name)


def _common_interfaces(survey: Survey) -> tuple[str, ...]:
    """Those that all nodes have: a variable names one for all ranks."""
    here = socket_interfaces(loopback=survey.task.emulate_hosts is not None)
    return tuple(n for n in here if all(n in node["interfaces"] for node in survey.nodes))


def _kind_of_data(task: Task) -> Data:
    if task.script is not None or ":" in task.workload.data:
        return "custom"
    return task.workload.data  # type: ignore[return-value]


def refuse_empty(space: ResolvedSpace) -> None:
    """Raises UsageError, with the reasons, when nothing is left that could be searched and no
    probe launch can add to it.
    """
    if not space.parameters and not space.may_gain:
        reasons = "".join(f"\n  {n.action}: {n.parameter}: {n.reason}" for n in space.notes)
        raise UsageError(f"nothing to search here; keep the defaults, or another --space{reasons}")


def nccl_version(survey: Survey, probe: Mapping[str, Any] | None) -> Version | None:
    """The runtime's, as its log says; the one that torch was built with while nobody has looked."""
    if survey.task.workload.backend != "nccl":
        return None
    version = (probe or {}).get("version") or survey.job["nccl_built"]
    return parse_version(version) if version else None


def find_python(given: str | None) -> str:
    """The job's interpreter; nccltune's own unless another is named. Raises UsageError."""
    if given is None:
        return sys.executable
    found = shutil.which(given)
    if found is None:
        raise UsageError(f"--python {given}: no such program, or it cannot be executed")
    return os.path.abspath(found)  # not resolved: a venv's python is a link that must stay one


def whole_number(fixed: object, otherwise: int) -> int:
    """A baseline value that --fix holds, where it is a number; the space judges the rest."""
    usable = isinstance(fixed, int) and not isinstance(fixed, bool)
    return fixed if usable else otherwise  # type: ignore[return-value]


def data_source(given: str) -> tuple[str, str | None]:
    """(kind, folder) of --data."""
    if given in ("images", "synthetic"):
        return given, None
    if not given.strip():
        raise UsageError("--data: is empty; give images, synthetic, a folder or pkg.module:factory")
    folder = Path(given)
    if ":" in given and not folder.exists():
        return given, None
    if not folder.exists():
        raise UsageError(
            f"--data {given}: no such folder; give images, synthetic, a folder with one folder of "
            "image files for each class, or package.module:factory"
        )
    if not folder.is_dir():
        raise UsageError(f"--data {given}: is a file; a folder of class folders is wanted")
    return "folder", str(folder.absolute())


def device_of(
    options: SearchOptions,
    visible: Sequence[Gpu],
    job: Mapping[str, Any],
    environ: Mapping[str, str],
) -> tuple[str, list[str]]:
    usable = bool(job["cuda"]) and int(job["gpus"]) > 0
    if options.device == "cpu":
        return "cpu", []
    if usable:
        return "cuda", []
    reason = no_gpu(environ)
    if visible:
        reason = (
            f"the driver shows {len(visible)} GPUs, but torch {job['torch']} "
            f"({'for CUDA ' + job['cuda_version'] if job['cuda_version'] else 'without CUDA'}) of "
            "the job's Python cannot use them"
        )
    if options.device == "cuda":
        raise UsageError(f"--device cuda: {reason}; --device cpu runs with gloo on the CPU")
    masked = environ.get("CUDA_VISIBLE_DEVICES")
    return "cpu", [f"{reason}: running on the CPU with gloo"] if visible or masked else []


def no_gpu(environ: Mapping[str, str]) -> str:
    """Why NVML shows no GPU to jobs of this environment."""
    masked = environ.get("CUDA_VISIBLE_DEVICES")
    if masked is not None:
        return f"no GPU is left by CUDA_VISIBLE_DEVICES={masked}"
    return "this machine shows no NVIDIA GPU"


def _backend(given: str, device: str, job: Mapping[str, Any]) -> str:
    backend = given if given != "auto" else ("nccl" if device == "cuda" else "gloo")
    if backend == "nccl" and device == "cpu":
        raise UsageError(
            "--backend nccl needs GPUs; on the CPU give --backend gloo or leave it out"
        )
    if not job[backend]:
        raise UsageError(f"--backend {backend}: torch {job['torch']} was built without it")
    return backend


def _ranks(given: int | None, device: str, gpus: int) -> int:
    if device == "cpu":
        most = _RANKS_A_CORE * (os.cpu_count() or 1)
        if given is not None and given > most:
            raise UsageError(
                f"--nproc-per-node {given}: at most {most} ranks on the {os.cpu_count()} cores here"
            )
        return given or 2
    if given is not None and given > gpus:
        raise UsageError(
            f"--nproc-per-node {given}: more ranks than GPUs ({gpus} visible); NCCL needs a GPU "
            "for each rank"
        )
    return given or gpus


def refuse_busy(gpus: Sequence[Gpu]) -> None:
    """Raises UsageError when other processes compute on these GPUs."""
    busy = processes(gpus)
    if not busy:
        return
    listed = "; ".join(
        f"GPU {p.gpu}: process {p.pid}{f' ({printable(p.name)})' if p.name else ''}"
        for p in busy[:8]
    )
    raise UsageError(
        f"other processes run on these GPUs ({listed}): measuring beside them is worth little and "
        "disturbs them; wait, choose free ones with CUDA_VISIBLE_DEVICES, or give --allow-busy"
    )


def _autocasts(options: SearchOptions) -> bool:
    return options.precision in ("bf16", "fp16")
