"""Whether all ranks run with the same settings: NCCL variables that differ from rank to rank make
collectives hang or give wrong sums. Values stay where they are; digests of them are compared.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nccltune.worker.status import NODE, NODE_NAME, Disagreement

# What NCCL reads in each process for itself: where it is, its own interfaces, what it logs.
MAY_DIFFER = frozenset(
    {
        *("NCCL_HOSTID", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX"),
        *("NCCL_TOPO_FILE", "NCCL_PROXY_CPUSET", "NCCL_RAS_ADDR", "NCCL_CONF_FILE"),
    }
)
_LOGGING = "NCCL_DEBUG"
_COMPARED = ("NCCL_", "TORCH_NCCL_", "TORCH_SYMM_MEM_", "NVSHMEM_")
_SYSTEM_CONF = "/etc/nccl.conf"


def own_view(environ: Mapping[str, str], versions: Mapping[str, Any]) -> dict[str, Any]:
    """What this rank tells the others: digests by name, and where it is."""
    return {
        "node": int(environ.get(NODE, "0")),
        "name": _name(environ),
        "settings": {
            **{name: _digest(value.encode(errors="replace")) for name, value in _set(environ)},
            **{name: _digest(value) for name, value in _files(environ)},
        },
        "versions": {name: str(version) for name, version in versions.items()},
    }


def _name(environ: Mapping[str, str]) -> str:
    return environ.get(NODE_NAME) or environ.get("SLURMD_NODENAME") or platform.node()


def _set(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in environ.items():
        if name.startswith(_COMPARED) and not _may_differ(name):
            yield name, value


def _may_differ(name: str) -> bool:
    return name in MAY_DIFFER or name.startswith(_LOGGING)


def _files(environ: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """What NCCL's own files set, as `VARIABLE in FILE`; the first line of a variable counts."""
    own = environ.get("NCCL_CONF_FILE") or str(Path.home() / ".nccl.conf")
    for file, path in ((_SYSTEM_CONF, _SYSTEM_CONF), ("the user's nccl.conf", own)):
        try:
            lines = Path(path).read_bytes().splitlines()
        except OSError:
            continue
        found: dict[str, bytes] = {}
        for line in lines:
            variable, sets, value = line.strip().partition(b"=")
            name = variable.decode(errors="replace")
            if sets and not name.startswith("#") and not _may_differ(name):
                found.setdefault(name, value)
        for name, text in found.items():
            yield f"{name} in {file}", text


def _digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()[:16]


def versions() -> dict[str, Any]:
    """Of what has to be the same everywhere; NCCL's only where torch has it."""
    import torch

    found: dict[str, Any] = {"torch": torch.__version__, "CUDA": torch.version.cuda}
    if torch.distributed.is_nccl_available():  # asked without touching a GPU
        found["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def check(views: Sequence[Mapping[str, Any]]) -> None:
    """Raises Disagreement for the first rank that is unlike rank 0."""
    for rank, view in enumerate(views):
        for part in ("settings", "versions"):
            first, here = views[0][part], view[part]
            for name in sorted({*first, *here}):
                if first.get(name) != here.get(name):
                    raise Disagreement(_told(part, name, rank, view, views[0]))


def _told(
    part: str, name: str, rank: int, view: Mapping[str, Any], first: Mapping[str, Any]
) -> str:
    here, there = f"rank {rank} on node {view['name']}", f"rank 0 on node {first['name']}"
    if part == "versions":
        return (
            f"{here} has {name} {view[part].get(name)}, {there} has {first[part].get(name)}: all "
            "ranks need the same"
        )
    if name not in view[part] or name not in first[part]:
        has, lacks = (here, there) if name in view[part] else (there, here)
        what = f"{name} set, and {lacks} has not"
        return f"{has} has {what}: all ranks need the same settings; set it on all nodes or none"
    return f"{here} has another {name} than {there}: all ranks need the same settings"


def view_here() -> dict[str, Any]:
    return own_view(os.environ, versions())
