"""What `--launcher slurm` needs before ranks start: the allocation, and a look at its nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nccltune.cli.speaking import say
from nccltune.errors import StudyError, UsageError
from nccltune.launch.leftovers import temporary_folder
from nccltune.launch.looking import look_at_nodes
from nccltune.launch.slurm import Allocation, count_nodes, find_allocation
from nccltune.launch.stopping import StopFlag
from nccltune.study.nodes import check_nodes, fingerprints
from nccltune.study.options import SearchOptions
from nccltune.study.survey import Survey

SLURM = ("slurm", "slurm-torchrun")


def allocation_of(
    options: SearchOptions, environ: Mapping[str, str], *, over_nodes: bool
) -> Allocation | None:
    """None where ranks are all on this machine. Raises UsageError for what cannot be had."""
    if options.launcher not in SLURM:
        nodes = count_nodes(environ)
        if over_nodes and nodes > 1:
            say(
                f"this allocation has {nodes} nodes and this one alone is used; "
                "--launcher slurm uses all of them"
            )
        return None
    if not over_nodes:
        raise UsageError(
            f"--launcher {options.launcher}: only `search` works on several nodes yet; give "
            "another --launcher, which works on this machine"
        )
    if options.script:
        raise UsageError(
            "--launcher slurm: a script of your own cannot be measured on several nodes yet; give "
            "a --model of nccltune's own job, or search with the script on one node"
        )
    if options.emulate_hosts is not None:
        raise UsageError("--launcher slurm has hosts of its own; leave --emulate-hosts out")
    return find_allocation(environ)


def worker_folder(shared: Path | None) -> contextlib.AbstractContextManager[Path]:
    """A temporary place for the worker's files: in `shared`, which all nodes see, where given."""
    if shared is None:
        return temporary_folder()
    try:
        shared.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StudyError(f"{shared}: cannot be made: {error.strerror}") from error
    return temporary_folder(shared.absolute(), ".nccltune-")


def on_nodes(
    found: Survey,
    allocation: Allocation,
    worker_path: Path,
    environ: Mapping[str, str],
    stop: StopFlag,
    *,
    look: bool,
) -> Survey:
    """The survey for ranks on all nodes. `look`: each is asked what it is, what dead tuners have
    left there is ended, and what cannot work is refused.

    Raises: UsageError, StudyError naming a node that does not answer, Interrupted.
    """
    task = replace(found.task, nodes=len(allocation.nodes))
    words = _node_words(allocation)
    found = replace(found, task=task, node_names=allocation.names, node_words=words)
    if not look:
        return found
    folder = task.workload.folder
    paths = [str(worker_path), *([folder] if folder else [])]
    facts = look_at_nodes(allocation, found.python, worker_path, environ, stop, paths=paths)
    nodes = fingerprints(facts)
    gpus = task.workload.device == "cuda"
    check_nodes(nodes, allocation.names, task.nproc_per_node, gpus=gpus)
    return replace(found, nodes=nodes)


def _node_words(allocation: Allocation) -> dict[str, int]:
    """The number of the node for each name and address that is one node's alone."""
    found: dict[str, int] = {}
    several: set[str] = set()
    for at, node in enumerate(allocation.nodes):
        for word in {node.name, node.host, node.address}:
            if found.setdefault(word, at) != at:
                several.add(word)
    return {word: at for word, at in found.items() if word not in several}
