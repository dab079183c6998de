"""Nothing that others wrote acts on a terminal: escapes, line ends, changes of direction."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cli_command import Command
from rich.table import Table
from rich.text import Text
from study_jobs import MACHINE, TASK

from nccltune.cli.speaking import say, tell
from nccltune.cli.starting import tell_setting
from nccltune.cli.tables import console_on
from nccltune.launch.script import ScriptCommand
from nccltune.nccl.findings import printable
from nccltune.nccl.site import SiteVariable
from nccltune.study.folder import find_study
from nccltune.study.options import SearchOptions
from nccltune.study.script_task import ScriptTask
from nccltune.study.survey import Survey

HOSTILE = "a\x1b[31mb\rc\u202ed\x07e\x9bf\udcffg"
HARMLESS = r"a\x1b[31mb\rc\u202ed\x07e\x9bf\udcffg"


def test_what_is_printable_stays() -> None:
    assert printable("größer 20% → [red] \\x1b") == "größer 20% → [red] \\x1b"
    assert printable(HOSTILE) == HARMLESS
    assert printable("one\ntwo\t\r") == r"one\ntwo\t\r"
    assert printable("one\ntwo\t\r", lines=True) == "one\ntwo\t\\r"


def test_both_streams(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"{HOSTILE}\nsecond")
    tell(f"{HOSTILE}\nsecond")
    seen = capsys.readouterr()
    assert seen.err == seen.out == f"{HARMLESS}\nsecond\n"


def test_an_encoding_that_has_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    tell("größer")
    sys.stdout.flush()
    assert written.getvalue() == b"gr\\xf6\\xdfer\n"


def test_tables_and_their_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    laid_out = HARMLESS.replace(r"\r", "").replace(r"\x07", "")  # which the table leaves out
    for file, colour in ((io.StringIO(), False), (Terminal(), True)):
        console = console_on(file)
        table = Table(box=None, show_header=False)
        table.add_row(Text("error", style="bold red"), Text(HOSTILE))
        console.print(table)
        console.print(Text(HOSTILE))
        found = file.getvalue()
        assert found.count(laid_out) == 2
        ours = "\x1b[1;31merror\x1b[0m"
        assert (ours in found) == colour
        assert printable(found.replace(ours, ""), lines=True) == found.replace(ours, "")


def test_what_a_job_is_called_and_what_the_site_sets(capsys: pytest.CaptureFixture[str]) -> None:
    site = {"NCCL_NET": SiteVariable("NCCL_NET", f"x\nnccltune: {HOSTILE}", "environment")}
    workload = replace(TASK.workload, model=f"m\n{HOSTILE}:f", data=f"d\n{HOSTILE}:f")
    options = SearchOptions(unpin=("NCCL_A",))
    survey = Survey(options, replace(TASK, workload=workload), MACHINE, (), site, {}, "python", ())
    tell_setting(survey)
    command = ScriptCommand(("train.py", f"--name=x\n{HOSTILE}"))
    tell_setting(replace(survey, task=replace(TASK, script=ScriptTask(command, ()))))
    lines = capsys.readouterr().err.splitlines()
    assert all(line.isprintable() for line in lines)
    assert sum(HARMLESS in line for line in lines) == 4
    assert not any(line.startswith(("nccltune: ", HARMLESS)) for line in lines)


def test_what_the_user_typed(nccltune_command: Command) -> None:
    for arguments in (
        ("search", "--data", HOSTILE),
        ("search", "--only", HOSTILE, "--dry-run", "--device", "cpu", "--python", HOSTILE),
        ("search", f"--{HOSTILE}"),
        ("search", "--trials", HOSTILE),
        ("compare", HOSTILE, "defaults"),
        ("show", HOSTILE),
        ("lint", HOSTILE),
        (HOSTILE,),
    ):
        done = nccltune_command(*arguments)
        assert done.code == 2
        assert printable(done.err, lines=True) == done.err
        assert "[31mb" in done.err


def test_names_of_studies(tmp_path: Path) -> None:
    (tmp_path / f"x\n{HOSTILE}").mkdir()
    (tmp_path / f"x\n{HOSTILE}" / "study.yaml").write_text("")
    with pytest.raises(Exception) as caught:
        find_study("other", tmp_path)
    assert str(caught.value).endswith(rf"there are: x\n{HARMLESS}")


STUDIES = Path(__file__).parents[2] / "studies"
RECORDED = ("show", "h200x2-resnet50", "--studies-dir", str(STUDIES))


def in_a_process(*arguments: str, **streams: int) -> subprocess.CompletedProcess[str]:
    """A command of its own: here other tests have imported and set what it has to do itself."""
    command = [sys.executable, "-m", "nccltune", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, **streams)


def test_libraries_say_nothing() -> None:
    done = in_a_process(*RECORDED, stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")
    assert "What mattered" in done.stdout  # by Optuna


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (RECORDED, 0),
        ((*RECORDED, "--json"), 0),
        (("show", "--studies-dir", str(STUDIES)), 0),
        (("lint", "bad.env"), 1),
        (("lint", "bad.env", "--json"), 1),
    ],
)
def test_a_reader_that_has_gone_changes_nothing(
    arguments: tuple[str, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.env").write_text("export NCCL_BUFFSIZE=8M\n")
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = in_a_process(*arguments, stdout=writes)
    finally:
        os.close(writes)
    assert done.returncode == code
    assert "Traceback" not in done.stderr and "Broken" not in done.stderr
