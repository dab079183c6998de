"""Which NCCL and torch a Python would load, asked of the real one and of made-up ones."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from nccltune.errors import Interrupted, UsageError
from nccltune.launch import libraries as module
from nccltune.launch.libraries import Libraries, check_python, libraries_of
from nccltune.launch.stopping import StopFlag
from nccltune.worker import libraries


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_this_python() -> None:
    found = libraries_of(sys.executable, os.environ)
    assert found.torch == metadata.version("torch")
    assert (found.nccl is None) == (found.nccl_from is None)


@pytest.mark.parametrize(
    "text", ["exit 1", "echo loud", "echo '{' > $2", "echo '[]' > $2", "kill $$"]
)
def test_a_python_that_does_not_answer(tmp_path: Path, text: str) -> None:
    assert libraries_of(script(tmp_path / "python", text), os.environ) == Libraries()


def test_no_python_at_all(tmp_path: Path) -> None:
    assert libraries_of(str(tmp_path / "missing"), os.environ) == Libraries()
    assert libraries_of(str(tmp_path), os.environ) == Libraries()


def test_an_answer_is_taken(tmp_path: Path) -> None:
    answer = '{"nccl": "2.28.9", "nccl_from": "a", "torch": "2.9.0"}'
    python = script(tmp_path / "python", f"echo '{answer}' > $2")
    assert libraries_of(python, os.environ) == Libraries("2.28.9", "a", "2.9.0")


def found_with(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], codes: dict[str, str]
) -> tuple[str | None, str | None]:
    monkeypatch.setattr(libraries, "_installed", installed.get)
    monkeypatch.setattr(libraries, "_asked", codes.get)
    found = libraries.libraries()
    return found["nccl"], found["nccl_from"]


def test_the_order_is_the_linkers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"")
    wheel, system = {"nvidia-nccl-cu12": "2.27.5"}, {"libnccl.so.2": "22105"}
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/none::{tmp_path}")
    both = {**system, str(library): "22809"}
    assert found_with(monkeypatch, wheel, both) == ("22809", str(library))
    assert found_with(monkeypatch, wheel, system) == ("2.27.5", "nvidia-nccl-cu12")
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert found_with(monkeypatch, wheel, both) == ("2.27.5", "nvidia-nccl-cu12")
    assert found_with(monkeypatch, {}, both) == ("22105", "libnccl.so.2")
    assert found_with(monkeypatch, {}, {}) == (None, None)


def test_what_is_no_library_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").write_bytes(b"no library")
    assert libraries._asked(str(tmp_path / "libnccl.so.2")) is None
    assert libraries._asked("libc.so.6") is None
    assert libraries._installed("nvidia-nccl-cu0") is None


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("exit 3", "ended with exit code 3 and did not answer as a Python would"),
        ("echo no; exit 0", "ended with exit code 0 and did not answer as a Python would: no"),
        ("exec yes", "printed more than 1 MiB and did not answer as a Python would: y"),
        ("yes > $2", "was not done within 1 s and did not answer as a Python would"),
        ("exec sleep 600", "was not done within 1 s and did not answer as a Python would"),
        ("yes | head -c 9000000 > $2", "ended with exit code 0 and did not answer"),
    ],
)
def test_what_does_not_answer_is_named_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, trouble: str
) -> None:
    monkeypatch.setattr(module, "_LIMIT_SECONDS", 1.0 if "1 s" in trouble else 60.0)
    if text.startswith("yes >"):
        text = f"ulimit -f 20000; trap '' XFSZ; {text}; sleep 600"
    python = script(tmp_path / "python", text)
    found = libraries_of(python, os.environ)
    assert found == Libraries() and (found.trouble or "").startswith(trouble)
    with pytest.raises(UsageError) as caught:
        check_python(python, os.environ, StopFlag())
    assert str(caught.value).startswith(f"--python {python}: {trouble}")
    assert str(caught.value).endswith(
        "; give the interpreter of the job, as in --python /path/to/venv/bin/python"
    )


def test_a_python_that_answers_is_none_to_refuse() -> None:
    check_python(sys.executable, os.environ, StopFlag())


def test_asking_is_stopped(tmp_path: Path) -> None:
    stop = StopFlag()
    stop.requested = True
    with pytest.raises(Interrupted):
        check_python(script(tmp_path / "python", "sleep 600"), os.environ, stop)
