"""The worker's files on a path of their own."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

from nccltune.launch.worker_files import place_worker
from nccltune.output.best import Best


def test_the_worker_and_what_scripts_import_is_placed(tmp_path: Path) -> None:
    assert place_worker(tmp_path / "w") == tmp_path / "w"
    package = tmp_path / "w" / "nccltune"
    assert sorted(os.listdir(package)) == [
        "__init__.py", "applying.py", "errors.py", "nccl", "output", "safe_yaml.py", "worker",
    ]  # fmt: skip
    assert sorted(os.listdir(package / "output")) == ["__init__.py", "best.py", "writers.py"]
    assert (package / "worker" / "measure.py").is_file()
    assert not list(package.rglob("__pycache__"))


def test_placing_again_leaves_nothing_old(tmp_path: Path) -> None:
    place_worker(tmp_path)
    (tmp_path / "nccltune" / "worker" / "old.py").write_text("")
    (tmp_path / "nccltune" / "stale.py").write_text("")
    place_worker(tmp_path)
    assert not (tmp_path / "nccltune" / "worker" / "old.py").exists()
    assert not (tmp_path / "nccltune" / "stale.py").exists()


def test_scripts_find_there_what_the_package_offers_them(tmp_path: Path) -> None:
    place_worker(tmp_path / "w")
    best = Best({"NCCL_ALGO": "Ring"}, {"bucket_cap_mb": 50}, {}, 8, {}, None, {}, {})
    (tmp_path / "best.yaml").write_text(best.to_yaml())
    code = (
        "import os, sys, nccltune\n"
        "best = nccltune.apply('best.yaml')\n"
        "nccltune.step(samples=8)\n"
        "assert best == nccltune.load('best.yaml')\n"
        "print(os.environ['NCCL_ALGO'], best.ddp_kwargs)\n"
        "print({m.__file__ for n, m in sys.modules.items() if n.startswith('nccltune')})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={"PYTHONPATH": str(tmp_path / "w")},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    first, files = done.stdout.splitlines()
    assert first == "Ring {'bucket_cap_mb': 50}"
    assert all(file.startswith(str(tmp_path / "w")) for file in ast.literal_eval(files))


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
