"""What is left on a node by launches of this job, and what a node is."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nccltune.worker.look import _usable_gpus, facts, remove_left

JOB = f"test-{os.getpid()}"
LOOK = (
    "import json, sys; from nccltune.worker.look import end_left; "
    "print(json.dumps(end_left(sys.argv[1:])))"
)


def _process(stack: ExitStack, **environment: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, **environment})
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _look(*tags: str) -> tuple[int, list[int]]:
    """In a process of its own: a node's variables are those of its step."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *tags],
        env={**os.environ, "SLURM_JOB_ID": JOB},
        stdout=subprocess.PIPE,
        check=True,
    )
    met, left = json.loads(done.stdout)
    return met, left


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_what_has_the_tag_of_a_launch_is_ended_and_nothing_else(stack: ExitStack) -> None:
    ours = _process(stack, NCCLTUNE_TAG="0.other.1.2.3/7")
    other = _process(stack, NCCLTUNE_TAG="0.other.1.2.3/8")
    assert _look("0.other.1.2.3/7") == (1, [])
    assert ours.wait(10) == -9 and other.poll() is None


def test_what_a_dead_tuner_of_this_job_has_left_is_ended(stack: ExitStack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as living, socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nobody listens there
        dead_at, living_at = (f"127.0.0.1:{each.getsockname()[1]}" for each in (free, living))
        tag = {"NCCLTUNE_TAG": "0.other.1.2.3/7"}
        orphan = _process(stack, **tag, SLURM_JOB_ID=JOB, NCCLTUNE_ADDRESS=dead_at)
        busy = _process(stack, **tag, SLURM_JOB_ID=JOB, NCCLTUNE_ADDRESS=living_at)
        elsewhere = _process(stack, **tag, SLURM_JOB_ID="x", NCCLTUNE_ADDRESS=dead_at)
        assert _look() == (1, [])
        assert orphan.wait(10) == -9
        assert busy.poll() is None and elsewhere.poll() is None


def test_folders_that_killed_agents_have_left_are_removed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as living, socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nobody listens there
        dead_at, living_at = (f"127.0.0.1:{each.getsockname()[1]}" for each in (free, living))
        with ExitStack() as stack:
            dead, busy, of_tag, unmarked = (
                Path(stack.enter_context(_folder(marks)))
                for marks in (
                    {"owner": "a/1", "address": dead_at},
                    {"owner": "a/2", "address": living_at},
                    {"owner": "a/3", "address": living_at},
                    {"owner": "a/3"},
                )
            )
            remove_left(["a/3"])
            there = [each.exists() for each in (dead, busy, of_tag, unmarked)]
            assert there == [False, True, False, True]


@contextlib.contextmanager
def _folder(marks: dict[str, str]) -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="nccltune-", dir="/tmp")
    for name, text in marks.items():
        (Path(folder) / name).write_text(text)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1,2", "SLURM_GPUS_ON_NODE": "8"}, 3),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"SLURM_GPUS_ON_NODE": "8"}, 8),
        ({}, None),
    ],
)
def test_gpus_are_those_of_the_job(given: dict[str, str], count: int | None) -> None:
    assert _usable_gpus(given) == count


def test_a_node_is_told_without_its_name() -> None:
    found = facts()
    assert found["cores"] >= 1 and found["torch"] and found["python"]
    assert socket.gethostname() not in json.dumps(found).split('"')
