"""The command in this process, and recorded studies for it to show."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli_command import Command, Done

import nccltune.cli

# Studies are recorded as in the tests of study/.
sys.path.insert(0, str(Path(__file__).parents[1] / "study"))


@pytest.fixture
def nccltune_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """`nccltune ARGUMENTS` in an empty folder, with a cache that must not be needed."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["nccltune", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            nccltune.cli.main()
        seen = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return Done(caught.value.code, seen.out, seen.err)

    return run
