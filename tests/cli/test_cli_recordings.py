"""Recordings under studies/ are readable, and what documents quote from them is what is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_command import Command

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "studies"
RECORDINGS = sorted(
    folder.name for folder in STUDIES.iterdir() if (folder / "study.yaml").is_file()
)
KEPT = [name for name in RECORDINGS if f"| {name} |" in (STUDIES / "README.md").read_text()]


def shown(command: Command, name: str) -> str:
    done = command("show", name, "--studies-dir", str(STUDIES))
    assert done.code == 0, done.err
    return "\n".join(line.rstrip() for line in done.out.strip().splitlines())


@pytest.mark.parametrize("name", KEPT)
def test_a_recording_tells_nothing_of_where_it_was_made(name: str) -> None:
    for file in (STUDIES / name).iterdir():
        if file.is_file():
            text = file.read_text().replace("/usr/local/nvidia/lib", "")
            assert not re.search(r'["\' =](/(?:tmp|home|root|opt|work|mnt)\b)', text), file.name


@pytest.mark.parametrize("name", KEPT)
def test_a_recordings_history_is_read(nccltune_command: Command, name: str) -> None:
    done = nccltune_command("show", name, "--history", "--studies-dir", str(STUDIES))
    assert done.code == 0, done.err
    assert done.out.count("(holds)") == 1


def test_a_study_that_was_retuned_says_whose_files_there_are(nccltune_command: Command) -> None:
    assert "best.yaml are those of generation 2" in shown(nccltune_command, "h200x2-sockets")
    document = (ROOT / "docs" / "retuning.md").read_text()
    told = nccltune_command("show", "h200x2-sockets", "--history", "--studies-dir", str(STUDIES))
    assert told.out.splitlines()[-1].partition(": ")[0] in document


RECORDED = ROOT / "tests" / "recorded"


@pytest.mark.parametrize("name", ["one-that-pays", "nothing-helps"])
def test_a_confirmed_study_is_shown_from_its_records(nccltune_command: Command, name: str) -> None:
    done = nccltune_command("show", name, "--studies-dir", str(RECORDED))
    assert (done.code, done.err) == (0, "")
    text = "\n".join(line.rstrip() for line in done.out.splitlines()) + "\n"
    assert text == (RECORDED / f"{name}.txt").read_text()


def test_the_readme_shows_the_recording_as_it_is_printed(nccltune_command: Command) -> None:
    assert "h200x2-resnet50" in KEPT
    text = shown(nccltune_command, "h200x2-resnet50").replace(f"{STUDIES}/", "studies/")
    readme = (ROOT / "README.md").read_text()
    for block in text.split("\n\n"):
        table = block.split("\nWritten: ")[0]
        assert table in readme
