"""A search over two nodes under test, however these are reached: what it does, and what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

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

FAULTY = ("--model", "smalljobs:faulty", "--space", "inert.yaml", "--confirm-launches", "0")
ONE = ("--nproc-per-node", "1")
FAULTS = {
    "hang": ("timeout", ""),
    "leave": ("crashed", "rank 1 ended by itself with exit code 3"),
    "die": ("crashed", "rank 1 was ended by SIGKILL"),
}


class NodesSearch(ABC):
    """`nccltune search` over the nodes `names`."""

    names: tuple[str, str]
    named_by: str
    """The variable that has a node's name in what runs there."""

    def __init__(self, cli: Cli) -> None:
        self.cli = cli
        (cli.folder / "inert.yaml").write_text(SPACE)

    @property
    def study(self) -> Path:
        return self.cli.study(NAME)

    @abstractmethod
    def command(self, launcher: str) -> tuple[list[str], dict[str, str]]:
        """What starts the search, its own options to be added, and in which environment."""

    @abstractmethod
    def status(self, launch: int) -> Path:
        """Where rank 1 of that launch says where it is."""

    def start(self, *options: str, launcher: str, **env: str) -> subprocess.Popen[str]:
        command, needed = self.command(launcher)
        return subprocess.Popen(
            [*command, *options],
            cwd=self.cli.folder,
            env={**self.cli.env, **needed, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *options: str, launcher: str, **env: str) -> subprocess.CompletedProcess[str]:
        return finished(self.start(*options, launcher=launcher, **env))

    def trials(self) -> list[dict[str, Any]]:
        return self.cli.trials(NAME)

    def measurements(self) -> list[dict[str, Any]]:
        lines = (self.study / "measurements.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def await_measuring(self, launch: int, process: subprocess.Popen[str]) -> None:
        """Until the last rank of that launch is among its windows."""

        def measures() -> bool:
            assert process.poll() is None, process.communicate()
            try:
                return self.status(launch).read_text().startswith(("warmup", "measure"))
            except OSError:
                return False

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
            if words[1:3] == [b"-m", b"nccltune.worker.node"] and self.is_on(pid, node):
                return pid
        raise AssertionError(f"no agent on {node}")

    def is_on(self, pid: int, node: str) -> bool:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return f"{self.named_by}={node}".encode() in environment

    def assert_nothing_left(self) -> None:
        self.cli.assert_nothing_left()
        assert list(self.study.parent.glob(".*")) == []

    def check_a_whole_search(self, launcher: str, ranks: int) -> None:
        command = (
            *("--model", "smalljobs:tiny", "--space", "inert.yaml", "--trials", "3"),
            *("--nproc-per-node", str(ranks), "--confirm-launches", "0", "--search-anyway"),
        )
        run = self.run(*command, launcher=launcher)
        assert run.returncode == 0, run.stderr
        each = f"{ranks} rank{'s' if ranks == 2 else ''} each"
        assert f"nodes: {' '.join(self.names)}, {each}" in run.stderr
        trials, found = self.trials(), self.measurements()
        assert [trial["number"] for trial in trials] == [0, 1, 2]
        assert trials[0]["state"] == "complete"
        assert all(trial["state"] in ("complete", "pruned") for trial in trials)
        for measurement in found:
            assert measurement["launcher"] == launcher
            for window in measurement["result"]["windows"]:
                assert len(window["rank_seconds"]) == 2 * ranks
            assert sorted(measurement["result"]["rank_nodes"]) == [0] * ranks + [1] * ranks
        assert "\n# machine: 2 nodes of " in (self.study / "best.env").read_text()
        self.assert_nothing_left()
        again = self.run(*command, launcher=launcher)
        assert again.returncode == 0, again.stderr
        assert "is finished: 3 of 3 trials are there" in again.stderr

    def check_faults_of_the_other_node(
        self, launcher: str, names: Collection[str] = tuple(FAULTS)
    ) -> None:
        """One a trial, between trials without any."""
        faults = ",".join(f"{number}:{fault}" for number, fault in enumerate(names, start=1))
        total = str(len(names) + 2)
        run = self.run(*FAULTY, *ONE, "--trials", total, launcher=launcher, FAULTS=faults)
        assert run.returncode == 0, run.stderr
        trials, found = self.trials(), self.measurements()
        for number, (kind, words) in enumerate(map(FAULTS.__getitem__, names), start=1):
            failure = found[number]["failure"]
            assert (trials[number]["state"], failure["kind"]) == ("failed", kind), run.stderr
            assert failure["rank"] == 1 and words in failure["message"]
            assert failure["log"] == f"logs/launch-{number:04d}/rank1.log"
        assert trials[0]["state"] == "complete" and trials[-1]["state"] in ("complete", "pruned")
        assert len(trials) == len(names) + 2
        stack = (self.study / "logs/launch-0001/rank1.log").read_text()
        assert "_hang" in stack, "a silent rank is asked where it is, on its node"
        self.assert_nothing_left()

    def check_stops_with_its_name(
        self, process: subprocess.Popen[str], launcher: str, recover: Callable[[], None]
    ) -> None:
        """A search of 3 trials whose second node is gone; the same command goes on when it is
        back.
        """
        run = finished(process)
        assert run.returncode == 1, run.stderr
        assert f"node {self.names[1]} does not answer: " in run.stderr
        assert "what was measured is saved" in run.stderr
        done = self.trials()
        assert 1 <= len(done) < 3
        assert all(trial["state"] != "failed" for trial in done), run.stderr
        recover()
        self.assert_nothing_left()
        run = self.run(*FAULTY, *ONE, "--trials", "3", launcher=launcher)
        assert run.returncode == 0, run.stderr
        assert self.trials()[: len(done)] == done
        assert len(self.trials()) == 3
        self.assert_nothing_left()

    def check_repeated(self, process: subprocess.Popen[str]) -> None:
        """A search of 3 trials whose launch 1 was ended by others costs no trial."""
        run = finished(process)
        assert run.returncode == 0, run.stderr
        assert [trial["failure"] for trial in self.trials()] == [None, None, None]
        assert "failed before" in self.measurements()[1]["seconds"]
        self.assert_nothing_left()

    def check_agent_that_is_killed(self, launcher: str) -> None:
        """On the second node: the launch is repeated, once the nodes are clean."""
        process = self.start(*FAULTY, *ONE, "--trials", "3", launcher=launcher)
        self.await_measuring(1, process)
        os.kill(self.agent(self.names[1]), signal.SIGKILL)
        self.check_repeated(process)

    def check_tuner_that_ends(self, launcher: str, number: int, *, resumes: bool = True) -> None:
        """By a signal: nothing outlives it, and the same command goes on."""
        process = self.start(*FAULTY, *ONE, "--trials", "3", launcher=launcher)
        self.await_measuring(1, process)
        os.kill(self.tuner(), number)
        finished(process)
        self.cli.assert_nothing_left(10)
        assert len(self.trials()) == 1
        if not resumes:
            self.assert_nothing_left()
            return
        run = self.run(*FAULTY, *ONE, "--trials", "3", launcher=launcher)
        assert run.returncode == 0, run.stderr
        assert len(self.trials()) == 3
        self.assert_nothing_left()


def nccltune(launcher: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "nccltune", *JOB, "--launcher", launcher, *options]


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
