"""Files of settings that others than this user can change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nccltune.output import writers
from nccltune.output.writers import others_can_write


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "best.yaml"
    made.write_text("")
    made.chmod(0o644)
    return made


def test_a_file_of_ones_own_is_no_matter(file: Path) -> None:
    for mode in (0o644, 0o600, 0o444, 0o755):
        file.chmod(mode)
        assert others_can_write(file) is None


@pytest.mark.parametrize(("mode", "who"), [(0o664, "its group"), (0o646, "everybody")])
def test_a_file_that_its_mode_gives_away(file: Path, mode: int, who: str) -> None:
    file.chmod(mode)
    assert others_can_write(file) == (
        f"{file}: others can change what it sets: {who} may write it (mode {mode:04o}); look at "
        f"it, then chmod go-w {file}"
    )
    link = file.with_name("link.yaml")
    link.symlink_to(file)
    assert (others_can_write(link) or "").startswith(f"{link}: others can change")


def test_a_folder_in_which_everybody_may_replace_it(file: Path) -> None:
    file.parent.chmod(0o777)
    assert others_can_write(file) == (
        f"{file}: others can change what it sets: everybody may replace files in {file.parent} "
        "(mode 0777); look at it, and keep it elsewhere"
    )
    file.parent.chmod(0o1777)  # as /tmp: only the owner may
    assert others_can_write(file) is None


def test_a_file_of_somebody_else(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(file, 12345, -1)
    else:
        monkeypatch.setattr(writers.os, "geteuid", lambda: 1 + os.getuid())
    told = others_can_write(file) or ""
    assert told.startswith(f"{file}: others can change what it sets: it belongs to user ")
    assert told.endswith("look at it, and use a copy of your own")


def test_roots_files_are_trusted() -> None:
    assert others_can_write("/etc/passwd") is None


def test_what_is_not_there(tmp_path: Path) -> None:
    assert others_can_write(tmp_path / "missing") is None
    (tmp_path / "loop").symlink_to("loop")
    assert others_can_write(tmp_path / "loop") is None
