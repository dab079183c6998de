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


def _look(*tags: str, **environment: str) -> tuple[int, list[int]]:
    """In a process of its own: a node's variables are those of its step."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *tags],
        env={**os.environ, "SLURM_JOB_ID": JOB, **environment},
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


def test_over_hosts_it_is_so_in_one_network(stack: ExitStack) -> None:
    """An address means another machine in another one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        tag = {"NCCLTUNE_TAG": "0.other.1.2.3/7"}
        tag["NCCLTUNE_ADDRESS"] = f"127.0.0.1:{free.getsockname()[1]}"
        orphan = _process(stack, **tag, NCCLTUNE_NETWORK="net:[1]")
        elsewhere = _process(stack, **tag, NCCLTUNE_NETWORK="net:[2]")
        alone = _process(stack, **tag)
        assert _look(NCCLTUNE_NETWORK="net:[1]") == (1, [])
        assert orphan.wait(10) == -9
        assert elsewhere.poll() is None and alone.poll() is None


def test_folders_that_killed_agents_have_left_are_removed(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLTUNE_NETWORK", "net:[1]")
    living = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    free = stack.enter_context(socket.socket())
    free.bind(("127.0.0.1", 0))  # nobody listens there
    dead_at, living_at = (f"127.0.0.1:{each.getsockname()[1]}" for each in (free, living))
    marks = {
        "dead": {"owner": "a/1", "address": f"{dead_at} net:[1]"},
        "busy": {"owner": "a/2", "address": f"{living_at} net:[1]"},
        "of another network": {"owner": "a/2", "address": f"{dead_at} net:[2]"},
        "of the tag": {"owner": "a/3", "address": f"{living_at} net:[1]"},
        "of one machine": {"owner": "a/3"},
    }
    folders = {name: Path(stack.enter_context(_folder(each))) for name, each in marks.items()}
    remove_left(["a/3"])
    gone = [name for name, folder in folders.items() if not folder.exists()]
    assert gone == ["dead", "of the tag"]


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
