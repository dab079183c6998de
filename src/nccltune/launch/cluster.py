"""Machines that ranks are on together, and how a process is started on every one of them: the two
that there are, a Slurm job (`slurm`) and hosts that ssh reaches (`ssh`), are used through this.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nccltune.launch.plan import LaunchPlan

_LAST_CHARACTERS = 1 << 14
_TELLING = re.compile(r"error|fatal|cannot|no module|killed", re.IGNORECASE)


@dataclass(frozen=True)
class Node:
    """`name` is what messages call it, `address` how the others reach it, `host` what Slurm, or
    what ssh says, calls the machine.
    """

    name: str
    address: str
    host: str


@dataclass(frozen=True)
class Command:
    """What is to be started on every node: `python` with these arguments, in this environment.
    `name` is by which it can be found again; `worker_path` has the worker's files here.
    """

    name: str
    python: str
    arguments: tuple[str, ...]
    env: Mapping[str, str]
    worker_path: Path

    @property
    def words(self) -> tuple[str, ...]:
        return (self.python, *self.arguments)


class Task(ABC):
    """A command that was started on every node."""

    @abstractmethod
    def ended(self, at: int) -> bool:
        """Whether nothing connects us any more with what was started on that node."""

    @abstractmethod
    def code(self) -> int | None:
        """An exit code once it has ended on all nodes, the first that is not 0 where there is any;
        None before.
        """

    @abstractmethod
    def output(self) -> str:
        """The end of what was printed on all nodes."""

    @abstractmethod
    def last_words(self, places: Sequence[int]) -> str:
        """What was said last of these nodes that tells something, on one line."""

    def there(self, at: int, text: str) -> str:
        """With what only that node has in place of names in braces."""
        return text

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Whether it ends everywhere within that time."""

    @abstractmethod
    def cancel(self) -> None:
        """Have it ended by force where it may still run, as far as there is somebody to ask."""

    @abstractmethod
    def end(self) -> None:
        """End what it has on this machine. All that was printed is in its log then."""


@dataclass(frozen=True)
class Cluster(ABC):
    """The nodes in their order; the first is the head. `here` is the one that the tuner runs on, by
    its place among them.
    """

    kind: ClassVar[str]
    """As in --launcher."""
    shares_files: ClassVar[bool]
    """Whether all nodes see the folder of the studies; else what is needed there travels."""

    nodes: tuple[Node, ...]
    here: int

    @property
    def head(self) -> Node:
        return self.nodes[0]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)

    @property
    def own_address(self) -> str:
        """By which the nodes reach the tuner."""
        return self.nodes[self.here].address

    @abstractmethod
    def start(self, command: Command, log: Path) -> Task:
        """Start it on every node. What it prints is in `log` at its end."""

    @abstractmethod
    def shown(self, command: Command) -> LaunchPlan:
        """What `start` runs on this machine; the command's environment is what it adds."""

    def worker_there(self, worker_path: Path) -> Path:
        """Where nodes find the worker's files that are here in `worker_path`."""
        return worker_path

    def logs_there(self, folder: Path, number: int) -> Path:
        """Where ranks write what is to be in `folder` here; `number` tells launches apart."""
        return folder


def task_name(tag: str) -> str:
    """By which what a launch has started can be found again."""
    return f"nccltune-{tag.rpartition('.')[2].replace('/', '-')}"


def last_words(text: str) -> str:
    """The last lines that tell something, on one line; empty where nothing was printed."""
    lines = text[-_LAST_CHARACTERS:].strip().splitlines()
    telling = [line for line in lines if _TELLING.search(line)] or lines
    return " | ".join(line.strip() for line in telling[-3:])[-400:]
