"""`search --split K`: tuners on the parts of an allocation, started and ended by one command."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from nccltune.cli.nodes import SLURM
from nccltune.cli.speaking import say
from nccltune.cli.starting import Start
from nccltune.errors import UsageError
from nccltune.launch.parts import PART, Followers, Split, tuner_argv
from nccltune.study.folder import StudyPaths
from nccltune.study.options import SearchOptions


def check_split(options: SearchOptions) -> None:
    """Raises UsageError where --split lacks what it needs."""
    if options.split is None:
        return
    if options.launcher not in SLURM:
        raise UsageError(
            f"--split {options.split} divides the nodes of a Slurm allocation: give --launcher "
            "slurm too"
        )
    if options.storage is None:
        raise UsageError(
            f"--split {options.split}: its tuners share one study: give --storage too, a journal "
            "file that all nodes see, or postgresql://USER@HOST/DATABASE"
        )


def take_part() -> bool:
    """Whether another tuner has started this one. Asked once: what is started here is not told."""
    return os.environ.pop(PART, None) is not None


@contextlib.contextmanager
def followers(start: Start, paths: StudyPaths, *, led: bool) -> Iterator[Followers | None]:
    """The tuners on the other parts, which end with this one. None where there are none to start.

    Raises: Interrupted.
    """
    split = start.split
    if split is None or led:
        yield None
        return
    for line in _told(split, paths):
        say(line)
    words = (sys.executable, "-m", "nccltune", *sys.argv[1:])
    started = Followers(split, words, os.environ, start.worker_path, paths.part_log, start.stop)
    try:
        started.begin()
        for line in started.news():
            say(f"note: {line}")
        yield started
    finally:
        if started.busy():
            say("ending the tuners of the other parts")
        started.end()


def part_lines(
    split: Split | None, worker_path: Path, command: Sequence[str]
) -> list[tuple[str, ...]]:
    """How the other tuners are started, with the password of a URL left out; none where there is
    no split.
    """
    if split is None:
        return []
    words = [word for word in command[1:] if word != "--dry-run"]
    shown = (sys.executable, "-m", "nccltune", *words)
    return [tuner_argv(part, worker_path, "TAG", shown) for part in split.others.values()]


def _told(split: Split, paths: StudyPaths) -> Iterator[str]:
    for number, part in split.parts.items():
        where = "this tuner" if number == split.own else f"output in {paths.part_log(number)}"
        nodes = "node" if len(part.nodes) == 1 else "nodes"
        yield f"part {number} of {len(split.parts)}: {nodes} {' '.join(part.names)}, {where}"
    yield (
        "trials that run at the same time disturb each other where they share a network or files; "
        "the confirmation runs alone"
    )
