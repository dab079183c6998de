"""The nodes that ranks are on: what each is, without its name, and whether they are alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nccltune.errors import UsageError
from nccltune.study.fingerprinting import DIGEST

_VERSIONS = ("torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
_ORDER = "node"
# Memory sizes vary by themselves; how many ranks there are is the task's.
_NOT_COMPARED = ("memory_gib", "usable_gpus")


def fingerprints(facts: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """As study.yaml holds them: the number of the node, a digest, and what it is."""
    return tuple({_ORDER: at, DIGEST: _digest(each), **each} for at, each in enumerate(facts))


def _digest(facts: Mapping[str, Any]) -> str:
    """The same for nodes that may stand in for each other."""
    compared = {name: value for name, value in facts.items() if name not in _NOT_COMPARED}
    return hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()[:16]


def check_nodes(
    nodes: Sequence[Mapping[str, Any]], names: Sequence[str], ranks: int, *, gpus: bool
) -> None:
    """Raises UsageError, with the node's name, where ranks could not work together."""
    for node, name in zip(nodes, names, strict=True):
        count = _gpus_of(node)
        if gpus and count is not None and count < ranks:
            fewer = f"give --nproc-per-node {count}, or " if count else ""
            raise UsageError(
                f"node {name} has {count} GPUs for this job, and every node needs one for each of "
                f"its {ranks} ranks; {fewer}take nodes with as many (Slurm: --gpus-per-node)"
            )
        for package in _VERSIONS:
            if node.get(package) != nodes[0].get(package):
                raise UsageError(
                    f"node {name} has {package} {node.get(package)}, node {names[0]} has "
                    f"{nodes[0].get(package)}: all ranks need the same; point --python to one that "
                    "the nodes share"
                )


def _gpus_of(node: Mapping[str, Any]) -> int | None:
    """How many GPUs the job has there; None where it cannot be told."""
    usable: int | None = node.get("usable_gpus")
    return usable if usable is not None else len(node["gpus"]) or None


def node_notes(nodes: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator[str]:
    """In what nodes differ from the first: the slowest sets the pace."""
    first = nodes[0]
    for node, name in zip(nodes[1:], names[1:], strict=True):
        for part in dict.fromkeys([*first, *node]):
            if part not in (_ORDER, DIGEST, *_NOT_COMPARED) and node.get(part) != first.get(part):
                there, here = _shown(node.get(part)), _shown(first.get(part))
                yield f"node {name} is not like node {names[0]}: {part} {there}, not {here}"


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
