"""The job's own interpreter: a second venv that has torch and what torch needs, nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from running import Cli

pytestmark = pytest.mark.ranks


def _with_requirements(name: str, found: set[str]) -> set[str]:
    try:
        requires = distribution(name).requires or []
    except PackageNotFoundError:
        return found
    found.add(name)
    for requirement in requires:
        needed = re.match(r"[A-Za-z0-9._-]+", requirement)
        if needed and "extra ==" not in requirement and needed[0] not in found:
            _with_requirements(needed[0], found)
    return found


@pytest.fixture(scope="module")
def torch_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of a new venv into which the files of torch and its requirements are linked."""
    folder = tmp_path_factory.mktemp("torch-alone")
    venv.create(folder, symlinks=True, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    for name in _with_requirements("torch", set()):
        package = distribution(name)
        for top in {file.parts[0] for file in package.files or [] if file.parts[0] != ".."}:
            source = Path(str(package.locate_file(top)))
            if source.exists() and not (site / top).exists() and top != "__pycache__":
                (site / top).symlink_to(source)
    return folder / "bin" / "python"


@pytest.mark.slow
def test_ranks_need_torch_alone(cli: Cli, torch_alone: Path) -> None:
    for missing in ("optuna", "pydantic", "click", "yaml", "torchvision", "nccltune"):
        probe = subprocess.run([torch_alone, "-c", f"import {missing}"], capture_output=True)
        assert probe.returncode != 0, f"{missing} is there: this venv proves nothing"
    run = cli.run(
        *("search", "--python", str(torch_alone), "--model", "smalljobs:tiny", "--device", "cpu"),
        *("--confirm-launches", "0"),
        *("--data", "synthetic", "--image-size", "16", "--batch-size", "4", "--trials", "2"),
        *("--study", "alone"),
    )
    assert run.returncode == 0, run.stderr
    assert len(cli.trials("alone")) == 2
    log = (cli.study("alone") / "logs/launch-0000/rank0.log").read_text()
    assert "Traceback" not in log


def test_a_torchvision_model_there_is_one_message(cli: Cli, torch_alone: Path) -> None:
    run = cli.run("search", "--python", str(torch_alone), "--device", "cpu", "--model", "resnet18")
    assert run.returncode == 2
    assert "cannot import torchvision" in run.stderr
    assert "package.module:factory" in run.stderr
    assert not (cli.folder / "studies").exists()


def test_a_python_without_torch_is_one_message(cli: Cli, tmp_path: Path) -> None:
    venv.create(tmp_path / "empty", symlinks=True, with_pip=False)
    python = tmp_path / "empty" / "bin" / "python"
    run = cli.run("search", "--python", str(python), "--device", "cpu", "--model", "resnet18")
    assert run.returncode == 2
    assert "cannot import torch" in run.stderr


@pytest.mark.parametrize("given", ["/nowhere/python", os.devnull, "no-such-python"])
def test_a_python_that_cannot_run_is_one_message(cli: Cli, given: str) -> None:
    run = cli.run("search", "--python", given, "--device", "cpu")
    assert run.returncode == 2
    assert f"--python {given}" in run.stderr


@pytest.mark.slow
def test_nccltunes_own_python_is_used_by_default(cli: Cli) -> None:
    run = cli.run("search", "--dry-run", "--device", "cpu", "--model", "resnet18")
    assert run.returncode == 0, run.stderr
    assert f"{sys.executable} -m torch.distributed.run" in run.stdout
    assert not (cli.folder / "studies").exists()
