"""A search in an allocation of two nodes, and what is left of it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster import Cluster

from running import Cli

NAME = "nodes"
JOB = (
    *("search", "--device", "cpu", "--batch-size", "4"),
    *("--image-size", "16", "--data", "synthetic", "--study", NAME),
)
SPACE = """
version: 1
parameters:
  GLOO_INERT: {target: env, choices: [null, 1, 2, 3, 4, 5, 6, 7, 8, 9], default: null}
"""
"""Each trial has ranks of its own, since a variable of the process is searched."""


class Search:
    """`nccltune search --launcher slurm`, started by salloc as a user would."""

    def __init__(self, slurm: Cluster, cli: Cli) -> None:
        self.slurm, self.cli = slurm, cli
        (cli.folder / "inert.yaml").write_text(SPACE)

    @property
    def study(self) -> Path:
        return self.cli.study(NAME)

    def start(
        self, *options: str, launcher: str = "slurm-torchrun", nodes: int = 2, **env: str
    ) -> subprocess.Popen[str]:
        command = (sys.executable, "-m", "nccltune", *JOB, "--launcher", launcher, *options)
        return subprocess.Popen(
            # The job must not end with a node, or nothing could be told of it.
            ["salloc", f"--nodes={nodes}", "--no-kill", "--quiet", *command],
            cwd=self.cli.folder,
            env={**self.cli.env, **self.slurm.environment, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *options: str, launcher: str = "slurm-torchrun", nodes: int = 2, **env: str
    ) -> subprocess.CompletedProcess[str]:
        return finished(self.start(*options, launcher=launcher, nodes=nodes, **env))

    def end_node(self, node: str) -> None:
        """As if it had lost its power: its daemon and all that runs there are gone."""
        self.slurm.kill_node(node)
        mine = f"SLURMD_NODENAME={node}".encode()
        for pid in self.cli.processes():
            with contextlib.suppress(OSError):
                if mine in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    os.kill(pid, 9)

    def trials(self) -> list[dict[str, Any]]:
        return self.cli.trials(NAME)

    def measurements(self) -> list[dict[str, Any]]:
        lines = (self.study / "measurements.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def await_measuring(self, launch: int, process: subprocess.Popen[str]) -> None:
        """Until the last rank of that launch is among its windows."""
        status = self.study / f"logs/launch-{launch:04d}/rank1.status"

        def measures() -> bool:
            assert process.poll() is None, process.communicate()
            return status.exists() and status.read_text().startswith(("warmup", "measure"))

        wait_for(measures, f"launch {launch} to measure")

    def tuner(self) -> int:
        """The process id of the search itself."""
        for pid in self.cli.processes():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[1:4] == [b"-m", b"nccltune", b"search"]:
                return pid
        raise AssertionError("the search does not run")

    def agent(self, node: str) -> int:
        """The process id of what looks after the launch on that node."""
        for pid in self.cli.processes():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if words[1:3] == [b"-m", b"nccltune.worker.node"]:
                if f"SLURMD_NODENAME={node}".encode() in environment:
                    return pid
        raise AssertionError(f"no agent on {node}")

    def assert_nothing_left(self) -> None:
        """Neither processes on a node nor steps in the queue."""
        self.cli.assert_nothing_left()
        wait_for(lambda: self.slurm.run("squeue", "-h", "-s").strip() == "", "all steps to end")
        assert list(self.study.parent.glob(".*")) == []


def finished(
    process: subprocess.Popen[str], seconds: float = 600
) -> subprocess.CompletedProcess[str]:
    try:
        out, err = process.communicate(timeout=seconds)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_for(what: Callable[[], bool], name: str, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, f"waited in vain for {name}"
        time.sleep(0.02)
