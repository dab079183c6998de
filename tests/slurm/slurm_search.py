"""A search in an allocation of the test's own Slurm."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from cluster import NODES, Cluster

from nodes_search import NodesSearch, nccltune, wait_for
from running import Cli


class Search(NodesSearch):
    """`nccltune search --launcher slurm`, started by salloc as a user would."""

    names = NODES
    named_by = "SLURMD_NODENAME"

    def __init__(self, slurm: Cluster, cli: Cli) -> None:
        super().__init__(cli)
        self.slurm = slurm
        self.nodes = len(NODES)
        """Of the allocation that the next search is started in."""

    def command(self, launcher: str) -> tuple[list[str], dict[str, str]]:
        # The job must not end with a node, or nothing could be told of it.
        allocated = ["salloc", f"--nodes={self.nodes}", "--no-kill", "--quiet"]
        return [*allocated, *nccltune(launcher)], dict(self.slurm.environment)

    def status(self, launch: int) -> Path:
        return self.study / f"logs/launch-{launch:04d}/rank1.status"

    def end_node(self, node: str) -> None:
        """As if it had lost its power: its daemon and all that runs there are gone."""
        self.slurm.kill_node(node)
        for pid in self.cli.processes():
            with contextlib.suppress(OSError):
                if self.is_on(pid, node):
                    os.kill(pid, 9)

    def assert_nothing_left(self) -> None:
        """Neither processes on a node nor steps in the queue."""
        super().assert_nothing_left()
        wait_for(lambda: self.slurm.run("squeue", "-h", "-s").strip() == "", "all steps to end")
