"""Exports that programs load: JSON, a Python module, the module for Lightning."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from export_samples import (
    DDP,
    ENV,
    HOSTILE,
    HOSTILE_LINES,
    LOADER,
    VARIABLES,
    comments_of,
    hostile_result,
    result_of,
    text_of,
)
from hypothesis import given, settings

from nccltune.output.exports.formats import export
from nccltune.output.exports.result import provenance

MANY = {f"NCCL_HOSTILE_{n}": value for n, value in enumerate(HOSTILE)}
ODD = {text: text for text in HOSTILE_LINES}  # an argument's name and value may be any text


def module(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The names that a module has when it was run, from bytes as Python reads a file, and the
    environment then.
    """
    names: dict[str, Any] = {}
    with patch.dict(os.environ, clear=True):
        exec(compile(text.encode(), "settings.py", "exec"), names)
        return names, dict(os.environ)


@settings(max_examples=60, deadline=None)
@given(VARIABLES)
def test_any_value_reaches_python(variables: dict[str, str]) -> None:
    names, environ = module(text_of(result_of(variables), "python"))
    assert names["env"] == environ == variables
    assert (names["ddp_kwargs"], names["loader_kwargs"], names["batch_size"]) == (DDP, LOADER, 64)


@settings(max_examples=60, deadline=None)
@given(VARIABLES)
def test_any_value_reaches_json(variables: dict[str, str]) -> None:
    text = text_of(result_of(variables), "json")
    assert text.isascii()
    document = json.loads(text)
    assert (document["env"], document["ddp"], document["loader"]) == (variables, DDP, LOADER)


@settings(max_examples=60, deadline=None)
@given(VARIABLES)
def test_any_value_reaches_the_module_for_lightning(variables: dict[str, str]) -> None:
    # Importing Lightning takes seconds: test_exports_jobs.py does it.
    tree = ast.parse(text_of(result_of(variables), "lightning").encode())
    assigned = {ast.unparse(n.targets[0]): n.value for n in tree.body if isinstance(n, ast.Assign)}
    assert ast.literal_eval(assigned["env"]) == variables
    assert ast.literal_eval(assigned["ddp_kwargs"]) == DDP


@pytest.mark.parametrize("line", HOSTILE_LINES)
def test_python_runs_nothing_of_what_a_file_holds(line: str) -> None:
    hostile = hostile_result(line, env=MANY, ddp=ODD, loader=ODD)
    plain = result_of(MANY, ddp=ODD, loader=ODD, workload={"batch_size": 32})
    for format in ("python", "lightning"):
        made, expected = (ast.parse(text_of(r, format).encode()) for r in (hostile, plain))
        assert ast.dump(made) == ast.dump(expected)
    names, environ = module(text_of(hostile, "python"))
    assert (environ, names["ddp_kwargs"], names["loader_kwargs"]) == (MANY, ODD, ODD)


@pytest.mark.parametrize("line", HOSTILE_LINES)
def test_json_holds_every_text(line: str) -> None:
    document = json.loads(text_of(hostile_result(line, env=MANY, ddp=ODD), "json"))
    assert (document["env"], document["ddp"]) == (MANY, ODD)


def test_a_module_is_imported_and_keeps_what_is_set(tmp_path: Path) -> None:
    (tmp_path / "best.py").write_text(text_of(result_of(), "python"))
    done = subprocess.run(
        [sys.executable, "-c", "import best, os; print(os.environ['NCCL_ALGO'], best.env)"],
        cwd=tmp_path, env={"NCCL_ALGO": "Tree"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (f"Tree {ENV}\n", "")


def test_json_tells_where_it_is_from() -> None:
    result = result_of(batch_size=256)
    document = json.loads(text_of(result, "json"))
    assert document["provenance"] == provenance(result.best)
    assert document["provenance"]["study"] == "h200x2-comm, trial 22 of 24"
    assert document["batch_size"] == 256
    assert document["notes"] == list(export(result, "json").notes)
    assert document["notes"][0].startswith("measured with batch size 256 a rank, not the 64")


def test_a_module_tells_where_it_is_from() -> None:
    for format in ("python", "lightning"):
        found = comments_of(text_of(result_of(), format))
        assert "study: h200x2-comm, trial 22 of 24" in found
