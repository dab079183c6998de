"""Formats in YAML: a ConfigMap of Kubernetes, and the file of `accelerate launch --config_file`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from nccltune.output import words
from nccltune.output.exports.command_lines import exports_in_comment, in_comment, quoted_file
from nccltune.output.exports.result import (
    ALL,
    VARIABLES,
    Exported,
    Result,
    comments,
    on_gpus,
    one_line,
    provenance_lines,
    ranks,
    remarks,
)

_LABEL = 63  # characters of a name that Kubernetes takes anywhere

# The arguments of DDP among the fields of accelerate.utils.DistributedDataParallelKwargs.
_HANDLED = frozenset(
    {
        "broadcast_buffers",
        "bucket_cap_mb",
        "find_unused_parameters",
        "gradient_as_bucket_view",
        "static_graph",
    }
)


class _Text(str):
    """Written in double quotes, so that no reader takes it for a number or a truth value."""


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(
    _Text, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


def _dump(document: Mapping[str, Any]) -> str:
    text = yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, width=float("inf"))
    return str(text)


def k8s(result: Result) -> Exported:
    """A ConfigMap whose keys are the variables, for `envFrom`."""
    notes = remarks(result, VARIABLES)
    study = str(result.best.provenance.get("study") or "")
    name = _label(study)
    told = [*provenance_lines(result.best), *notes]
    header = [*told, f"in a container: envFrom: [{{configMapRef: {{name: {name}}}}}]"]
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            # Comments are gone when it is applied.
            "annotations": {"nccltune/provenance": _Text("\n".join(map(one_line, told)))},
        },
        "data": {name: _Text(value) for name, value in result.env.items()},
    }
    # Nothing that Helm would work out, if the file ends up in a chart.
    text = comments(header).replace("{{", "{ {") + _dump(document).replace("{{", "{\\x7b")
    return Exported(text, tuple(notes))


def _label(study: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", f"nccltune-{study}".lower())
    return name[:_LABEL].strip("-")


def accelerate(result: Result) -> Exported:
    """How many ranks, as `accelerate launch` reads it. Its file has a place for neither variables
    nor arguments of DDP: they stand in comments, as they are to be given.

    Raises: UsageError for a variable that a comment cannot hold.
    """
    notes = remarks(result, ALL)
    handled = {name: value for name, value in result.ddp.items() if name in _HANDLED}
    others = {name: value for name, value in result.ddp.items() if name not in _HANDLED}
    notes += [
        f"accelerate passes no {name} to DDP, so it is left out: {words.value(value)}"
        for name, value in others.items()
    ]
    header = [*provenance_lines(result.best), *notes]
    if not result.is_empty:
        run = f"nccltune run {quoted_file(result)} -- accelerate launch"
        notes.append(
            "accelerate's file has no place for variables and arguments: they are in its comments; "
            f"`{run} ...` passes them"
        )
        header += [
            "This file has no place for variables and arguments. Without a change to the script:",
            in_comment(result, "path", f"{run} --config_file THIS_FILE train.py"),
            "or by hand:",
            *exports_in_comment(result),
            *(in_comment(result, "ddp, loader", line) for line in _snippet(handled, result.loader)),
        ]
    several = (ranks(result.best) or 1) > 1
    if several and not on_gpus(result.best):
        header.append(
            "accelerate starts several ranks on CPUs through mpirun alone (mpirun_config)"
        )
    kind = "MULTI_GPU" if on_gpus(result.best) else "MULTI_CPU"
    document = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind if several else "NO",
        "num_machines": 1,
        "machine_rank": 0,
        "num_processes": ranks(result.best) or 1,
        "use_cpu": not on_gpus(result.best),
    }
    return Exported(comments(header) + _dump(document), tuple(notes))


def _snippet(ddp: Mapping[str, Any], loader: Mapping[str, Any]) -> list[str]:
    lines = []
    if ddp:
        given = ", ".join(f"{name}={value!a}" for name, value in ddp.items())
        lines += [
            "from accelerate.utils import DistributedDataParallelKwargs",
            f"ddp = DistributedDataParallelKwargs({given})",
            "accelerator = Accelerator(kwargs_handlers=[ddp])",
        ]
    if loader:
        lines.append(f"loader = DataLoader(dataset, **{dict(loader)!a})")
    return lines
