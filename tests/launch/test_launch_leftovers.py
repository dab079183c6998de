"""Processes that an earlier tuner left, found by their tag."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nccltune.errors import StudyError
from nccltune.launch.leftovers import TAG, end_tagged, is_running, tagged_processes
from nccltune.study.definition import new_tag


@contextmanager
def sleeper(**environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has started for certain, so that /proc shows its own environment."""
    with subprocess.Popen(
        ["sh", "-c", "trap '' TERM; echo up; sleep 600 & wait"],
        env={"PATH": os.environ["PATH"], **environment},
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        try:
            yield process
        finally:
            os.killpg(process.pid, 9) if process.poll() is None else None


def test_only_the_processes_of_that_study_are_ended() -> None:
    ours, other = new_tag(), new_tag()
    with sleeper(**{TAG: ours}) as left, sleeper(**{TAG: other}) as stranger, sleeper() as free:
        deadline = time.monotonic() + 20  # until the shell has started its sleep
        while len(found := tagged_processes(ours)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert left.pid in found
        assert len(found) == 2
        assert end_tagged(ours) == 2
        left.wait(30)
        assert tagged_processes(ours) == []
        assert is_running(stranger.pid)
        assert is_running(free.pid)
        assert stranger.pid in tagged_processes(other)


def test_it_is_waited_for_until_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    tag, kill, began = new_tag(), os.kill, time.monotonic()

    def late(pid: int, number: int) -> None:
        if time.monotonic() > began + 0.3:  # as one that first gives its memory back
            kill(pid, number)

    with sleeper(**{TAG: tag}) as left:
        began = time.monotonic()
        monkeypatch.setattr(os, "kill", late)
        assert end_tagged(tag) == 2
        assert not is_running(left.pid)
        assert time.monotonic() > began + 0.3


def test_those_that_cannot_be_ended_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tag = new_tag()
    with sleeper(**{TAG: tag}) as left, monkeypatch.context() as patch:
        patch.setattr("nccltune.launch.leftovers._SECONDS", 0.1)
        patch.setattr(os, "kill", lambda *_: None)
        with pytest.raises(StudyError, match=r"^processes of this study cannot be ended: ") as told:
            end_tagged(tag)
        assert is_running(left.pid)
    assert str(left.pid) in str(told.value)


def test_the_tag_must_match_whole() -> None:
    tag = new_tag()
    with sleeper(**{TAG: f"{tag}0"}), sleeper(**{f"X{TAG}": tag}):
        assert tagged_processes(tag) == []
        assert end_tagged(tag) == 0


def test_we_never_find_ourselves(monkeypatch: pytest.MonkeyPatch) -> None:
    tag = new_tag()
    # /proc shows the environment of the start, so a child of ours has to look for itself.
    code = (
        "from nccltune.launch.leftovers import end_tagged, tagged_processes\n"
        f"print(tagged_processes('{tag}'), end_tagged('{tag}'))"
    )
    monkeypatch.setenv(TAG, tag)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[] 0\n")


def test_a_process_that_has_ended_does_not_run() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_running(process.pid)  # a zombie: nobody has asked for its code
    assert not is_running(process.pid)
    assert is_running(os.getpid())
