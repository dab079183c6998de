"""How every verb that starts ranks begins: a warm host, the survey, a launcher; and how it ends."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nccltune.cli.cache import cache_folder
from nccltune.cli.nodes import OVER_NODES, cluster_of, on_nodes, worker_folder
from nccltune.cli.speaking import say
from nccltune.errors import Interrupted, StudyError
from nccltune.launch.ask import JobPython
from nccltune.launch.cluster import Cluster
from nccltune.launch.emulation import emulating
from nccltune.launch.environment import without_unpinned
from nccltune.launch.host import HostFailed, WarmHost
from nccltune.launch.leftovers import end_leftovers
from nccltune.launch.libraries import check_python
from nccltune.launch.node_hosts import WarmNodesLauncher
from nccltune.launch.nodes import NodesLauncher
from nccltune.launch.parts import Split, divide
from nccltune.launch.plan import LaunchSettings
from nccltune.launch.protocol import Launcher
from nccltune.launch.script import ScriptLauncher, ScriptRun, read_script
from nccltune.launch.slurm import Allocation
from nccltune.launch.stopping import StopFlag
from nccltune.launch.torchrun import TorchrunLauncher
from nccltune.launch.warm import WarmLauncher, early_variables
from nccltune.launch.worker_files import place_worker
from nccltune.machine.gpus import visible_gpus
from nccltune.nccl.findings import printable
from nccltune.nccl.site import site_variables
from nccltune.study.nodes import node_notes
from nccltune.study.options import SearchOptions
from nccltune.study.script_survey import check_script, survey_script
from nccltune.study.script_task import ScriptTask
from nccltune.study.survey import Survey, data_source, find_python, survey
from nccltune.worker.images import image_folder

AnyLauncher = TorchrunLauncher | WarmLauncher | ScriptLauncher | NodesLauncher


@dataclass(frozen=True)
class Start:
    """What a verb goes on with. `worker_path` holds the worker's files."""

    found: Survey
    launcher: AnyLauncher
    worker_path: Path
    stop: StopFlag
    cluster: Cluster | None = None
    """The nodes that ranks are on, where they are several machines."""
    split: Split | None = None
    """The parts of the allocation, where other tuners work on the others."""


def end_old(*places: Path) -> None:
    """End what killed runs have left, here and in these folders, and say so."""
    if leftovers := end_leftovers(cache_folder(), *places):
        say(f"ended {leftovers} processes that an earlier, killed run had left")


@contextlib.contextmanager
def started(
    options: SearchOptions,
    cache: Path,
    *,
    dry_run: bool = False,
    meanwhile: Callable[[], object] = lambda: None,
    stop: StopFlag | None = None,
    over_nodes: bool = False,
) -> Iterator[Start]:
    """The job and the machine looked at; signals are noted from here on. At the end nothing that
    was started is left. `meanwhile` is called while the host comes up. A dry run starts no host and
    makes no files. `over_nodes`: what the verb does can be done on several.

    Raises: NccltuneError for whatever cannot work.
    """
    own = without_unpinned(os.environ, options.unpin)
    stop, environ = stop or StopFlag(), emulating(own, options.emulate_hosts)
    cluster, options = cluster_of(options, environ, over_nodes=over_nodes)
    split = None
    if isinstance(cluster, Allocation) and options.split is not None:
        split = divide(cluster, options.split)
        cluster = split.parts[split.own]
    python = find_python(options.python)
    if options.script:
        check_script(options, environ)
    else:
        data_source(options.data)
    with stop.installed(), contextlib.ExitStack() as stack:
        shares = cluster is not None and cluster.shares_files and not dry_run
        shared = options.studies_dir if shares else None
        worker_path = place_worker(stack.enter_context(worker_folder(shared)))
        with nothing_begun("at the start"):
            if options.python is not None:
                check_python(python, environ, stop)
            host = None
            if _may_be_warm(options, environ) and not dry_run:
                say(f"asking {python} for its torch, its GPUs and the job (seconds)")
                host = _start_host(options, python, worker_path, environ)
                stack.callback(host.end)
            meanwhile()
            images = cache / "images"
            makes = options.data == "images" and not options.script and not dry_run
            if makes and not image_folder(images).exists():
                say(f"making the image files once, in {images} (half a minute on two cores)")
            job = JobPython(python, worker_path, environ, host)
            found, host = _surveyed(options, job, images, stop, make=not dry_run)
            if cluster is not None:
                found = on_nodes(found, cluster, worker_path, environ, stop, look=not dry_run)
        settings = launch_settings(found, worker_path, environ)
        launcher = _launcher(found, settings, stop, host, cluster)
        stack.callback(launcher.close)
        yield Start(found, launcher, worker_path, stop, cluster, split)


@contextlib.contextmanager
def nothing_begun(when: str) -> Iterator[None]:
    """Whoever interrupts this is told that there is nothing to go on with."""
    try:
        yield
    except Interrupted:
        raise Interrupted(f"interrupted {when}; nothing was begun") from None


def _may_be_warm(options: SearchOptions, environ: Mapping[str, str]) -> bool:
    """Not where the user says how torchrun is to start the script."""
    if options.launcher in ("torchrun", *OVER_NODES):
        return False
    return not options.script or read_script(options.script, environ).options is None


def plain_launcher(launcher: AnyLauncher, stop: StopFlag) -> Launcher:
    """One that starts ranks by plain torchrun commands."""
    if isinstance(launcher, WarmLauncher) and launcher.script is not None:
        return ScriptLauncher(launcher.settings, stop, launcher.script)
    if isinstance(launcher, (ScriptLauncher, NodesLauncher)):
        return launcher
    if isinstance(launcher, WarmNodesLauncher):
        return NodesLauncher(launcher.settings, stop, launcher.cluster)
    return TorchrunLauncher(launcher.settings, stop)


def script_run(script: ScriptTask) -> ScriptRun:
    return ScriptRun(script.command, scratch=script.scratch, allow_saves=script.allow_saves)


def _launcher(
    found: Survey,
    settings: LaunchSettings,
    stop: StopFlag,
    host: WarmHost | None,
    cluster: Cluster | None,
) -> AnyLauncher:
    if cluster is not None and found.options.launcher == cluster.kind:
        return WarmNodesLauncher(settings, stop, cluster=cluster)
    if cluster is not None:
        return NodesLauncher(settings, stop, cluster)
    script = found.task.script
    if script is not None:
        run = script_run(script)
        if host is None:
            return ScriptLauncher(settings, stop, run)
        return WarmLauncher(settings, stop, [host], run)
    if host is None:
        return TorchrunLauncher(settings, stop)
    return WarmLauncher(settings, stop, [host])


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

    def look(python: JobPython) -> Survey:
        if options.script:
            return survey_script(options, python, stop)
        return survey(options, python, images, stop, make=make)

    try:
        return look(job), job.host
    except HostFailed as error:
        plain = JobPython(job.python, job.worker_path, job.base)
        found = look(plain)  # may know a better reason
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
        nodes=found.task.nodes,
    )


def tell_setting(found: Survey) -> None:
    """Says what job is timed, and on what."""
    task, workload = found.task, found.task.workload
    for note in found.notes:
        say(note)
    if workload.backend == "gloo":
        say(
            f"backend gloo on {task.ranks} {workload.device.upper()} ranks: NCCL "
            "variables cannot act here, DDP and loader settings can"
        )
    if task.script is not None:
        _tell_script(task.script, found)
        return
    shape = "" if ":" in workload.data else f", {workload.image_size} pixels"
    say(
        f"job: {printable(workload.model)}, batch {task.batch_size} a rank{shape}, "
        f"data {printable(workload.data)}, {workload.precision}, "
        f"{task.num_workers} loader workers a rank"
    )
    _tell_machine(found)


def _tell_nodes(found: Survey) -> None:
    if found.nodes:
        task = found.task
        each = f"{task.nproc_per_node} rank{'' if task.nproc_per_node == 1 else 's'} each"
        say(f"nodes: {' '.join(found.node_names)}, {each}")
        for note in node_notes(found.nodes, found.node_names):
            say(f"note: {note}")


def _tell_script(script: ScriptTask, found: Survey) -> None:
    words = printable(shlex.join(script.command.words))
    say(
        f"job: {words}, on {found.task.nproc_per_node} ranks; each trial is a run of it that is "
        "ended when it was measured"
    )
    if script.placed:
        texts = found.task.placed_texts({})
        own = " ".join(f"{{{name}}}={printable(text)}" for name, text in texts.items())
        say(f"in the baseline {own} (--batch-size, --num-workers and --fix say what yours are)")
    if not script.allow_saves:
        say(
            "its checkpoints go below the folder of each trial in the study (--allow-saves: where "
            "the script puts them); experiment trackers are offline"
        )
    if not script.scratch:
        what = "files" if script.allow_saves else "other files"
        say(f"{what} that it writes are really written (--workdir scratch: in a copy)")
    _tell_machine(found)


def _tell_machine(found: Survey) -> None:
    _tell_nodes(found)
    say(f"machine: {found.machine.summary()}; torch {found.machine.torch}")
    if found.options.unpin:
        say(f"measured without {' '.join(found.options.unpin)}, which the site sets (--unpin)")
    pinned = [v for v in found.site.values() if v.name != "LD_LIBRARY_PATH"]
    if pinned and found.task.workload.backend == "nccl":
        listed = " ".join(printable(f"{v.name}={v.value}") for v in pinned)
        say(f"set by the site and left alone in every launch: {listed}")
