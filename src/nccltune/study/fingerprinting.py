"""The fingerprint of a study, and of the job and machine that a result is checked on."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nccltune.errors import UsageError
from nccltune.launch.environment import DIAGNOSTIC
from nccltune.machine.facts import Machine
from nccltune.machine.fingerprint import Fingerprint, digest, fingerprint, malformed
from nccltune.machine.gpus import Gpu
from nccltune.machine.topology import read_topology
from nccltune.output.best import Best

if TYPE_CHECKING:
    from nccltune.study.survey import Survey

DIGEST = "digest"
_OF_THE_BASELINE = frozenset({"parameters", "buckets"})
"""Known once the job was measured, so no part of the digest."""


def fingerprint_of(found: Survey, probe: Mapping[str, Any] | None) -> dict[str, Any]:
    """As study.yaml holds it, with its digest; `probe` is what NCCL's log said."""
    topology = read_topology(os.environ, use_gpus=bool(found.gpus))
    indices = [gpu.index for gpu in found.gpus]
    site = comparable({name: v.value for name, v in found.site.items()})
    job = found.task.to_dict()
    parts = fingerprint(found.machine, topology, indices, site, probe, job)
    if found.options.with_serials:
        parts["gpu_uuids"] = [gpu.uuid for gpu in found.gpus]
    return with_digest(parts)


def host_digest(gpus: Sequence[Gpu], root: Path = Path("/")) -> str:
    """Another one on another machine, also of the same kind: by the GPUs in use, or without any by
    the names that a system, or a container, has. It tells neither.
    """
    own = sorted(gpu.uuid for gpu in gpus)
    if not own:
        own = [os.uname().nodename]
        with contextlib.suppress(OSError):
            own.append((root / "etc/machine-id").read_text())
    return hashlib.sha256("\n".join(own).encode(errors="surrogateescape")).hexdigest()[:16]


def comparable(site: Mapping[str, str]) -> dict[str, str]:
    """Without what only says how much is logged."""
    return {name: value for name, value in site.items() if name not in DIAGNOSTIC}


def with_digest(found: Mapping[str, Any]) -> dict[str, Any]:
    """The digest first: it is what people compare."""
    parts = without_digest(found)
    before = {n: v for n, v in parts.items() if n not in _OF_THE_BASELINE}
    return {DIGEST: digest(before), **parts}


def without_digest(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != DIGEST}


def of_result(best: Best, file: object = "best.yaml") -> Fingerprint:
    """What a result was measured on. Files of earlier versions tell less. Raises UsageError naming
    the file.
    """
    if best.fingerprint:
        if part := malformed(best.fingerprint):
            raise UsageError(f"{file}: fingerprint.{part}: not what a search writes")
        return without_digest(best.fingerprint)
    if not best.machine:
        return {}
    try:
        machine = Machine.from_dict(best.machine)
        found = fingerprint(machine, None, (), {}, None, best.workload)
    except (TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{file}: machine: not what a search writes ({error})") from error
    nccl = best.provenance.get("nccl")
    parts = {**found, **({"nccl": nccl} if nccl else {})}
    return {name: value for name, value in parts.items() if name != "site"}
