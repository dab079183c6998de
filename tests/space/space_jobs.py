"""Jobs on machines that the tests of this folder share, and short ways to resolve for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from packaging.version import Version

from nccltune.errors import UsageError
from nccltune.nccl.site import SiteVariable
from nccltune.space.model import Space
from nccltune.space.resolve import Facts, ResolvedSpace, Selection, resolve
from nccltune.space.scalars import Value

SOCKETS = Facts(
    backend="nccl",
    world_size=2,
    nodes=2,
    probed=True,
    network="Socket",
    transports=("NET",),
    nccl=Version("2.28.9"),
    cpus_per_rank=8,
    batch_size=64,
    num_workers=4,
)
NVLINK = replace(SOCKETS, nodes=1, network=None, transports=("P2P",), nvlinks=True)
PCIE = replace(NVLINK, nvlinks=False)
GLOO = Facts(backend="gloo", world_size=2, probed=True, cpus_per_rank=2, batch_size=8)


def site(**values: str) -> dict[str, SiteVariable]:
    return {name: SiteVariable(name, value, "environment") for name, value in values.items()}


def space_of(parameters: dict[str, Any], **more: Any) -> Space:
    return Space.model_validate({"version": 1, "parameters": parameters, **more})


def variable(*choices: Value, **more: Any) -> dict[str, Any]:
    return {"target": "env", "choices": list(choices), "default": None, **more}


def resolved(
    space: Space | dict[str, Any], facts: Facts = SOCKETS, **selection: Any
) -> ResolvedSpace:
    space = space if isinstance(space, Space) else space_of(space)
    return resolve(space, facts, Selection(**selection), "a.yaml")


def names(found: ResolvedSpace) -> list[str]:
    return [parameter.name for parameter in found.parameters]


def notes(found: ResolvedSpace, name: str) -> list[tuple[str, str]]:
    return [(note.action, note.reason) for note in found.notes if note.parameter == name]


def choices(found: ResolvedSpace, name: str) -> tuple[Value, ...] | None:
    return next(p for p in found.parameters if p.name == name).choices


def refused(space: Space | dict[str, Any], facts: Facts = SOCKETS, **selection: Any) -> str:
    with pytest.raises(UsageError) as caught:
        resolved(space, facts, **selection)
    return str(caught.value)
