"""The command line's surface: changing a name here breaks somebody's script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from cli_command import Command

import nccltune
from nccltune.cli import app

SEARCH = {
    "--model", "--trials", "--time-budget", "--space", "--device", "--backend", "--nproc-per-node",
    "--launcher", "--python", "--allow-busy", "--batch-size", "--num-workers", "--image-size",
    "--hosts", "--ssh", "--emulate-hosts",
    "--data", "--precision", "--channels-last", "--cudnn-benchmark", "--no-cudnn-benchmark",
    "--fix", "--only", "--exclude", "--allow-guarded", "--allow-unsafe", "--study", "--studies-dir",
    "--new", "--seed", "--dry-run", "--json", "--measure-seconds", "--confirm-launches",
    "--search-anyway", "--with-serials", "--unpin", "--optimizer", "--samples-per-step",
    "--loader-match", "--allow-saves", "--workdir", "--storage", "--sampler", "--pruner",
    "--split", "--accept-machine",
}  # fmt: skip
SHOW = {"--trial", "--studies-dir", "--history", "--json"}


def options(verb: str) -> set[str]:
    assert isinstance(app, click.Group)
    found = app.commands[verb].params
    return {
        name
        for parameter in found
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


def test_the_verbs() -> None:
    assert isinstance(app, click.Group)
    assert {"search", "show"} <= set(app.commands)


def test_the_options_of_search() -> None:
    assert options("search") == SEARCH


def test_names_may_be_given_one_by_one_or_with_commas() -> None:
    assert isinstance(app, click.Group)
    given = ["--only", "NCCL_ALGO,bucket_cap_mb", "--only", "loader", "--exclude", "batch, ddp"]
    parent = click.Context(app, help_option_names=["-h", "--help"])
    found = app.commands["search"].make_context("search", given, parent=parent).params
    assert found["only"] == ("NCCL_ALGO", "bucket_cap_mb", "loader")
    assert found["exclude"] == ("batch", "ddp")


def test_the_options_of_compare() -> None:
    of_the_job = {
        "--model", "--device", "--backend", "--nproc-per-node", "--launcher", "--python",
        "--allow-busy", "--batch-size", "--num-workers", "--image-size", "--data", "--precision",
        "--channels-last", "--cudnn-benchmark", "--no-cudnn-benchmark",
    }  # fmt: skip
    own = {"--launches", "--measure-seconds", "--json", "--emulate-hosts"}
    assert options("compare") == of_the_job | own
    assert options("doctor") == of_the_job | {"--json", "--no-launch"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "defaults"], "Missing argument 'B'"),
        (["compare", "defaults", "none.env"], "none.env: no such file"),
        (["compare", "defaults", "defaults", "--launches", "3"], "must be 6 to 12"),
        (["compare", "defaults", "defaults", "--launches", "0"], "must be 6 to 12"),
        (["search", "--confirm-launches", "3"], "must be 6 to 12, or 0 for none"),
        (["search", "--confirm-launches", "13"], "must be 6 to 12, or 0 for none"),
    ],
)
def test_mistakes_of_comparing(nccltune_command: Command, arguments: list[str], said: str) -> None:
    done = nccltune_command(*arguments)
    assert done.code == 2 and said in done.err


def test_the_options_of_show() -> None:
    assert options("show") == SHOW
    arguments = [p.name for p in app.commands["show"].params if isinstance(p, click.Argument)]
    assert arguments == ["study"]


def test_choices_and_defaults() -> None:
    found = {p.name: p for p in app.commands["search"].params}
    choices = {
        n: list(p.type.choices) for n, p in found.items() if isinstance(p.type, click.Choice)
    }
    assert choices == {
        "device": ["auto", "cuda", "cpu"],
        "pruner": ["own", "none", "median", "wilcoxon", "hyperband"],
        "sampler": ["guided", "tpe", "random", "gp", "cmaes", "walk"],
        "backend": ["auto", "nccl", "gloo"],
        "launcher": [
            *("auto", "warm", "torchrun", "slurm", "slurm-torchrun", "ssh", "ssh-torchrun"),
        ],
        "precision": ["fp32", "tf32", "bf16", "fp16"],
        "workdir": ["here", "scratch"],
    }
    defaults = {
        n: p.default
        for n, p in found.items()
        if isinstance(p.default, (str, int, Path)) and p.default
    }
    assert defaults == {
        "device": "auto", "backend": "auto", "launcher": "auto", "data": "images",
        "precision": "tf32", "cudnn_benchmark": True, "studies_dir": Path("studies"),
        "confirm_launches": 12, "workdir": "here", "sampler": "guided", "pruner": "own",
        "ssh": "ssh",
    }  # fmt: skip


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["search", "-h"], ["show", "--help"]])
def test_help(nccltune_command: Command, arguments: list[str]) -> None:
    done = nccltune_command(*arguments)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Usage: ")
    for name in SEARCH if arguments[0] == "search" else ():
        assert name in done.out


def test_the_version(nccltune_command: Command) -> None:
    done = nccltune_command("--version")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"nccltune, version {nccltune.__version__}\n"


@pytest.mark.parametrize("arguments", [["tune"], ["search", "--modell", "x"], ["--trials", "3"]])
def test_an_unknown_name_is_the_users_mistake(
    nccltune_command: Command, arguments: list[str]
) -> None:
    done = nccltune_command(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "No such" in done.err


def test_as_a_module_and_as_a_script(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("nccltune")
    for command in (
        [sys.executable, "-m", "nccltune"],
        *([[str(script)]] if script.exists() else []),
    ):
        done = subprocess.run(
            [*command, "show", "missing"], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            "nccltune: error: missing: no such study in studies; there are: none\n"
        )


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from nccltune.cli import main\n"
        "read, write = os.pipe()\nos.close(read)\nos.dup2(write, 1)\n"
        "sys.argv = ['nccltune', 'show', '--json']\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
