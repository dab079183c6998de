"""What verify and retune are asked about, and what a file from elsewhere may not start."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from nccltune.cli.again import command_with, options_again
from nccltune.cli.search import search
from nccltune.cli.verifying import options_of
from nccltune.errors import UsageError
from nccltune.study.generations import Event, append
from nccltune.study.options import SearchOptions
from nccltune.study.target import harmless, read_target

DEFINITION = {
    "version": 1, "created": "x", "command": "nccltune search --model resnet18", "workload": {},
    "sampler": "tpe", "seed": 0, "machine": {}, "site": {}, "probe": None, "space": {},
}  # fmt: skip


def best_yaml(command: str = "nccltune search --model resnet50") -> str:
    parts: dict[str, Any] = {n: {} for n in ("ddp", "loader", "env", "workload", "machine")}
    return yaml.safe_dump(
        {"version": 1, **parts, "batch_size": 64, "verdict": None,
         "provenance": {"command": command}}
    )  # fmt: skip


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "studies" / "s"
    folder.mkdir(parents=True)
    (folder / "study.yaml").write_text(yaml.safe_dump(DEFINITION))
    (folder / "best.yaml").write_text(best_yaml())
    return folder


def test_a_study_by_name_by_folder_and_by_its_file(study: Path) -> None:
    for text in ("s", str(study), str(study / "best.yaml")):
        found = read_target(text, study.parent)
        assert found.own and found.paths is not None and found.paths.folder == study
        assert found.command == "nccltune search --model resnet18"  # the study's own


def test_a_file_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "best.yaml"
    file.write_text(best_yaml())
    found = read_target(str(file), tmp_path)
    assert not found.own and found.paths is None
    assert found.command == "nccltune search --model resnet50"


def test_an_env_file_does_not_say_of_which_job(study: Path) -> None:
    (study / "best.env").write_text("")
    with pytest.raises(UsageError, match="best.yaml, or use `nccltune compare defaults"):
        read_target(str(study / "best.env"), study.parent)


def test_no_result_yet_and_no_study(study: Path) -> None:
    (study / "best.yaml").unlink()
    with pytest.raises(UsageError, match="no best.yaml yet"):
        read_target("s", study.parent)
    with pytest.raises(UsageError, match="no such study in .*there are: s"):
        read_target("t", study.parent)


def test_a_study_that_others_can_write_is_not_ones_own(study: Path) -> None:
    (study / "study.yaml").chmod(0o666)
    assert not read_target("s", study.parent).own


@pytest.mark.parametrize(
    ("options", "how"),
    [
        (SearchOptions(script=("-m", "pip", "install", "x")), "-- -m pip install x"),
        (SearchOptions(model="pkg:make"), "--model pkg:make"),
        (SearchOptions(data="pkg:data"), "--data pkg:data"),
        (SearchOptions(python="/tmp/python"), "--python /tmp/python"),
    ],
)
def test_what_only_a_file_names_is_not_started(
    tmp_path: Path, study: Path, options: SearchOptions, how: str
) -> None:
    file = tmp_path / "best.yaml"
    file.write_text(best_yaml())
    foreign = read_target(str(file), tmp_path)
    with pytest.raises(UsageError, match="no study of your own") as caught:
        harmless(foreign, options, frozenset())
    assert how in str(caught.value)
    named = "script" if options.script else how.split()[0].strip("-")
    harmless(foreign, options, frozenset({named}))
    harmless(read_target("s", study.parent), options, frozenset())
    harmless(foreign, SearchOptions(model="resnet50"), frozenset())


def test_what_a_file_allows_is_not_allowed(tmp_path: Path, study: Path) -> None:
    file = tmp_path / "best.yaml"
    file.write_text(best_yaml())
    asked = SearchOptions(model="resnet18", allow_saves=True, allow_busy=True, unpin=("NCCL_ALGO",))
    found = harmless(read_target(str(file), tmp_path), asked, frozenset())
    assert (found.allow_saves, found.allow_busy, found.unpin) == (False, False, ())
    assert harmless(read_target("s", study.parent), asked, frozenset()) == asked


def test_the_command_is_that_of_the_generation_that_holds(study: Path) -> None:
    made = study / "generations" / "2"
    made.mkdir(parents=True)
    other = {**DEFINITION, "command": "nccltune search --model vgg16"}
    (made / "study.yaml").write_text(yaml.safe_dump(other))
    paths = read_target("s", study.parent).paths
    assert paths is not None
    append(paths, Event("d", 1, "harmful", "x", {}, made=2, adopted=True))
    assert read_target("s", study.parent).command == "nccltune search --model vgg16"
    shutil.rmtree(made)
    assert read_target("s", study.parent).command == DEFINITION["command"]


def test_what_was_measured_on_gpus_is_not_launched_without(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nccltune.cli.verifying.visible_gpus", lambda _environ: ())
    found = read_target("s", study.parent)
    assert options_of(found, {}).model == "resnet18"
    best = replace(found.best, workload={"device": "cuda"})
    with pytest.raises(UsageError, match="was measured on GPUs, and here jobs get none: this"):
        options_of(replace(found, best=best), {})


@pytest.mark.parametrize(
    ("words", "changed", "only", "made"),
    [
        ("search --trials 4", {"emulate_hosts": 1}, (), "search --trials 4 --emulate-hosts 1"),
        ("search --only a,b --only=c", {}, ("env",), "search --only env"),
        ("search --only a -- t.py --only x", {"allow_busy": True}, ("ddp",),
         "search --allow-busy --only ddp -- t.py --only x"),
    ],
)  # fmt: skip
def test_a_command_with_other_options(
    words: str, changed: dict[str, Any], only: tuple[str, ...], made: str
) -> None:
    found = command_with(["nccltune", *words.split()], changed, only)
    assert found == ("nccltune", *made.split())
    assert options_again(" ".join(found)).emulate_hosts is None


def test_a_recorded_command_is_read_as_it_was_typed() -> None:
    command = "nccltune search --model resnet18 --trials 8 --only env,ddp --fix bucket_cap_mb=50"
    found = options_again(f"{command} --time-budget 4m --emulate-hosts 2")
    assert (found.model, found.trials, found.only) == ("resnet18", 8, ("env", "ddp"))
    assert (found.fix, found.time_budget) == ({"bucket_cap_mb": 50}, 240.0)
    assert found.emulate_hosts == 2 and found.command[:2] == ("nccltune", "search")
    script = options_again("nccltune search --trials 3 -- train.py --lr 0.1 '{batch_size}'")
    assert script.script == ("train.py", "--lr", "0.1", "{batch_size}")
    # As they were taken, though they would be refused today.
    assert options_again("nccltune search --trials 3 --").script == ()
    assert options_again("nccltune search train.py --trials 3").script == ("train.py",)


@pytest.mark.parametrize(
    "command",
    ["", "nccltune", "nccltune compare a b", "nccltune search --no-such", "nccltune search 'x",
     "nccltune search --help", "nccltune search --trials x", "nccltune search --version"],
)  # fmt: skip
def test_what_is_no_search_is_refused(command: str) -> None:
    with pytest.raises(UsageError):
        options_again(command)


def test_a_command_read_again_leaves_the_options_of_help_alone() -> None:
    options_again("nccltune search --trials 3")
    assert search.get_help_option_names(click.Context(search, help_option_names=["-h"])) == ["-h"]
    found = search.get_help_option(click.Context(search, help_option_names=["-h", "--help"]))
    assert found is not None and set(found.opts) == {"-h", "--help"}
