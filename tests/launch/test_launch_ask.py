"""Questions to the job's Python, with stand-ins for that Python: no torch is loaded."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nccltune.errors import Interrupted, StudyError, UsageError
from nccltune.launch import ask as module
from nccltune.launch.ask import JobPython
from nccltune.launch.host import HostFailed, WarmHost
from nccltune.launch.stopping import StopFlag

BASE = {"PATH": "/usr/bin:/bin"}


def python(folder: Path, body: str) -> str:
    """A program that is called as Python would be: PROGRAM -m nccltune.worker.ask ASKED ANSWER."""
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return str(file)


def ask(program: str, folder: Path, stop: StopFlag | None = None) -> dict[str, object]:
    return JobPython(program, folder / "worker", BASE).ask({"model": "m"}, stop or StopFlag())


def test_the_answer_is_what_that_python_wrote(tmp_path: Path) -> None:
    program = python(
        tmp_path,
        'echo noise; echo "{\\"facts\\": {\\"arguments\\": \\"$1 $2\\", \\"asked\\": $(cat "$3"), '
        '\\"path\\": \\"$PYTHONPATH\\"}, \\"problems\\": []}" > "$4"',
    )
    assert ask(program, tmp_path) == {
        "arguments": "-m nccltune.worker.ask",
        "asked": {"model": "m"},
        "path": str(tmp_path / "worker"),
    }


def test_the_users_own_path_comes_after_ours(tmp_path: Path) -> None:
    program = python(
        tmp_path, 'echo "{\\"facts\\": {\\"path\\": \\"$PYTHONPATH\\"}, \\"problems\\": []}" > "$4"'
    )
    base = {**BASE, "PYTHONPATH": "/my/code:/more"}
    found = JobPython(program, tmp_path / "w", base).ask({}, StopFlag())
    assert found == {"path": f"{tmp_path}/w:/my/code:/more"}


def test_problems_are_the_users_to_solve(tmp_path: Path) -> None:
    program = python(tmp_path, 'echo \'{"facts": {}, "problems": ["one", "two"]}\' > "$4"')
    with pytest.raises(UsageError) as caught:
        ask(program, tmp_path)
    assert str(caught.value) == "one\ntwo"


def test_a_crash_tells_the_last_it_said(tmp_path: Path) -> None:
    program = python(tmp_path, "for n in 1 2 3 4 5 6 7; do echo line $n; done; exit 3")
    with pytest.raises(StudyError) as caught:
        ask(program, tmp_path)
    assert str(caught.value) == (
        f"{program} did not answer (exit code 3): line 3\nline 4\nline 5\nline 6\nline 7"
    )


def test_a_silent_end(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"did not answer \(exit code 4\): it printed nothing"):
        ask(python(tmp_path, "exit 4"), tmp_path)


def test_a_program_that_is_no_python(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not answer as a Python would"):
        ask(python(tmp_path, "exit 0"), tmp_path)


def test_a_program_that_cannot_run(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(UsageError) as caught:
        ask(missing, tmp_path)
    assert str(caught.value) == (
        f"--python {missing}: cannot start {missing}: No such file or directory"
    )


def test_asked_to_stop_it_ends_the_helper(tmp_path: Path) -> None:
    stop = StopFlag()
    stop.requested = True
    with pytest.raises(Interrupted):
        ask(python(tmp_path, f"sleep 600; touch {tmp_path}/late"), tmp_path, stop)


@pytest.mark.parametrize("line", ["exec yes", "yes & exec sleep 600", "exec yes $(seq 9999)"])
def test_a_program_that_prints_without_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    program, began = python(tmp_path, line), time.monotonic()
    with pytest.raises(UsageError) as caught:
        ask(program, tmp_path)
    assert str(caught.value).startswith(
        f"--python {program}: printed more than 64 MiB and did not answer; give the interpreter of "
        "the job, as in --python /path/to/venv/bin/python: "
    )
    assert len(str(caught.value)) < 3000
    assert time.monotonic() - began < module._LIMIT_SECONDS / 4


def test_a_program_that_says_nothing_for_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LIMIT_SECONDS", 0.5)
    program = python(tmp_path, "exec sleep 600")
    with pytest.raises(UsageError, match=f"--python {program}: was not done within 0 s and did"):
        ask(program, tmp_path)


@pytest.mark.parametrize(
    "line", ["echo '{' > $4", "echo '[1]' > $4", "echo '{}' > $4", "yes | head -c 9000000 > $4"]
)
def test_an_answer_that_is_none(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError, match="does not answer as a Python would"):
        ask(python(tmp_path, line), tmp_path)


def test_a_host_that_prints_without_end_is_ended(tmp_path: Path) -> None:
    host = WarmHost(python(tmp_path, "exec yes"), tmp_path / "worker", BASE, {}, {})
    try:
        with pytest.raises(HostFailed) as caught:
            host.await_ready(StopFlag())
    finally:
        host.end()
    assert str(caught.value).startswith(
        "the warm host printed more than 64 MiB and did not come up: "
    )
    assert len(str(caught.value)) < 600
