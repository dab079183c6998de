"""An allocation divided among tuners."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

from marked import processes_with
from nccltune.errors import UsageError
from nccltune.launch import step
from nccltune.launch.cluster import Node
from nccltune.launch.parts import Followers, divide, tuner_argv
from nccltune.launch.slurm import Allocation, srun_argv
from nccltune.launch.stopping import StopFlag


def allocation(nodes: int, here: int = 0) -> Allocation:
    made = tuple(Node(f"n{at}", f"10.0.0.{at}", f"n{at}") for at in range(nodes))
    return Allocation(job="77", nodes=made, here=here)


@pytest.mark.parametrize("here", range(6))
def test_each_node_is_in_one_part_and_the_tuner_in_its_own(here: int) -> None:
    whole = allocation(6, here)
    split = divide(whole, 3)
    assert [node for part in split.parts.values() for node in part.nodes] == list(whole.nodes)
    assert [len(part.nodes) for part in split.parts.values()] == [2, 2, 2]
    own = split.parts[split.own]
    assert own.nodes[own.here] == whole.nodes[here]
    assert split.others.keys() == {1, 2, 3} - {split.own}
    for number, part in split.others.items():
        assert part.here == 0
        # As that part's own tuner will see it, on its first node.
        again = divide(allocation(6, 2 * (number - 1)), 3)
        assert (again.own, again.parts[again.own]) == (number, part)


def test_steps_of_a_part_are_on_its_nodes() -> None:
    part = divide(allocation(4, 3), 2).parts[2]
    words = srun_argv(part, "name", ("true",))
    assert {"--nodes=2", "--ntasks=2", "--nodelist=n2,n3"} <= set(words)
    started = tuner_argv(part, Path("worker"), "u.1/name", ("nccltune", "search"))
    assert {"--jobid=77", "--nodes=1", "--ntasks=1", "--nodelist=n2"} <= set(started)
    assert started[-3:] == ("--", "nccltune", "search")


def test_tuners_that_were_started_end_where_the_next_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "_TASK_SECONDS", 0.1)
    for name, does in {"srun": "exec /bin/sleep 600", "squeue": "exit 1", "scancel": ""}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    mark = uuid.uuid4().hex
    environ = {"PATH": str(tmp_path), "MY_MARK": mark}

    def log_of(number: int) -> Path:
        if number == 3:
            deadline = time.monotonic() + 60
            while not processes_with(mark) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert processes_with(mark), "the first has begun"
            raise OSError(28, "No space left on device")
        return tmp_path / "log"

    with pytest.raises(OSError, match="No space left"):
        Followers(divide(allocation(3), 3), ("true",), environ, tmp_path, log_of, StopFlag())
    assert processes_with(mark) == []


@pytest.mark.parametrize(
    ("nodes", "count", "words"),
    [
        (6, 4, "the 6 nodes .* into 4 equal parts; give --split 2 or 3 or 6, or ask Slurm for"),
        (3, 2, "the 3 nodes .* into 2 equal parts; give --split 3, or ask Slurm for a multiple of"),
        (
            1,
            2,
            "the 1 node of this allocation cannot .* equal parts; ask Slurm for a multiple of 2",
        ),
        (2, 3, "give --split 2, or ask Slurm for a multiple of 3 nodes"),
    ],
)
def test_unequal_parts_are_refused_with_the_numbers(nodes: int, count: int, words: str) -> None:
    with pytest.raises(UsageError, match=f"--split {count}: .*{words}"):
        divide(allocation(nodes), count)
