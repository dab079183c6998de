"""nccltune finds its data whether it runs from a wheel, an editable install or PYTHONPATH=src."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHECK = """
import nccltune, nccltune.space as space, nccltune.nccl.catalog as catalog
from nccltune.launch import worker_files
from nccltune.worker import supervisor
assert space.builtin_names() == ("comm", "cpu", "default"), space.builtin_names()
assert "bucket_cap_mb" in space.load("default").parameters
assert "NCCL_CGA_CLUSTER_SIZE" in space.load_fragments()["nvlink"].parameters
assert catalog.lookup("NCCL_ALGO") is not None
print(nccltune.__file__, nccltune.__version__)
"""


def _run(code: str, path: Path | None, folder: Path) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    argv = [sys.executable, "-c", code]
    return subprocess.run(
        argv, cwd=folder, env=env, check=True, capture_output=True, text=True
    ).stdout


def test_editable_install(tmp_path: Path) -> None:
    assert str(ROOT / "src") in _run(CHECK, None, tmp_path)


def test_path_to_src(tmp_path: Path) -> None:
    assert str(ROOT / "src") in _run(CHECK, ROOT / "src", tmp_path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-w", str(folder), str(ROOT)], check=True, cwd=folder)
    return next(folder.glob("nccltune-*.whl"))


def test_wheel(wheel: Path, tmp_path: Path) -> None:
    unpacked = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
        names = archive.namelist()
    assert str(unpacked) in _run(CHECK, unpacked, tmp_path)
    assert "nccltune/py.typed" in names
    assert not [n for n in names if n.startswith(("tests/", "studies/"))]
    entry = next(unpacked.glob("*.dist-info/entry_points.txt")).read_text()
    assert "nccltune = nccltune.cli:main" in entry
