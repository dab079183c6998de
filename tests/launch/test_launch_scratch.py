"""The copy that scripts run in with --workdir scratch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nccltune.errors import UsageError
from nccltune.launch.scratch import copy_tracked


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a script in a folder, a file that git does not track, and one deleted since."""
    top = tmp_path / "project"
    (top / "train").mkdir(parents=True)
    for name in ("train/train.py", "conf.yaml", "gone.txt"):
        (top / name).write_text(name)
    subprocess.run(["git", "init", "-q", top], check=True)
    subprocess.run(["git", "-C", top, "add", "."], check=True)
    (top / "data.bin").write_text("not tracked")
    (top / "gone.txt").unlink()
    (top / "conf.yaml").write_text("changed since")
    monkeypatch.chdir(top / "train")
    return top


def test_tracked_files_are_copied_as_they_are_now(repository: Path, tmp_path: Path) -> None:
    folder, inside = copy_tracked(tmp_path / "copy")
    assert (folder, inside) == (tmp_path / "copy", tmp_path / "copy/train")
    files = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}
    assert files == {"train/train.py": "train/train.py", "conf.yaml": "changed since"}


def test_outside_a_repository_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UsageError, match="--workdir scratch: needs a git repository here"):
        copy_tracked(tmp_path / "copy")
