"""The worker's files on a path of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from nccltune.launch.worker_files import place_worker


def test_the_worker_and_nothing_else_of_ours_is_placed(tmp_path: Path) -> None:
    assert place_worker(tmp_path / "w") == tmp_path / "w"
    package = tmp_path / "w" / "nccltune"
    assert sorted(os.listdir(package)) == ["__init__.py", "worker"]
    assert (package / "worker" / "measure.py").is_file()
    assert not list(package.rglob("__pycache__"))


def test_placing_again_leaves_nothing_old(tmp_path: Path) -> None:
    place_worker(tmp_path)
    (tmp_path / "nccltune" / "worker" / "old.py").write_text("")
    (tmp_path / "nccltune" / "stale.py").write_text("")
    place_worker(tmp_path)
    assert not (tmp_path / "nccltune" / "worker" / "old.py").exists()
    assert not (tmp_path / "nccltune" / "stale.py").exists()


def test_a_python_without_any_package_can_say_what_it_lacks(tmp_path: Path) -> None:
    # -S: no site-packages, so no torch and nothing of ours but what was placed.
    place_worker(tmp_path / "w")
    question, answer = tmp_path / "q.json", tmp_path / "a.json"
    question.write_text('{"model": "resnet18", "data": "synthetic", "folder": null}')
    done = subprocess.run(
        [sys.executable, "-S", "-m", "nccltune.worker.ask", str(question), str(answer)],
        env={"PYTHONPATH": str(tmp_path / "w")}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{sys.executable} cannot import torch: No module named 'torch'" in answer.read_text()
