"""Results to be exported, and small readers of what comes out."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from nccltune.output.best import Best
from nccltune.output.exports.formats import export
from nccltune.output.exports.result import Result

SHELLS = ("sh", "bash", "dash")

ENV = {"NCCL_ALGO": "ring,tree;allreduce:tree", "NCCL_PROTO": "^LL128", "NCCL_BUFFSIZE": "8388608"}
DDP = {"bucket_cap_mb": 50, "gradient_as_bucket_view": True}
LOADER = {"num_workers": 12, "prefetch_factor": 4, "pin_memory": True, "persistent_workers": True}

# Texts that would be run, set or read as something else if they ever left their comment or value.
SHELL_SYNTAX = "$(touch made) `touch made`; touch made | touch made & touch made > made"
HOSTILE = (
    SHELL_SYNTAX,
    f"'; {SHELL_SYNTAX} #",
    f'"; {SHELL_SYNTAX} "',
    "# no comment",
    "%s %n {{ .Values.evil }} {% evil %} ${HOME} $HOME ~ * ? [a-z] !x !!",
    "*/ --> ''' \"\"\" ]]> \\",
    "ends in a backslash\\",
    " blanks around ",
    "-n",
    "= a=b",
    "größer 速い \U0001f680 \u00a0",
    "NO",
    "0x10",
    "",
)
# What a file may hold in the places that become comments.
HOSTILE_LINES = (
    *HOSTILE,
    "two\nNCCL_EVIL=1\ntouch made\nimport made\nevil: 1",
    "two\r\nNCCL_EVIL=1\rexport NCCL_EVIL=1",
    "two\x85NCCL_EVIL=1\u2028NCCL_EVIL=1\x0bNCCL_EVIL=1\x0cNCCL_EVIL=1",
    "\0 \x1b[2J \x7f \u202e \ud800 \ufeff",
    "-*- coding: utf_7 -*- +AAo-import made",
    "vim: set modeline : " + "x" * 5000 + "\nNCCL_EVIL=1",
    "y" * 4096 + "NCCL_EVIL=1",
)

# What NCCL takes for a value is whatever the environment can hold; here as text.
_CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0")
_VALUE = st.one_of(st.text(_CHARACTERS, max_size=20), st.sampled_from(HOSTILE))
VARIABLES = st.lists(_VALUE, max_size=8).map(
    lambda values: {f"NCCL_V{n}": value for n, value in enumerate(values)}
)


PROVENANCE = ("nccltune", "study", "trial", "trials", "date", "command", "nccl")


def of_one_line(variables: Mapping[str, str]) -> bool:
    return not any("\n" in value or "\r" in value for value in variables.values())


def best_of(
    env: Mapping[str, str] = ENV,
    ddp: Mapping[str, Any] = DDP,
    loader: Mapping[str, Any] = LOADER,
    **given: Any,
) -> Best:
    fields: dict[str, Any] = {
        "batch_size": 64,
        "workload": {"model": "resnet50", "precision": "tf32", "batch_size": 64,
                     "device": "cuda", "backend": "nccl", "nproc_per_node": 2},
        "verdict": {"word": "FASTER", "sentence": "Faster than the defaults: 49.9% [44 .. 55]"},
        "machine": {"gpus": ["NVIDIA H200"] * 2, "driver": "580.1", "torch": "2.11.0",
                    "nccl": "2.28.9"},
        "provenance": {"nccltune": "0.1.0", "study": "h200x2-comm", "trial": 22, "trials": 24,
                       "date": "2026-11-30T05:20:15+00:00", "command": "nccltune search"},
        **given,
    }  # fmt: skip
    return Best(env=env, ddp=ddp, loader=loader, **fields)


def result_of(*args: Any, **given: Any) -> Result:
    best = best_of(*args, **given)
    return Result("/studies/a study/best.yaml", best, best.env)


def hostile_result(text: str, **given: Any) -> Result:
    """Every text of the file that may end up in a comment is this one."""
    return result_of(
        workload={"model": text, "precision": text, "batch_size": 32, "placed": {text: text},
                  "emulate_hosts": text, "nproc_per_node": 2},
        verdict={"word": text, "sentence": text},
        machine={"gpus": [text, text], "driver": text, "torch": text, "nccl": text, "cores": text},
        provenance={**dict.fromkeys(PROVENANCE, text), "unpinned": [text]},
        **given,
    )  # fmt: skip


def text_of(result: Result, format: str) -> str:
    return export(result, format).text


def shell_environment(shell: str, command: str, folder: Path) -> dict[str, str]:
    """What a program sees that a shell starts after `command`, beyond what the shell adds itself.

    Nothing else may have come of it: no output, no file.
    """
    before = sorted(folder.iterdir())
    done = subprocess.run(
        ["env", "-i", "PATH=/usr/bin:/bin", shell, "-c", f"{command}\nenv -0"],
        cwd=folder, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(folder.iterdir()) == before
    entries = (entry.partition("=") for entry in done.stdout.decode().split("\0") if entry)
    own = {"PATH", "PWD", "OLDPWD", "SHLVL", "_"}
    return {name: value for name, _, value in entries if name not in own}


def comments_of(text: str) -> list[str]:
    return [line.removeprefix("#").strip() for line in text.split("\n") if line.startswith("#")]
