"""Exports for a command line, as shells read them. The Trainer's own parser is asked in
test_exports_jobs.py.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from pathlib import Path

import pytest
from export_samples import (
    DDP,
    ENV,
    HOSTILE,
    HOSTILE_LINES,
    LOADER,
    SHELLS,
    VARIABLES,
    comments_of,
    hostile_result,
    result_of,
    shell_environment,
    text_of,
)
from hypothesis import given, settings

from nccltune.errors import UsageError
from nccltune.output.exports.formats import export
from nccltune.output.exports.result import Result

MANY = {f"NCCL_HOSTILE_{n}": value for n, value in enumerate(HOSTILE)}
TORCHRUN = """#!/bin/sh
printf '%s\\0' "$@" end
env -0
"""


def started(shell: str, text: str) -> tuple[list[str], dict[str, str]]:
    """What the torchrun of a pasted command gets: its arguments, and NCCL's variables."""
    with tempfile.TemporaryDirectory() as name:
        program = Path(name) / "torchrun"
        program.write_text(TORCHRUN)
        program.chmod(0o755)
        command = text.rstrip("\n") + " train.py"
        done = subprocess.run(
            ["env", "-i", f"PATH={name}:/usr/bin:/bin", shell, "-c", command], cwd=name,
            capture_output=True, timeout=60, check=True,
        )  # fmt: skip
        assert done.stderr == b"" and sorted(Path(name).iterdir()) == [program]
    words = done.stdout.decode().split("\0")
    entries = (word.partition("=") for word in words if word.startswith("NCCL_"))
    return words[: words.index("end")], {name: value for name, _, value in entries}


@settings(max_examples=8, deadline=None)
@given(VARIABLES.filter(lambda v: not any("\r" in value for value in v.values())))
def test_any_value_reaches_torchrun(variables: dict[str, str]) -> None:
    text = text_of(result_of(variables, ddp={}, loader={}), "torchrun")
    for shell in SHELLS:
        assert started(shell, text) == (
            ["--standalone", "--nproc-per-node=2", "train.py"],
            variables,
        )


@pytest.mark.parametrize("shell", SHELLS)
def test_a_pasted_command_runs_nothing_else(shell: str) -> None:
    for line in HOSTILE_LINES:
        text = text_of(hostile_result(line, env=MANY, ddp={}, loader={}), "torchrun")
        # zsh, where one types, takes # for the name of a command, and reads what follows.
        typed = "".join(f":{t[1:]}\n" for t in text.split("\n") if t.startswith("#"))
        with tempfile.TemporaryDirectory() as folder:
            assert shell_environment(shell, text.rpartition("\n# ")[0], Path(folder)) == {}
            assert shell_environment(shell, typed, Path(folder)) == {}


def test_arguments_get_there_through_nccltune_run() -> None:
    made = export(result_of(), "torchrun")
    *told, command, _ = made.text.split("\n")
    assert command == (
        "nccltune run '/studies/a study/best.yaml' -- torchrun --standalone --nproc-per-node=2"
    )
    assert any(
        "nccltune run sets NCCL_ALGO=ring,tree;allreduce:tree NCCL_PROTO=^LL128" in line
        for line in told
    )
    assert made.notes == ()


def test_a_path_that_is_no_text_is_refused_where_it_is_needed() -> None:
    result = result_of()
    odd = Result("/studies/\udcff/best.yaml", result.best, result.env)
    with pytest.raises(UsageError, match=r"the path is no text"):
        export(odd, "torchrun")
    assert export(odd, "env").text == export(result, "env").text


@pytest.mark.parametrize(
    ("workload", "option"), [({}, "auto"), ({"nproc_per_node": "x; touch made"}, "auto"),
                             ({"nproc_per_node": 8}, "8"), ({"nproc_per_node": -1}, "auto")],
)  # fmt: skip
def test_how_many_ranks(workload: dict[str, object], option: str) -> None:
    text = text_of(result_of(workload=workload, machine={}, ddp={}, loader={}), "torchrun")
    assert text.endswith(f" torchrun --standalone --nproc-per-node={option}\n")


# The Trainer of transformers.


def test_the_trainers_arguments() -> None:
    made = export(result_of(), "hf-trainer")
    *told, arguments, _ = made.text.split("\n")
    assert arguments == (
        "--ddp_bucket_cap_mb 50 --dataloader_num_workers 12 --dataloader_prefetch_factor 4 "
        "--dataloader_pin_memory True --dataloader_persistent_workers True"
    )
    note = "the Trainer has no argument for gradient_as_bucket_view=true; `nccltune run` passes it"
    assert note in made.notes
    assert f"# {note}" in told
    assert "# export NCCL_PROTO='^LL128'" in told


@pytest.mark.parametrize(
    ("ddp", "loader", "words", "without"),
    [
        ({"bucket_cap_mb": 25.0}, {}, "--ddp_bucket_cap_mb 25", ""),
        ({"bucket_cap_mb": 12.5}, {}, "", "bucket_cap_mb=12.5"),
        ({"bucket_cap_mb": "1; touch made"}, {}, "", "bucket_cap_mb=1; touch made"),
        ({"bucket_cap_mb": None, "gradient_as_bucket_view": False}, {}, "", ""),
        ({"static_graph": True}, {}, "--ddp_static_graph True", ""),
        ({"static_graph": False}, {}, "", ""),
        ({"broadcast_buffers": "no"}, {}, "", "broadcast_buffers=no"),
        ({"x --evil": True}, {}, "", "x --evil=true"),
        ({}, {"num_workers": 0, "prefetch_factor": 4}, "--dataloader_num_workers 0",
         "prefetch_factor=4"),
        ({}, {"num_workers": 1, "prefetch_factor": None}, "--dataloader_num_workers 1", ""),
        ({}, {"timeout": 5}, "", "timeout=5"),
    ],
)  # fmt: skip
def test_what_the_trainer_has_no_argument_for_is_told(
    ddp: dict[str, object], loader: dict[str, object], words: str, without: str
) -> None:
    made = export(result_of({}, ddp=ddp, loader=loader), "hf-trainer")
    lines = [line for line in made.text.split("\n") if line and not line.startswith("#")]
    assert lines == ([words] if words else [])
    told = [f"the Trainer has no argument for {without}; `nccltune run` passes it"]
    assert list(made.notes) == (told if without else [])


def test_a_measured_batch_is_a_comment() -> None:
    same, larger = (text_of(result_of(batch_size=n), "hf-trainer") for n in (64, 256))
    assert "per_device" not in same
    assert "as it was measured: --per_device_train_batch_size 256" in comments_of(larger)


@pytest.mark.parametrize("line", HOSTILE_LINES)
def test_no_comment_becomes_an_argument(line: str) -> None:
    text = text_of(hostile_result(line, env=ENV, ddp=DDP, loader=LOADER), "hf-trainer")
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    assert len(lines) == 1 and all(word.isascii() for word in shlex.split(lines[0]))


@settings(max_examples=60, deadline=None)
@given(VARIABLES)
def test_variables_are_comments_as_they_are_or_refused(variables: dict[str, str]) -> None:
    try:
        found = comments_of(text_of(result_of(variables), "hf-trainer"))
    except UsageError as error:
        assert not all(value.isprintable() for value in variables.values())
        assert "env.NCCL_V" in str(error)
    else:
        for name, value in variables.items():
            assert f"export {name}={shlex.quote(value)}".strip() in found
