"""What differs between two machines or jobs, in words."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from nccltune.machine.fingerprint import ALL, Difference

_NAMES = {
    "gpus": "GPUs",
    "gpu_uuids": "GPUs by UUID",
    "gpu_memory_gib": "GPU memory (GiB)",
    "nvlinks": "NVLinks of each GPU",
    "links": "links between GPUs",
    "pcie": "PCIe",
    "numa": "NUMA",
    "cpu": "CPU",
    "cores": "CPU cores",
    "nics": "network cards",
    "cuda": "CUDA",
    "nccl": "NCCL",
    "transport": "transport between ranks",
    "network": "NCCL's network",
    "plugins": "NCCL's plugins",
    "script": "the script's text",
    "batch_size": "batch size",
    "parameters": "the model's parameters",
    "buckets": "gradient buckets",
}


def difference_lines(
    found: Sequence[Difference], there: str = "where it was measured", here: str = "here"
) -> list[str]:
    """One line each: what was, what is, and for which settings it matters."""
    return [_line(each, there, here) for each in found]


def _line(each: Difference, there: str, here: str) -> str:
    name = each.name.removeprefix("site.")
    was, now = shown(each.name, each.was), shown(each.name, each.now)
    changed = "changed" if each.name == "script" else f"{was} {there}, {now} {here}"
    return f"{_NAMES.get(name, name)}: {changed} ({_matters(each.matters)})"


def _matters(groups: Collection[str]) -> str:
    if not groups:
        return "matters for no setting here"
    if set(groups) == ALL:
        return "matters for all settings"
    return f"matters for {' and '.join(sorted(groups, key=str.lower))} settings"


def shown(name: str, value: Any) -> str:
    """A part of a fingerprint in a few words."""
    if name.startswith("site."):
        return "not set" if value is None else repr(value)
    if value is None:
        return "none"
    if name == "links":
        return _links(value)
    if name == "numa":
        count, places = value["nodes"], ", ".join(map(str, value["gpus"]))
        nodes = f"{count} node{'' if count == 1 else 's'}"
        return f"{nodes}, GPUs at {places}" if places else nodes
    if isinstance(value, dict):
        return ", ".join(f"{kind} {plugin}" for kind, plugin in value.items()) or "none"
    return _listed(value) if isinstance(value, (list, tuple)) else str(value)


def _listed(values: Sequence[Any]) -> str:
    """`2x NVIDIA H200, 1x NVIDIA L40`; in the order in which they come."""
    if not values:
        return "none"
    kinds = list(dict.fromkeys(map(str, values)))
    counts = [[str(value) for value in values].count(kind) for kind in kinds]
    if len(values) == 1:
        return kinds[0]
    return ", ".join(f"{count}x {kind}" for kind, count in zip(kinds, counts, strict=True))


def _links(pairs: Sequence[Sequence[Any]]) -> str:
    kinds = {str(pair[2]) for pair in pairs}
    if not pairs:
        return "none"
    if len(kinds) == 1:
        return f"{kinds.pop()} between all"
    return ", ".join(f"{one}-{other} {label}" for one, other, label in pairs)
