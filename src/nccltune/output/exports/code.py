"""Formats that programs load: JSON, a Python module, a snippet for Lightning."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nccltune.output.exports.result import (
    ALL,
    Exported,
    Result,
    comments,
    provenance,
    provenance_lines,
    remarks,
)

# Not a comment, so that no comment below it can name another encoding for the file (PEP 263).
_FIRST_LINE = '"""Settings that nccltune found; import this before the process group is made."""\n'


def as_json(result: Result) -> Exported:
    """Everything as one object, in ASCII. `batch_size` is a rank's."""
    notes = remarks(result, ALL)
    document = {
        "version": 1,
        "env": dict(result.env),
        "ddp": dict(result.ddp),
        "loader": dict(result.loader),
        "batch_size": result.best.batch_size,
        "provenance": provenance(result.best),
        "notes": notes,
    }
    return Exported(json.dumps(document, indent=2) + "\n", tuple(notes))


def python(result: Result) -> Exported:
    """A module that sets the variables and holds the arguments as dicts."""
    parts = [
        "import os\n",
        _environment(result),
        "# DistributedDataParallel(model, **ddp_kwargs)\n" + _literal("ddp_kwargs", result.ddp),
        _loader(result),
    ]
    return _module(result, parts)


def lightning(result: Result) -> Exported:
    """The same, with the strategy for Lightning's Trainer."""
    parts = [
        "import os\n\nfrom lightning.pytorch.strategies import DDPStrategy\n",
        _environment(result),
        "# Trainer(strategy=strategy, ...)\n"
        + _literal("ddp_kwargs", result.ddp)
        + "strategy = DDPStrategy(**ddp_kwargs)\n",
        _loader(result),
    ]
    return _module(result, parts)


def _module(result: Result, parts: list[str]) -> Exported:
    notes = remarks(result, ALL)
    header = comments([*provenance_lines(result.best), *notes])
    return Exported("\n".join([_FIRST_LINE, header, *parts]), tuple(notes))


def _environment(result: Result) -> str:
    return (
        _literal("env", result.env)
        + "for _name, _value in env.items():\n"
        + "    os.environ.setdefault(_name, _value)  # what is set already stays\n"
    )


def _loader(result: Result) -> str:
    return (
        "# DataLoader(dataset, batch_size=batch_size, **loader_kwargs); the batch is a rank's\n"
        + _literal("loader_kwargs", result.loader)
        + f"batch_size = {result.best.batch_size}\n"
    )


def _literal(name: str, values: Mapping[str, Any]) -> str:
    """An assignment in ASCII, whatever the texts hold."""
    if not values:
        return f"{name} = {{}}\n"
    lines = [f"    {key!a}: {value!a},\n" for key, value in values.items()]
    return f"{name} = {{\n{''.join(lines)}}}\n"
