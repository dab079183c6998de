"""What several nodes need before ranks start: which they are, and a look at each."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nccltune.cli.speaking import say
from nccltune.errors import StudyError, UsageError
from nccltune.launch.cluster import Cluster
from nccltune.launch.hosts import find_hosts, read_hosts
from nccltune.launch.leftovers import temporary_folder
from nccltune.launch.looking import look_at_nodes
from nccltune.launch.slurm import count_nodes, find_allocation
from nccltune.launch.stopping import StopFlag
from nccltune.study.nodes import check_nodes, fingerprints
from nccltune.study.options import SearchOptions
from nccltune.study.survey import Survey

SLURM, _SSH = ("slurm", "slurm-torchrun"), ("ssh", "ssh-torchrun")
OVER_NODES = (*SLURM, *_SSH)


def cluster_of(
    options: SearchOptions, environ: Mapping[str, str], *, over_nodes: bool
) -> tuple[Cluster | None, SearchOptions]:
    """The nodes, None where ranks are all on this machine; and the options with what a file of
    hosts says of ranks. Raises UsageError for what cannot be had.
    """
    launcher, ssh = options.launcher, options.launcher in _SSH
    if (options.hosts is not None) != ssh:
        raise UsageError(
            f"--launcher {launcher}: needs --hosts, a list like a,b,c or a file"
            if ssh
            else "--hosts is for --launcher ssh (or ssh-torchrun); give that too"
        )
    if options.ssh != "ssh" and not ssh:
        raise UsageError("--ssh is for --launcher ssh; give that too, and --hosts")
    if launcher not in OVER_NODES:
        nodes = count_nodes(environ)
        if over_nodes and nodes > 1:
            say(
                f"this allocation has {nodes} nodes and this one alone is used; "
                "--launcher slurm uses all of them"
            )
        return None, options
    _refuse_what_needs_one_node(options, over_nodes=over_nodes)
    if options.hosts is None:
        return find_allocation(environ), options
    hosts = read_hosts(options.hosts)
    each = options.nproc_per_node or hosts.slots
    return find_hosts(hosts, options.ssh, environ), replace(options, nproc_per_node=each)


def _refuse_what_needs_one_node(options: SearchOptions, *, over_nodes: bool) -> None:
    given = f"--launcher {options.launcher}"
    if not over_nodes:
        raise UsageError(
            f"{given}: only `search` works on several nodes yet; give another --launcher, which "
            "works on this machine"
        )
    if options.script:
        raise UsageError(
            f"{given}: a script of your own cannot be measured on several nodes yet; give a "
            "--model of nccltune's own job, or search with the script on one node"
        )
    if options.emulate_hosts is not None:
        raise UsageError(f"{given} has hosts of its own; leave --emulate-hosts out")


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
    cluster: Cluster,
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
    task = replace(found.task, nodes=len(cluster.nodes))
    words = _node_words(cluster)
    found = replace(found, task=task, node_names=cluster.names, node_words=words)
    if not look:
        return found
    folder = task.workload.folder
    paths = [str(worker_path)] if cluster.shares_files else []
    paths += [folder] if folder else []
    facts = look_at_nodes(cluster, found.python, worker_path, environ, stop, paths=paths)
    nodes = fingerprints(facts)
    gpus = task.workload.device == "cuda"
    check_nodes(nodes, cluster.names, task.nproc_per_node, gpus=gpus)
    return replace(found, nodes=nodes)


def _node_words(cluster: Cluster) -> dict[str, int]:
    """The number of the node for each name and address that is one node's alone."""
    found: dict[str, int] = {}
    several: set[str] = set()
    for at, node in enumerate(cluster.nodes):
        for word in {node.name, node.host, node.address}:
            if found.setdefault(word, at) != at:
                several.add(word)
    return {word: at for word, at in found.items() if word not in several}
