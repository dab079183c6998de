"""Formats for a command line: a torchrun command, arguments of the transformers Trainer."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Literal

from nccltune.errors import UsageError
from nccltune.output.exports.result import (
    ALL,
    Exported,
    Result,
    comments,
    nodes,
    one_line,
    provenance_lines,
    ranks,
    remarks,
)
from nccltune.output.words import settings

# (target, our name) -> the Trainer's argument, and how it is read. `--help` of a script that uses
# TrainingArguments lists them; ddp_static_graph is missing in older releases.
_TRAINER: Mapping[tuple[str, str], tuple[str, Literal["whole", "switch"]]] = {
    ("ddp", "bucket_cap_mb"): ("ddp_bucket_cap_mb", "whole"),
    ("ddp", "find_unused_parameters"): ("ddp_find_unused_parameters", "switch"),
    ("ddp", "broadcast_buffers"): ("ddp_broadcast_buffers", "switch"),
    ("ddp", "static_graph"): ("ddp_static_graph", "switch"),
    ("loader", "num_workers"): ("dataloader_num_workers", "whole"),
    ("loader", "prefetch_factor"): ("dataloader_prefetch_factor", "whole"),
    ("loader", "pin_memory"): ("dataloader_pin_memory", "switch"),
    ("loader", "persistent_workers"): ("dataloader_persistent_workers", "switch"),
}
# What DDP has wherever the Trainer makes it, so that nothing is lost.
_TRAINERS_OWN = {("gradient_as_bucket_view", False), ("static_graph", False)}


def torchrun_command(result: Result) -> str:
    """`torchrun` and its options, for one machine; or as each of several nodes starts it, with
    HEAD for the first of them.
    """
    count, several = ranks(result.best), nodes(result.best)
    if several > 1:
        meeting = "--rdzv-backend=c10d --rdzv-endpoint=HEAD:29500"
        return f"torchrun --nnodes={several} --nproc-per-node={count or 'auto'} {meeting}"
    return f"torchrun --standalone --nproc-per-node={count or 'auto'}"


def job_command(result: Result) -> str:
    """What to write before the script. DDP and DataLoader settings get there through `nccltune
    run`, which sets the variables too.
    """
    if not (result.ddp or result.loader):
        return torchrun_command(result)
    return f"nccltune run {quoted_file(result)} -- {torchrun_command(result)}"


def quoted_file(result: Result) -> str:
    """The path of the best.yaml for a shell. Raises UsageError where it is no text."""
    try:
        result.file.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{one_line(result.file)}: the path is no text; rename it") from None
    return shlex.quote(result.file)


def exports_in_comment(result: Result) -> list[str]:
    """`export` lines for a file that has no other place for variables.

    Raises: UsageError for a value that cannot be read in a comment.
    """
    return [
        in_comment(result, f"env.{name}", f"export {name}={shlex.quote(value)}")
        for name, value in result.env.items()
    ]


def in_comment(result: Result, what: str, line: str) -> str:
    """A line that a reader copies from a comment. Raises UsageError where it would be another."""
    if one_line(line) != line:
        raise UsageError(
            f"{result.file}: {what}: holds what this format, a comment of one line, cannot say; "
            "--format python can"
        )
    return line


def torchrun(result: Result) -> Exported:
    """A command to which the script and its arguments are added."""
    notes = remarks(result, ALL)
    header = [*provenance_lines(result.best), *notes]
    if result.ddp or result.loader:
        told = {**result.env, **result.ddp, **result.loader}
        header.append(f"nccltune run sets {settings(told)}, and keeps what the site sets")
        command = job_command(result)
    else:
        assigned = [f"{name}={shlex.quote(value)}" for name, value in result.env.items()]
        command = " ".join([*assigned, torchrun_command(result)])
    header.append("add the script and its arguments")
    # In quotes: an interactive zsh takes # for a command, and would act on what follows.
    lines = [f"# {shlex.quote(one_line(line))}\n" for line in header]
    return Exported("".join(lines) + command + "\n", tuple(notes))


def hf_trainer(result: Result) -> Exported:
    """Arguments for a script that parses TrainingArguments, in one line."""
    notes = remarks(result, ALL)
    words: list[str] = []
    for target, values in (("ddp", result.ddp), ("loader", result.loader)):
        for name, value in values.items():
            found = _argument(target, name, value, result.loader)
            words += found or []
            if found is None:
                what = settings({name: value})
                notes.append(f"the Trainer has no argument for {what}; `nccltune run` passes it")
    header = [*provenance_lines(result.best), *notes]
    usual = result.best.workload.get("batch_size")
    if isinstance(usual, int) and usual != result.best.batch_size:
        header.append(f"as it was measured: --per_device_train_batch_size {result.best.batch_size}")
    if result.env:
        variables = " ".join(result.env)
        notes.append(f"variables are no arguments: export {variables} (in comments of the file)")
        header += ["variables, to be exported before the launch:", *exports_in_comment(result)]
    return Exported(comments(header) + (" ".join(words) + "\n" if words else ""), tuple(notes))


def _argument(target: str, name: str, value: Any, loader: Mapping[str, Any]) -> list[str] | None:
    """Words for the Trainer, none where it has that anyway; None where it has no place for it."""
    if (name, value) in _TRAINERS_OWN or (name == "prefetch_factor" and value is None):
        return []
    argument, kind = _TRAINER.get((target, name), (None, None))
    if argument is None or (name == "prefetch_factor" and not loader.get("num_workers")):
        return None
    if kind == "switch":
        return [f"--{argument}", str(value)] if isinstance(value, bool) else None
    if value is None:
        return []
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
        return None
    return [f"--{argument}", str(int(value))]
