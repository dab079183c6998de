"""The program that stands in for Python, and where it lies."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nccltune.errors import StudyError
from nccltune.launch.attached import attached_python, lasting_attached_python
from nccltune.worker.attach import USERS_PYTHON_EXEC

SHOW = "import sys; print(sys.prefix, sys.executable, sys.argv[1:], sys.stdout.write_through)\n"

# As torchrun does: its own process starts ranks.
LAUNCHER = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"


def started(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    plain = {n: v for n, v in os.environ.items() if n != "PYTHONUNBUFFERED"}
    return subprocess.run(command, env=plain | env, capture_output=True, text=True, timeout=60)


@pytest.fixture
def script(tmp_path: Path) -> str:
    file = tmp_path / "show.py"
    file.write_text(SHOW)
    return str(file)


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other") / "a venv"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120
    )
    return folder


def test_the_python_that_is_given(tmp_path: Path, script: str, venv: Path) -> None:
    python = str(venv / "bin/python")
    program = attached_python(tmp_path / "it's here", python)
    assert program.is_absolute()
    done = started(str(program), "-u", script, "a b", "-u")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{venv} {python} ['a b', '-u'] True\n"
    assert started(str(program), script).stdout == f"{venv} {python} [] False\n"


@pytest.mark.parametrize("way", ["path", "name", "relative"])
def test_torchruns_own_python(tmp_path: Path, script: str, venv: Path, way: str) -> None:
    program = attached_python(tmp_path / "w", None)
    python = {"path": str(venv / "bin/python"), "name": "python", "relative": "./bin/python"}[way]
    done = subprocess.run(
        [python, "-c", LAUNCHER, str(program), "-u", script],
        cwd=venv,
        env={**os.environ, "PATH": f"{venv / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{venv} ")


def test_the_launchers_name_may_be_any(tmp_path: Path, script: str) -> None:
    """Some processes choose the title that they are listed under."""
    program = attached_python(tmp_path / "w", None)
    done = subprocess.run(
        ["torchrun: agent", "-c", LAUNCHER, str(program), "-u", script],
        executable=os.path.realpath(sys.executable),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert os.path.realpath(sys.executable) in done.stdout


def test_the_users_own_program_for_ranks(tmp_path: Path, script: str) -> None:
    other = tmp_path / "other"
    other.write_text(f'#!/bin/sh\necho other\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    program = attached_python(tmp_path / "w", None)
    done = started(
        sys.executable,
        "-c",
        LAUNCHER,
        str(program),
        "-u",
        script,
        **{USERS_PYTHON_EXEC: str(other)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"other\n{sys.prefix} ")


def test_what_no_python_starts_says_so(tmp_path: Path, script: str) -> None:
    program = attached_python(tmp_path / "w", None)
    done = started("sh", "-c", '"$0" "$1"; exit $?', str(program), script)
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr == "nccltune: sh starts this, and is no Python to run a script with\n"


def test_one_lasting_place_for_all_runs(tmp_path: Path, script: str) -> None:
    program = lasting_attached_python(tmp_path / "cache")
    before = program.stat()
    assert lasting_attached_python(tmp_path / "cache") == program
    assert program.stat() == before  # not written again: it may be in use
    assert os.listdir(tmp_path / "cache") == [program.parent.name]
    done = started(sys.executable, "-c", LAUNCHER, str(program), "-u", script)
    assert (done.returncode, done.stderr) == (0, "")
    assert sys.prefix in done.stdout


@pytest.mark.parametrize("lost", ["attached-python", "nccltune/worker/attach/main.py", ""])
def test_what_was_lost_is_put_back(tmp_path: Path, script: str, lost: str) -> None:
    program = lasting_attached_python(tmp_path)
    if lost:
        (program.parent / lost).unlink()
    else:
        (program.parent / "nccltune/__init__.py").write_text("cut")
    assert lasting_attached_python(tmp_path) == program
    assert set(os.listdir(tmp_path)) == {program.parent.name, "show.py"}
    done = started(sys.executable, "-c", LAUNCHER, str(program), "-u", script)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("there", ["nothing", "a part"])
def test_many_at_once(tmp_path: Path, there: str) -> None:
    if there == "a part":
        (lasting_attached_python(tmp_path / "c").parent / "nccltune/errors.py").unlink()
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(lasting_attached_python(tmp_path / "c")))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12
    assert len(set(found)) == 1
    assert os.listdir(tmp_path / "c") == [found[0].parent.name]


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match="file/cache: cannot be written: Not a directory"):
        lasting_attached_python(tmp_path / "file/cache")
    with pytest.raises(StudyError, match="file/w: cannot copy files there: Not a directory"):
        attached_python(tmp_path / "file/w", None)
