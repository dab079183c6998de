"""The main path of `nccltune search`: a warm host, survey, then the study or a dry run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from nccltune.cli import tables
from nccltune.cli.speaking import say
from nccltune.errors import StudyError
from nccltune.launch.ask import JobPython
from nccltune.launch.host import HostFailed, WarmHost
from nccltune.launch.leftovers import end_leftovers, own_folder
from nccltune.launch.plan import LaunchSettings
from nccltune.launch.stopping import StopFlag
from nccltune.launch.torchrun import TorchrunLauncher
from nccltune.launch.warm import WarmLauncher, early_variables
from nccltune.launch.worker_files import place_worker
from nccltune.machine.gpus import visible_gpus
from nccltune.nccl.site import site_variables
from nccltune.study.definition import default_name, refuse_changes
from nccltune.study.folder import (
    StudyPaths,
    check_writable,
    has_records,
    locked,
    read_definition,
    set_aside,
)
from nccltune.study.options import SearchOptions
from nccltune.study.probing import cached_probe, fixed_env
from nccltune.study.store import Store
from nccltune.study.survey import (
    Survey,
    data_source,
    find_python,
    refuse_empty,
    resolve_space,
    survey,
)
from nccltune.worker.images import image_folder


def cache_folder() -> Path:
    """Where image files and probes are kept between studies."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "nccltune"


def run_search(options: SearchOptions, *, dry_run: bool, as_json: bool) -> int:
    """Returns the exit code. Raises NccltuneError for everything that goes wrong."""
    stop, cache = StopFlag(), cache_folder()
    if options.study is not None:
        # mistakes that need cost no waiting
        named = StudyPaths.of(options.studies_dir, options.study)
        if not dry_run and named.lock.exists():
            with locked(named):
                pass
    if not dry_run:
        check_writable(options.studies_dir)
        if leftovers := end_leftovers():
            say(f"ended {leftovers} processes that an earlier, killed run had left")
    environ, python = dict(os.environ), find_python(options.python)
    data_source(options.data)
    with stop.installed(), _worker_files() as worker_path, contextlib.ExitStack() as stack:
        host = None
        if options.launcher != "torchrun" and not dry_run:
            say(f"asking {python} for its torch, its GPUs and the job (seconds)")
            host = _start_host(options, python, worker_path, environ)
            stack.callback(host.end)
        # here, so that what it imports is imported while the host comes up
        from nccltune.cli.studying import carry_out

        images = cache / "images"
        if options.data == "images" and not dry_run and not image_folder(images).exists():
            say(f"making the image files once, in {images} (half a minute on two cores)")
        job = JobPython(python, worker_path, environ, host)
        found, host = _surveyed(options, job, images, stop, make=not dry_run)
        task = found.task
        name = options.study or default_name(
            task.workload.model, task.workload.backend, task.nproc_per_node
        )
        paths = StudyPaths.of(options.studies_dir, name)
        _tell_setting(found)
        # a mistake in the space or in --fix is told before anything
        refuse_empty(resolve_space(found, None))
        if dry_run:
            return _dry_run(found, paths, cache, as_json=as_json)
        if options.new:
            _set_aside(paths)
        settings = launch_settings(found, worker_path, environ)
        launcher = (
            TorchrunLauncher(settings, stop)
            if host is None
            else WarmLauncher(settings, stop, [host])
        )
        stack.callback(launcher.close)
        with locked(paths):
            private = {str(worker_path.absolute()): "worker"}
            return carry_out(found, paths, launcher, cache, stop, private, as_json=as_json)


def _start_host(
    options: SearchOptions, python: str, worker_path: Path, environ: Mapping[str, str]
) -> WarmHost:
    gpus = () if options.device == "cpu" else visible_gpus(environ)
    ranks = options.nproc_per_node or len(gpus) or 2
    early = early_variables({}, environ, ranks)
    return WarmHost(python, worker_path, environ, site_variables(environ), early)


def _surveyed(
    options: SearchOptions, job: JobPython, images: Path, stop: StopFlag, *, make: bool
) -> tuple[Survey, WarmHost | None]:
    """The survey, and the host where it works: it falls back to plain torchrun commands where the
    user leaves that open.
    """
    try:
        return survey(options, job, images, stop, make=make), job.host
    except HostFailed as error:
        plain = JobPython(job.python, job.worker_path, job.base)
        found = survey(options, plain, images, stop, make=make)  # may know a better reason
        if options.launcher == "warm":
            raise StudyError(f"--launcher warm: {error}") from error
        say(f"{error}\nso every launch is a plain torchrun command, which costs more time")
        return found, None


def launch_settings(found: Survey, worker_path: Path, environ: Mapping[str, str]) -> LaunchSettings:
    return LaunchSettings(
        python=found.python,
        nproc_per_node=found.task.nproc_per_node,
        backend=found.task.workload.backend,
        worker_path=worker_path.absolute(),
        base=environ,
        site=found.site,
        gpus=found.gpus,
        watch_memory=not found.options.allow_busy,
    )


@contextlib.contextmanager
def _worker_files() -> Iterator[Path]:
    folder = own_folder()
    try:
        yield place_worker(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _set_aside(paths: StudyPaths) -> None:
    if not (paths.definition.exists() or has_records(paths)):
        return
    with locked(paths):
        moved = set_aside(paths)
    say(f"the old study is kept as {moved}")


def _tell_setting(found: Survey) -> None:
    task, workload = found.task, found.task.workload
    for note in found.notes:
        say(note)
    if workload.backend == "gloo":
        say(
            f"backend gloo on {task.nproc_per_node} {workload.device.upper()} ranks: NCCL "
            "variables cannot act here, DDP and loader settings can"
        )
    shape = "" if ":" in workload.data else f", {workload.image_size} pixels"
    say(
        f"job: {workload.model}, batch {task.batch_size} a rank{shape}, data {workload.data}, "
        f"{workload.precision}, {task.num_workers} loader workers a rank"
    )
    say(f"machine: {found.machine.summary()}; torch {found.machine.torch}")
    pinned = [v for v in found.site.values() if v.name != "LD_LIBRARY_PATH"]
    if pinned and workload.backend == "nccl":
        listed = " ".join(f"{v.name}={v.value}" for v in pinned)
        say(f"set by the site and left alone in every launch: {listed}")


def _dry_run(found: Survey, paths: StudyPaths, cache: Path, *, as_json: bool) -> int:
    """Says what would be done; starts no ranks and writes nothing."""
    gloo = found.task.workload.backend != "nccl"
    stored = read_definition(paths) if paths.definition.exists() else None
    if stored and not found.options.new:
        from nccltune.cli.studying import definition_of

        probe = stored["probe"]
        refuse_changes(paths, definition_of(found, resolve_space(found, probe), probe))
        store = Store(paths, repair=False)
    else:
        probe, store = cached_probe(found, cache), None
    space = resolve_space(found, None if gloo else probe)
    settings = launch_settings(found, paths.worker, dict(os.environ))
    plan = TorchrunLauncher(settings, StopFlag()).plan(
        fixed_env(found), paths.launch_logs(0).absolute(), "127.0.0.1:PORT", "TOKEN", tag="TAG"
    )
    done = list(store.trials) if store else []
    trials = found.options.trials or 40
    forecast = tables.forecast(done, trials, found.options.time_budget)
    if as_json:
        document = {
            "study": paths.name,
            "space": space.to_dict(),
            "probed": space.probed,
            "launch": {"argv": list(plan.argv), "environment": dict(plan.added)},
            "trials": trials,
            "done": len(done),
            "forecast": forecast,
        }
        print(json.dumps(document, indent=2))
        return 0
    print(tables.space_text(space))
    if not space.probed:
        print("\nnot probed: no launch on an equal machine has asked NCCL yet, so variables whose")
        print("use depends on transport or network are still listed")
    print(
        "\neach launch as a torchrun command, with what a trial sets added (ranks that start warm"
    )
    print("are forked with the same variables):")
    for line in plan.lines():
        print(f"  {line}")
    print(f"\nstudy {paths.folder}: {len(done)} of {trials} trials done; {forecast}")
    return 0
