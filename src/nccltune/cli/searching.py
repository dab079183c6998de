"""The main path of `nccltune search`: a warm host, survey, then the study or a dry run."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nccltune.cli import documents, tables
from nccltune.cli.cache import cache_folder
from nccltune.cli.earlier import from_machine_before
from nccltune.cli.speaking import say, tell
from nccltune.cli.splitting import check_split, followers, part_lines, take_part
from nccltune.cli.starting import (
    Start,
    end_old,
    launch_settings,
    plain_launcher,
    script_run,
    started,
    tell_setting,
)
from nccltune.errors import UsageError
from nccltune.launch.cluster import Cluster
from nccltune.launch.emulation import emulating
from nccltune.launch.nodes import NodesLauncher
from nccltune.launch.plan import LaunchPlan, LaunchSettings
from nccltune.launch.script import ScriptLauncher
from nccltune.launch.stopping import StopFlag
from nccltune.launch.torchrun import TorchrunLauncher
from nccltune.nccl.findings import printable
from nccltune.study.definition import Definition, default_name, is_another_machine, refuse_changes
from nccltune.study.folder import (
    StudyPaths,
    check_writable,
    first_free,
    has_records,
    locked,
    read_definition,
    set_aside,
    write_text,
)
from nccltune.study.generations import refuse_retuned
from nccltune.study.options import SearchOptions
from nccltune.study.probing import cached_probe, fixed_env
from nccltune.study.sampling.extras import require
from nccltune.study.sampling.linear_algebra import on_one_thread
from nccltune.study.script_survey import refuse_no_place, with_facts, with_scripts_python
from nccltune.study.store import Store, has_results
from nccltune.study.survey import Survey, refuse_empty, resolve_space
from nccltune.study.together import Sharing
from nccltune.study.urls import without_password


def run_search(options: SearchOptions, *, dry_run: bool, as_json: bool) -> int:
    """Returns the exit code. Raises NccltuneError for everything that goes wrong."""
    check_split(options)
    led = take_part()
    if options.script:
        options = with_scripts_python(options, os.environ)
    require(f"--sampler {options.sampler}")
    if options.pruner != "own":
        from nccltune.cli.studying import pruning_of

        pruning_of(options)
    on_one_thread()
    cache = cache_folder()
    if options.storage is not None and (options.new or options.accept_machine):
        given = "--new" if options.new else "--accept-machine"
        raise UsageError(f"{given}: the storage keeps the study; give another --study name")
    if options.study is not None and options.storage is None:
        # mistakes that need cost no waiting
        named = StudyPaths.of(options.studies_dir, options.study)
        if not dry_run and named.lock.exists():
            with locked(named):
                pass
    shared = None
    if dry_run and options.storage is not None:
        from nccltune.study.shared_storage import check_storage

        check_storage(options.storage)
    if not dry_run:
        check_writable(options.studies_dir)
        if options.storage is not None:
            from nccltune.study.shared_storage import open_storage

            shared = open_storage(options.storage)
        end_old(options.studies_dir)
    with started(
        options, cache, dry_run=dry_run, meanwhile=_import_the_rest, over_nodes=True
    ) as start:
        found, task = start.found, start.found.task
        name = options.study or default_name(
            task.workload.model, task.workload.backend, task.nproc_per_node, task.nodes
        )
        paths = StudyPaths.of(options.studies_dir, name)
        tell_setting(found)
        # a mistake in the space or in --fix is told before anything
        first = resolve_space(found, None)
        refuse_no_place(found, first)
        refuse_empty(first)
        if dry_run:
            return _dry_run(start, paths, cache, as_json=as_json)
        if options.new:
            _set_aside(paths)
        elif options.accept_machine:
            _accept_machine(found, paths)
        from nccltune.cli.studying import carry_out

        # Of several tuners each has a folder of its own.
        with contextlib.ExitStack() as stack:
            if shared is None:
                stack.enter_context(locked(paths))
            else:
                paths = stack.enter_context(first_free(options.studies_dir, name))
            if paths.name != name:
                say(f"another tuner works in {name}; this one's records are in {paths.folder}")
            refuse_retuned(paths)
            private = {str(start.worker_path.absolute()): "worker"}
            plain = plain_launcher(start.launcher, start.stop)
            sharing = None
            if shared is not None:
                others = stack.enter_context(followers(start, paths, led=led))
                sharing = Sharing(shared, name, others, led)
            summary, ending = carry_out(
                *(found, paths, start.launcher, plain, cache, start.stop, private),
                earlier=partial(from_machine_before, paths),
                sharing=sharing,
            )
    if as_json:
        document = {**documents.as_json(summary), "ended": ending}
        tell(json.dumps(document, indent=2))
    else:
        tables.print_summary(summary)
    return 0


def _import_the_rest() -> None:
    """Optuna and what else a study takes, while the host comes up."""
    import nccltune.cli.studying  # noqa: F401


def _plan(
    found: Survey, settings: LaunchSettings, paths: StudyPaths, cluster: Cluster | None
) -> LaunchPlan:
    """A launch of the baseline."""
    script, logs = found.task.script, paths.launch_logs(0).absolute()
    if cluster is not None:
        over = NodesLauncher(settings, StopFlag(), cluster)
        there, address = cluster.logs_there(logs, 0), f"{cluster.own_address}:PORT"
        return over.whole_plan(over.plan(fixed_env(found), there, address, "TOKEN", tag="TAG"))
    if script is None:
        launcher = TorchrunLauncher(settings, StopFlag())
        return launcher.plan(fixed_env(found), logs, "127.0.0.1:PORT", "TOKEN", tag="TAG")
    starts = ScriptLauncher(settings, StopFlag(), script_run(script))
    return starts.plan(
        fixed_env(found),
        logs,
        "127.0.0.1:PORT",
        "TOKEN",
        tag="TAG",
        placed=found.task.placed_texts({}),
    )


def _set_aside(paths: StudyPaths) -> None:
    if not (paths.definition.exists() or has_records(paths)):
        return
    with locked(paths):
        moved = set_aside(paths)
    say(f"the old study is kept as {moved}")


def _wanted_here(found: Survey, stored: Mapping[str, Any]) -> Definition:
    """What the study would be about if it were begun here."""
    from nccltune.cli.studying import definition_of

    here = with_facts(found, stored["probe"])
    return definition_of(here, resolve_space(here, stored["probe"]), stored["probe"])


def _accept_machine(found: Survey, paths: StudyPaths) -> None:
    """Set the study aside where it is of another machine; the one that is begun names it."""
    if not paths.definition.exists():
        return
    stored = read_definition(paths)
    if not is_another_machine(stored, _wanted_here(found, stored)):
        return
    with locked(paths):
        moved = set_aside(paths)
    paths.folder.mkdir(exist_ok=True)
    write_text(paths.before, f"{moved.name}\n")
    say(f"its trials are of another machine: they are kept as {moved}, and the study begins anew")


def _dry_run(start: Start, paths: StudyPaths, cache: Path, *, as_json: bool) -> int:
    """Says what would be done; starts no ranks and writes nothing."""
    found, worker_path = start.found, start.worker_path
    gloo = found.task.workload.backend != "nccl"
    stored = read_definition(paths) if paths.definition.exists() else None
    wanted = _wanted_here(found, stored) if stored and has_results(paths) else None
    anew = found.options.new
    if stored and wanted and found.options.accept_machine:
        anew = is_another_machine(stored, wanted)
    if stored and wanted and not anew:
        refuse_changes(paths, wanted)
        probe = stored["probe"]
        found = with_facts(found, probe)
        store = Store(paths, repair=False)
    else:
        # What a script has is seen in its own first launch.
        probe, store = None if found.task.script else cached_probe(found, cache), None
    space = resolve_space(found, None if gloo and not found.task.script else probe)
    refuse_empty(space)
    environ = emulating(os.environ, found.options.emulate_hosts)
    settings = launch_settings(found, worker_path if found.task.script else paths.worker, environ)
    plan = _plan(found, settings, paths, start.cluster)
    tuners = part_lines(start.split, paths.worker, found.options.command)
    done = list(store.trials) if store else []
    trials = found.options.trials or 40
    forecast = tables.forecast(done, trials, found.options.time_budget)
    if as_json:
        document = {
            "study": paths.name,
            "space": space.to_dict(),
            "probed": space.probed,
            "launch": plan.document(),
            **({"tuners": [list(line) for line in tuners]} if tuners else {}),
            "trials": trials,
            "done": len(done),
            "forecast": forecast,
        }
        tell(json.dumps(document, indent=2))
        return 0
    tell(tables.space_text(space))
    if not space.probed:
        tell("\nnot probed: no launch on an equal machine has asked NCCL yet, so what depends on")
        tell("transport or network is not settled")
    _tell_how(start.cluster, found.options.launcher)
    for line in plan.lines():
        tell(f"  {printable(line)}")
    if tuners:
        tell("\nthe tuners of the other parts are started by:")
    for words in tuners:
        tell(f"  {printable(shlex.join(words))}")
    if found.options.storage is not None:
        where = without_password(found.options.storage)
        tell(f"\nstorage {where}: not opened; its name and place are as they can be")
    tell(f"\nstudy {paths.folder}: {len(done)} of {trials} trials done; {forecast}")
    return 0


def _tell_how(cluster: Cluster | None, launcher: str) -> None:
    """Before the lines of a launch."""
    if cluster is None:
        tell("\neach launch as a torchrun command, with what a trial sets added (ranks that start")
        tell("warm are forked with the same variables):")
        return
    if cluster.shares_files:
        tell("\neach launch is a job step with a torchrun command on every node, with what a trial")
        tell("sets added; {port}, {is_host} and {address} are filled in there:")
    else:
        tell("\neach launch is a torchrun command on every node, with what a trial sets added;")
        tell("{port}, {is_host}, {address} and {nccltune_folder} are filled in there. The command,")
        tell("the variables and the worker's files go through the stdin of these processes:")
    if launcher == cluster.kind:
        tell("(warm ranks are forked with the same variables, by hosts that are started once)")
