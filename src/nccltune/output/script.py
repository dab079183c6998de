"""What was seen of the user's script, in lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nccltune.output.ddp_findings import unused_parameters_finding


def script_lines(name: str, facts: Mapping[str, Any]) -> Iterator[str]:
    """How its speed is counted, which loader is taken for the training's, what it sets itself."""
    samples = facts["samples_per_step"]
    per_rank = f"{samples[0]:g}" if len(set(samples)) == 1 else " ".join(f"{s:g}" for s in samples)
    yield f"{name}: {per_rank} samples a rank and step{_counted(facts)}"
    yield from _loaders(name, facts)
    if not facts["ddp_modules"]:
        what = "its model is sharded by FSDP" if facts["fsdp"] else "no model is wrapped in DDP"
        yield f"{name}: {what}, so there are no DDP arguments to search"
    if facts["ddp_kept"]:
        kept = " ".join(f"{argument}={value}" for argument, value in facts["ddp_kept"].items())
        yield f"{name}: sets DDP arguments itself, which stay: {kept}"
    if not facts["parameters_equal"]:
        yield (
            f"{name}: parameters differ between ranks after a step, so that they cannot be checked"
        )
    finding = unused_parameters_finding(facts["ddp_logging"])
    if finding is not None:
        yield f"{name}: {finding.fact}; {finding.next}"


def _counted(facts: Mapping[str, Any]) -> str:
    if facts["told"]:
        return ", as it tells itself"
    several = len(facts["optimizers"]) > 1
    number = facts["optimizer"]
    accumulated = "; gradients are accumulated" if facts["accumulates"] else ""
    if not several:
        return accumulated
    counts = " ".join(map(str, facts["optimizers"]))
    return (
        f" of optimizer {number}, the busiest of {len(facts['optimizers'])} (steps: {counts}; "
        f"--optimizer N takes another){accumulated}"
    )


def _loaders(name: str, facts: Mapping[str, Any]) -> Iterator[str]:
    feeding = [r for r in facts["loaders"] if r["key"] in facts["training"]]
    if not facts["loaders"]:
        yield f"{name}: makes no DataLoader in its ranks"
    elif not feeding:
        yield f"{name}: no DataLoader gives a batch a step; --loader-match names one"
    for loader in feeding:
        dataset = loader["key"].partition(":")[2]
        yield (
            f"{name}: the DataLoader of {loader['place']} ({dataset}, {loader['num_workers']} "
            "workers) feeds the training; --loader-match names another"
        )
