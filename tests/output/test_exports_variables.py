"""Exports of variables alone, through those who read them: shells, python-dotenv, docker, NCCL."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import dotenv
import pytest
from export_readers import docker_environment
from export_samples import (
    DDP,
    ENV,
    HOSTILE,
    HOSTILE_LINES,
    SHELLS,
    VARIABLES,
    best_of,
    hostile_result,
    of_one_line,
    result_of,
    shell_environment,
    text_of,
)
from hypothesis import example, given, settings

from nccltune.errors import UsageError
from nccltune.nccl.site import conf_lines, conf_setting, site_variables
from nccltune.output.exports.formats import export
from nccltune.output.exports.result import Result

MANY = {f"NCCL_HOSTILE_{n}": value for n, value in enumerate(HOSTILE)}


def sourced(shell: str, text: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "settings").write_bytes(text.encode())
        return shell_environment(shell, ". ./settings", Path(folder))


# Shells.


@settings(max_examples=15, deadline=None)
@given(VARIABLES)
def test_any_value_reaches_every_shell_bit_for_bit(variables: dict[str, str]) -> None:
    for format in ("env", "slurm"):
        text = text_of(result_of(variables), format)
        for shell in SHELLS:
            assert sourced(shell, text) == variables


@pytest.mark.parametrize("format", ["env", "slurm"])
@pytest.mark.parametrize("shell", SHELLS)
def test_no_shell_runs_what_a_file_holds(shell: str, format: str) -> None:
    for line in HOSTILE_LINES:
        assert sourced(shell, text_of(hostile_result(line, env=MANY), format)) == MANY


def test_the_lines_of_an_env_file() -> None:
    assert text_of(result_of(ddp={}, loader={}), "env") == (
        "# exported from a result of nccltune 0.1.0\n"
        "# study: h200x2-comm, trial 22 of 24\n"
        "# date: 2026-11-30T05:20:15+00:00\n"
        "# command: nccltune search\n"
        "# machine: 2x NVIDIA H200; driver 580.1; NCCL 2.28.9; torch 2.11.0\n"
        "# job: resnet50, batch 64 a rank, tf32, 2 ranks\n"
        "# verdict: Faster than the defaults: 49.9% [44 .. 55]\n"
        "export NCCL_ALGO='ring,tree;allreduce:tree'\n"
        "export NCCL_PROTO='^LL128'\n"
        "export NCCL_BUFFSIZE=8388608\n"
    )


def test_lines_for_a_job_script_tell_the_launch() -> None:
    text = text_of(result_of(), "slurm")
    assert text.split("\n")[-2] == (
        "# srun --ntasks-per-node=1 nccltune run '/studies/a study/best.yaml' -- torchrun "
        "--standalone --nproc-per-node=2 train.py"
    )
    assert "#SBATCH" not in [line[:7] for line in text.split("\n")]
    alone = text_of(result_of(ddp={}, loader={}), "slurm")
    assert "=1 torchrun --standalone --nproc-per-node=2 train.py\n" in alone


@settings(max_examples=60, deadline=None)
@given(VARIABLES)
@example({"NCCL_V0": "a\rb"})
def test_python_dotenv_reads_the_same_or_that_is_told(variables: dict[str, str]) -> None:
    made = export(result_of(variables, ddp={}, loader={}), "env")
    if any("python-dotenv" in note for note in made.notes):
        assert any(part in v for v in variables.values() for part in ("'", "\\", "${", "\r"))
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings"
        file.write_bytes(made.text.encode())
        seen = dotenv.dotenv_values(file)
    assert seen == variables


def test_nothing_is_told_of_values_as_they_are() -> None:
    assert export(result_of(ddp={}, loader={}), "env").notes == ()


# docker.


def docker_lines(text: str) -> dict[str, str]:
    """docker's documented rules: a line is a comment if it begins with #, else VAR=VALUE, and all
    of the value is kept. A line end is a line feed, with a carriage return or without.
    """
    seen = {}
    for line in text.split("\n"):
        line = line.removesuffix("\r").lstrip(" \t")
        if line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            assert equals and not set(name) & set(" \t"), f"docker refuses {line!r}"
            seen[name] = value
    return seen


@settings(max_examples=60, deadline=None)
@given(VARIABLES)
def test_any_value_reaches_docker_or_is_refused(variables: dict[str, str]) -> None:
    broken = [n for n, v in variables.items() if "\n" in v or v.endswith("\r")]
    if broken:
        with pytest.raises(UsageError, match=r"NCCL_\w+: holds a line break"):
            text_of(result_of(variables), "docker")
    else:
        assert docker_lines(text_of(result_of(variables), "docker")) == variables


@pytest.mark.skipif(shutil.which("docker") is None, reason="no docker here")
@settings(max_examples=3, deadline=None)
@given(VARIABLES.filter(of_one_line))
def test_docker_itself_reads_it(variables: dict[str, str]) -> None:
    variables |= MANY
    for line in HOSTILE_LINES[-2:]:
        assert (
            docker_environment(text_of(hostile_result(line, env=variables), "docker")) == variables
        )


def test_a_line_that_docker_would_not_take_is_refused() -> None:
    fits = {"NCCL_TOPO_FILE": "x" * (64 * 1024 - 100)}
    assert docker_lines(text_of(result_of(fits), "docker")) == fits
    with pytest.raises(UsageError, match=r"env.NCCL_TOPO_FILE: longer than docker"):
        text_of(result_of({"NCCL_TOPO_FILE": "x" * 64 * 1024}), "docker")


# nccl.conf.


def conf_settings(text: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "nccl.conf"
        file.write_bytes(text.encode())
        site = site_variables({"NCCL_CONF_FILE": str(file)}, system_conf=Path(folder) / "none")
    return {v.name: v.value for v in site.values() if v.source == str(file)}


@settings(max_examples=60, deadline=None)
@given(VARIABLES)
def test_any_value_reaches_nccl_or_is_refused(variables: dict[str, str]) -> None:
    try:
        text = text_of(result_of(variables), "nccl-conf")
    except UsageError as error:
        assert "a line of nccl.conf cannot hold it" in str(error)
        assert any("\n" in v or v.endswith("\r") for v in variables.values())
    else:
        assert conf_settings(text) == variables


def test_no_comment_becomes_a_setting_of_nccl() -> None:
    for line in HOSTILE_LINES:
        text = text_of(hostile_result(line, env=MANY), "nccl-conf")
        # NCCL takes the rest of a line that is too long for another, whatever its name is then.
        assert dict(
            filter(None, (conf_setting(part) for _, part in conf_lines(text.encode())))
        ) == (MANY)
        assert conf_settings(text) == MANY


def test_a_value_that_nccl_would_cut_is_refused() -> None:
    assert conf_settings(text_of(result_of({"NCCL_TOPO_FILE": "é" * 511}), "nccl-conf"))
    with pytest.raises(UsageError, match=r"NCCL_TOPO_FILE: a line of nccl.conf cannot hold it"):
        text_of(result_of({"NCCL_TOPO_FILE": "é" * 512}), "nccl-conf")


def test_what_nccl_does_not_read_from_its_file_is_left_out_and_told() -> None:
    others = {
        "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
        "OMP_NUM_THREADS": "8",
        "FI_PROVIDER": "efa",
        "NCCL_BLOCKING_WAIT": "1",  # torch's, in spite of its name
        "NCCL_CONF_FILE": "other",
    }
    made = export(result_of({**ENV, **others}, ddp={}, loader={}), "nccl-conf")
    assert conf_settings(made.text) == ENV
    listed = " ".join(f"{name}={value}" for name, value in others.items())
    note = f"not read from nccl.conf, so left out; export it in the job: {listed}"
    assert made.notes == (note,)
    assert f"# {note}\n" in made.text


# What has no place.


@pytest.mark.parametrize("format", ["env", "docker", "nccl-conf", "slurm", "k8s"])
def test_arguments_are_told_in_the_file_and_beside_it(format: str) -> None:
    made = export(result_of(), format)
    (note,) = made.notes
    assert note.startswith(
        "not part of this format: DDP arguments (bucket_cap_mb=50 gradient_as_bucket_view=true) "
        "and DataLoader settings (num_workers=12 prefetch_factor=4 "
    )
    assert f"# {note}\n" in made.text
    (of_ddp,) = export(result_of(loader={}), format).notes
    assert "DataLoader" not in of_ddp
    assert export(result_of(ddp={}, loader={}), format).notes == ()


def test_a_larger_batch_a_place_and_an_unpinned_variable_are_told() -> None:
    best = best_of(
        ddp={}, loader={}, batch_size=256,
        workload={"model": "m", "batch_size": 64, "placed": {"num_workers": 4}},
        provenance={"unpinned": ["NCCL_DEBUG"]},
    )  # fmt: skip
    made = export(Result("/best.yaml", best, best.env), "env")
    assert made.notes == (
        "measured with batch size 256 a rank, not the 64 of the job: another training, set it in "
        "the script",
        "measured with num_workers=4 in the script's arguments; give it there",
        "measured without NCCL_DEBUG: take that out of the job's environment",
    )
    for note in made.notes:
        assert f"# {note}\n" in made.text


def test_a_file_without_provenance_is_exported_too() -> None:
    result = result_of(workload={}, verdict=None, machine={}, provenance={}, ddp=DDP)
    assert text_of(result, "env").split("\n")[:2] == [
        "# exported from a result of nccltune of an unknown version",
        "# verdict: not confirmed",
    ]
