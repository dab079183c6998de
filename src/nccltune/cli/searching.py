"""The main path of `nccltune search`: survey, probe, resolve, search, write, tell."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nccltune.cli import tables
from nccltune.cli.reporters import open_reporter
from nccltune.cli.speaking import say
from nccltune.errors import Interrupted, UsageError
from nccltune.launch.environment import DIAGNOSTIC
from nccltune.launch.leftovers import end_tagged
from nccltune.launch.stopping import StopFlag
from nccltune.launch.torchrun import TorchrunLauncher
from nccltune.launch.worker_files import place_worker
from nccltune.space import ResolvedSpace
from nccltune.study.budget import Budget
from nccltune.study.definition import (
    Definition,
    command_line,
    default_name,
    new_tag,
    process_tag,
    refuse_changes,
)
from nccltune.study.folder import (
    StudyPaths,
    check_writable,
    has_records,
    locked,
    read_definition,
    set_aside,
)
from nccltune.study.options import SearchOptions
from nccltune.study.planner import Memory, Planner, stage_parameters
from nccltune.study.probing import cached_probe, fixed_env, probe_machine
from nccltune.study.proposals import Proposer
from nccltune.study.results import Summary, write_results
from nccltune.study.search import Ending, Search
from nccltune.study.store import Store
from nccltune.study.survey import (
    Survey,
    nccl_version,
    refuse_busy,
    refuse_empty,
    resolve_space,
    survey,
)
from nccltune.worker.images import image_folder
from nccltune.worker.spec import Settings

_SAMPLER = "tpe"


def cache_folder() -> Path:
    """Where image files and probes are kept between studies."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "nccltune"


def run_search(options: SearchOptions, *, dry_run: bool, as_json: bool) -> int:
    """Returns the exit code. Raises NccltuneError for everything that goes wrong."""
    stop, cache = StopFlag(), cache_folder()
    if options.study is not None:
        StudyPaths.of(options.studies_dir, options.study)  # mistakes that cost no waiting
    if not dry_run:
        check_writable(options.studies_dir)
    with stop.installed(), _worker_files() as worker_path:
        images = cache / "images"
        if options.data == "images" and not dry_run and not image_folder(images).exists():
            say(f"making the image files once, in {images} (half a minute on two cores)")
        found = survey(options, worker_path, images, stop, make=not dry_run)
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
        with locked(paths):
            return _search(found, paths, cache, stop, as_json=as_json)


def _search(found: Survey, paths: StudyPaths, cache: Path, stop: StopFlag, *, as_json: bool) -> int:
    """Begin or resume the study and carry it to its end. Called with the study's lock held."""
    stored = read_definition(paths) if paths.definition.exists() else None
    if stored is None and has_records(paths):
        raise UsageError(
            f"{paths.folder}: has records but no study.yaml that says of what; restore it, or give "
            "--new (the old folder is kept)"
        )
    name = stored["tag"] if stored else new_tag()
    tag = process_tag(paths, name)
    if leftovers := end_tagged(tag):
        say(f"ended {leftovers} processes that an earlier run of this study had left")
    if not found.options.allow_busy:  # after our own leftovers are gone
        refuse_busy(found.gpus)
    launcher = _launcher(found, paths, tag, stop)
    if stored is not None:
        space = resolve_space(found, stored["probe"])
        refuse_changes(paths, _definition(found, space, stored["probe"], name))
        place_worker(paths.worker)
    else:
        place_worker(paths.worker)
        probe = _probe(found, launcher, paths, cache)
        space = resolve_space(found, probe)
        refuse_empty(space)
        say(tables.space_text(space))
        stored = _definition(found, space, probe, name).write(paths).to_dict()
    store = Store(paths)
    ending = _measure(found, store, launcher, space, stored["probe"], stop)
    summary = Summary.of(store, stored)
    write_results(summary)
    _tell_ending(ending, found, paths, len(store.trials))
    if as_json:
        print(json.dumps({**tables.as_json(summary), "ended": ending}, indent=2))
    else:
        tables.print_summary(summary)
    return 0


def _definition(
    found: Survey, space: ResolvedSpace, probe: dict[str, Any] | None, tag: str
) -> Definition:
    return Definition(
        task=found.task,
        space=space,
        machine=found.machine,
        sampler=_SAMPLER,
        seed=found.options.seed,
        command=found.options.command,
        probe=probe,
        site={name: v.value for name, v in found.site.items() if name not in DIAGNOSTIC},
        tag=tag,
    )


def _measure(
    found: Survey,
    store: Store,
    launcher: TorchrunLauncher,
    space: ResolvedSpace,
    probe: dict[str, Any] | None,
    stop: StopFlag,
) -> Ending | None:
    """Run the search; returns how it ended, None when the user stopped it."""
    trials, done = found.options.trials or 40, len(store.trials)
    if done:
        verb = "is finished" if done >= trials else "goes on"
        say(f"study {store.paths.name} {verb}: {done} of {trials} trials are there")
    budget = Budget(trials, found.options.time_budget)
    proposer = Proposer(
        store.paths.journal, stage_parameters(space), store.trials, found.options.seed
    )
    memory = Memory(min(found.machine.gpu_memory_bytes, default=None), store.peak_memory)
    planner = Planner(space, proposer, found.task.batch_size, memory)
    with open_reporter(store, space, budget) as reporter:
        search = Search(
            store=store,
            launcher=launcher,
            planner=planner,
            task=found.task,
            space=space,
            nccl=nccl_version(found, probe),
            config_fields=frozenset(found.job["nccl_config_fields"]),
            settings=Settings(),
            budget=budget,
            reporter=reporter,
            stop=stop,
            site=found.site,
        )
        try:
            ending: Ending | None = search.run()
        except Interrupted:
            ending = None
    for text in dict.fromkeys([*launcher.warnings, *planner.rejected.values()]):
        say(f"note: {text}")
    return ending


def _probe(
    found: Survey, launcher: TorchrunLauncher, paths: StudyPaths, cache: Path
) -> dict[str, Any] | None:
    if found.task.workload.backend != "nccl":
        return None
    say("probe launch: asking NCCL what the ranks talk over")
    probe = probe_machine(found, launcher, paths.logs / "probe", cache)
    network = f", network {probe['network']}" if probe["network"] else ", no network between ranks"
    say(f"NCCL {probe['version']}: transport {'+'.join(probe['transport']) or 'none'}{network}")
    return probe


def _launcher(found: Survey, paths: StudyPaths, tag: str, stop: StopFlag) -> TorchrunLauncher:
    return TorchrunLauncher(
        python=found.python,
        nproc_per_node=found.task.nproc_per_node,
        backend=found.task.workload.backend,
        worker_path=paths.worker.absolute(),
        base=dict(os.environ),
        site=found.site,
        gpus=found.gpus,
        tag=tag,
        stop=stop,
        watch_memory=not found.options.allow_busy,
    )


@contextlib.contextmanager
def _worker_files() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nccltune-worker-") as name:
        yield place_worker(Path(name))


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


def _tell_ending(ending: Ending | None, found: Survey, paths: StudyPaths, done: int) -> None:
    """Raises Interrupted, with the command that goes on, when the user stopped the search."""
    if ending is None:
        raise Interrupted(
            f"stopped after {done} of {found.options.trials} trials, all saved in {paths.folder}\n"
            f"go on with: {command_line(found.options.command)}"
        )
    reasons: dict[Ending, str] = {
        "trials": f"done: {done} trials",
        "time": f"the time budget is spent after {done} of {found.options.trials} trials (a "
        "further one would end after it); the same command goes on",
        "exhausted": f"done: every configuration that is legal here has been measured ({done} "
        "trials)",
    }
    say(reasons[ending])


def _dry_run(found: Survey, paths: StudyPaths, cache: Path, *, as_json: bool) -> int:
    """Says what would be done; starts no ranks and writes nothing."""
    gloo = found.task.workload.backend != "nccl"
    stored = read_definition(paths) if paths.definition.exists() else None
    if stored and not found.options.new:
        probe = stored["probe"]
        store = Store(paths, repair=False)
    else:
        probe, store = cached_probe(found, cache), None
    space = resolve_space(found, None if gloo else probe)
    launcher = _launcher(found, paths, "TAG", StopFlag())
    plan = launcher.plan(fixed_env(found), paths.launch_logs(0), "127.0.0.1:PORT", "TOKEN", False)
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
    print("\neach launch, with what a trial sets added:")
    for line in plan.lines():
        print(f"  {line}")
    print(f"\nstudy {paths.folder}: {len(done)} of {trials} trials done; {forecast}")
    return 0
