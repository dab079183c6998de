"""What a result depends on, in plain values that can be written, hashed and compared later. No host
names, no addresses, no paths: site variables that hold such are hashed. No serial numbers but the
GPUs' UUIDs where the user asks for them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from nccltune.machine.facts import Machine
from nccltune.machine.topology import Topology

Fingerprint = Mapping[str, Any]
"""By the names in `PARTS`; what nobody looked at is left out, and null is what is not there."""

NCCL, DDP, LOADER, BATCH = "NCCL", "DDP", "loader", "batch size"
ALL = frozenset({NCCL, DDP, LOADER, BATCH})
_COMMUNICATION = frozenset({NCCL, DDP})

PARTS: Mapping[str, frozenset[str]] = {
    "gpus": ALL,
    "gpu_uuids": frozenset(),
    "gpu_memory_gib": frozenset({BATCH}),
    "nvlinks": _COMMUNICATION,
    "links": _COMMUNICATION,
    "pcie": _COMMUNICATION,
    "numa": frozenset({NCCL, LOADER}),
    "cpu": frozenset({LOADER}),
    "cores": frozenset({LOADER}),
    "nics": frozenset({NCCL}),
    "driver": _COMMUNICATION,
    "cuda": _COMMUNICATION,
    "nccl": _COMMUNICATION,
    "torch": ALL,
    "transport": _COMMUNICATION,
    "network": _COMMUNICATION,
    "plugins": frozenset({NCCL}),
    "site": _COMMUNICATION,
    "model": ALL,
    "script": ALL,
    "batch_size": ALL,
    "precision": ALL,
    "data": frozenset({LOADER}),
    "ranks": ALL,
    "nodes": ALL,
    "parameters": _COMMUNICATION,
    "buckets": _COMMUNICATION,
}
"""What is compared, and which settings it matters for."""
_NETWORK_ONLY = frozenset({"nics"})
_OF_EACH_GPU = frozenset({"gpu_uuids", "gpu_memory_gib", "nvlinks", "links", "pcie", "numa"})
"""Told by the number of GPUs already where that differs."""
_PRIVATE = frozenset({"LD_LIBRARY_PATH", "NCCL_HOSTID", "NCCL_COMM_ID"})
_GIB = 1 << 30


_LISTS = frozenset(
    {"gpus", "gpu_uuids", "gpu_memory_gib", "nvlinks", "pcie", "nics", "transport", "buckets"}
)
_TABLES = frozenset({"plugins", "site"})


def malformed(found: Mapping[Any, Any]) -> str | None:
    """The first part that does not have the form in which it is written; None where all have."""
    for name, value in found.items():
        if not isinstance(name, str):
            return str(name)
        if name == "links":
            whole = isinstance(value, list) and all(
                isinstance(link, list) and len(link) == 3 for link in value
            )
        elif name == "numa":
            whole = isinstance(value, dict) and isinstance(value.get("gpus"), list)
            whole = whole and isinstance(value.get("nodes"), int)
        elif name in _LISTS:
            whole = isinstance(value, list)
        elif name in _TABLES:
            whole = isinstance(value, dict) and all(isinstance(key, str) for key in value)
        else:
            whole = not isinstance(value, (list, dict))
        if not whole:
            return str(name)
    return None


@dataclass(frozen=True)
class Difference:
    """`was` where the result was measured, `now` here; `matters` for settings of these groups."""

    name: str
    was: Any
    now: Any
    matters: frozenset[str]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "was": self.was,
            "now": self.now,
            "matters_for": sorted(self.matters),
        }


def fingerprint(
    machine: Machine,
    topology: Topology | None,
    gpus: Sequence[int],
    site: Mapping[str, str],
    probe: Mapping[str, Any] | None,
    workload: Mapping[str, Any],
) -> dict[str, Any]:
    """`gpus` are those that ranks use, by NVML's index; `probe` is what NCCL's log said, `workload`
    what was timed.
    """
    found = {
        "gpus": list(machine.gpus),
        "gpu_memory_gib": [round(size / _GIB) for size in machine.gpu_memory_bytes],
        "nvlinks": list(machine.nvlinks),
        "cpu": machine.cpu,
        "cores": machine.cores,
        "driver": machine.driver,
        "cuda": machine.cuda,
        "torch": machine.torch,
        "nccl": machine.nccl if machine.gpus else None,
        **({} if topology is None else _topology(topology, gpus)),
        **_path(probe or {}),
        "site": {name: _site_value(name, value) for name, value in sorted(site.items())},
        **_workload(workload),
    }
    absent = () if machine.gpus else ("driver", "nccl")
    return {n: found[n] for n in PARTS if found.get(n) is not None or n in absent}


def digest(found: Fingerprint) -> str:
    """The same for equal ones, whatever the order of their parts."""
    text = json.dumps(found, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(was: Fingerprint, now: Fingerprint) -> list[Difference]:
    """In the order of `PARTS`. A part that one of the two does not know is no difference. Each site
    variable is one of its own.
    """
    found: list[Difference] = []
    other_count = len(was.get("gpus", ())) != len(now.get("gpus", ()))
    for name, groups in PARTS.items():
        if name not in was or name not in now or _same(name, was[name], now[name]):
            continue
        before, after = was[name], now[name]
        if name == "site":
            found += _site_differences(before, after)
        elif not (name in _OF_EACH_GPU and other_count):
            used = _uses_network(was) or _uses_network(now)
            found.append(Difference(name, before, after, _mattering(name, groups, used)))
    return found


def _mattering(name: str, groups: frozenset[str], network: bool) -> frozenset[str]:
    return frozenset() if name in _NETWORK_ONLY and not network else groups


def _uses_network(found: Fingerprint) -> bool:
    return any(str(way).startswith("NET") for way in found.get("transport", ()))


def _same(name: str, was: Any, now: Any) -> bool:
    if name == "torch":  # packages leave out the local part that torch itself tells, or have it
        one, other = str(was).split("+"), str(now).split("+")
        return one == other if len(one) == len(other) else one[0] == other[0]
    return bool(was == now)


def _site_differences(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Difference]:
    for name in sorted({*was, *now}):
        if was.get(name) != now.get(name):
            yield Difference(f"site.{name}", was.get(name), now.get(name), PARTS["site"])


def _topology(topology: Topology, indices: Sequence[int]) -> dict[str, Any]:
    place = {index: rank for rank, index in enumerate(indices)}
    labels = {frozenset((p.first, p.second)): p.label for p in topology.pairs}
    gpus = [gpu for gpu in topology.gpus if gpu.index in place]
    nodes = [gpu.numa_node for gpu in gpus]
    found: dict[str, Any] = {
        "links": [
            [place[one], place[other], labels.get(frozenset((one, other)), "unknown")]
            for one, other in combinations(indices, 2)
        ],
        "pcie": [_pcie(gpu.pcie.best_generation, gpu.pcie.width) for gpu in gpus],
        "numa": {"nodes": len(topology.host.nodes), "gpus": nodes},
        "nics": sorted([*_interfaces(topology), *_rdma(topology)]),
    }
    return {name: value for name, value in found.items() if gpus or name in ("numa", "nics")}


def _pcie(generation: int | None, width: int | None) -> str:
    return f"generation {generation or '?'} x{width or '?'}"


def _interfaces(topology: Topology) -> Iterable[str]:
    for each in topology.interfaces or ():
        if not each.virtual and each.up is not False:
            yield f"{each.driver or 'network card'} {_gbits(each.gbits)}"


def _rdma(topology: Topology) -> Iterable[str]:
    for port in topology.rdma or ():
        if port.active is not False:
            kind = f"{port.kind} " if port.kind else ""
            yield f"{kind}{port.layer or 'RDMA'} {_gbits(port.gbits)}"


def _gbits(speed: float | None) -> str:
    return "speed unknown" if speed is None else f"{speed:g} Gb/s"


def _path(probe: Mapping[str, Any]) -> dict[str, Any]:
    """What NCCL's log said of the way between ranks; its own version, not the wheel's."""
    if not probe.get("version"):
        return {}
    return {
        "nccl": str(probe["version"]),
        "transport": sorted(probe.get("transport") or ()),
        "network": probe.get("network") or "none",
        "plugins": dict(sorted((probe.get("plugins") or {}).items())),
    }


def _site_value(name: str, value: str) -> str:
    """A hash tells whether a path, a host or an address has changed, and does not tell it."""
    if name not in _PRIVATE and "/" not in value:
        return value
    return f"sha256 {hashlib.sha256(value.encode(errors='surrogateescape')).hexdigest()[:12]}"


def _workload(workload: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        "model": "model",
        "script": "script_sha256",
        "batch_size": "batch_size",
        "precision": "precision",
        "data": "data",
        "ranks": "nproc_per_node",
        "nodes": "nodes",
        "parameters": "parameters",
        "buckets": "bucket_bytes",
    }
    found = {name: workload.get(source) for name, source in names.items()}
    if found["nodes"] is None:  # one, as in all files of earlier versions
        del found["nodes"]
    return found
