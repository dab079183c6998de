"""Names: unknown, misspelt, removed, not yet there, or somebody else's."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator

from nccltune.nccl import catalog
from nccltune.nccl.catalog import NEWEST, Variable
from nccltune.nccl.circumstances import Circumstances
from nccltune.nccl.findings import Finding, Setting, finding
from nccltune.nccl.readers import (
    TORCH_NAMES,
    is_amds,
    nearly_nccl,
    of_scripts,
    reader_of,
    without_underscore,
)

_CLOSE, _VERY_CLOSE = 0.82, 0.9
_LONGEST = 60

_LIMIT = "the time limit of collectives is an argument of torch's init_process_group"
_FICTIONS = {
    f"{prefix}{unit}": _LIMIT
    for prefix in ("NCCL_TIMEOUT", "TORCH_NCCL_TIMEOUT")
    for unit in ("", "_MS", "_SEC", "_SECONDS")
}

# What their letters alone would not tell.
_MEANT = {
    "NCCL_ALGORITHM": "NCCL_ALGO",
    "NCCL_BUFFER_SIZE": "NCCL_BUFFSIZE",
    "NCCL_DEBUG_LEVEL": "NCCL_DEBUG",
    "NCCL_DISABLE_NVLINK": "NCCL_P2P_DISABLE, or NCCL_P2P_LEVEL",
    "NCCL_DISABLE_RDMA": "NCCL_IB_DISABLE",
    "NCCL_GDR_LEVEL": "NCCL_NET_GDR_LEVEL",
    "NCCL_HCA": "NCCL_IB_HCA",
    "NCCL_IB_HCAS": "NCCL_IB_HCA",
    "NCCL_IFACE": "NCCL_SOCKET_IFNAME",
    "NCCL_IFNAME": "NCCL_SOCKET_IFNAME",
    "NCCL_INTERFACE": "NCCL_SOCKET_IFNAME",
    "NCCL_LOG_FILE": "NCCL_DEBUG_FILE",
    "NCCL_LOG_LEVEL": "NCCL_DEBUG",
    "NCCL_NET_IFNAME": "NCCL_SOCKET_IFNAME",
    "NCCL_NTHREAD": "NCCL_NTHREADS",
    "NCCL_NVLINK_DISABLE": "NCCL_P2P_DISABLE, or NCCL_P2P_LEVEL",
    "NCCL_PROTOCOL": "NCCL_PROTO",
    "NCCL_RDMA_DISABLE": "NCCL_IB_DISABLE",
    "NCCL_ROCE_DISABLE": "NCCL_IB_DISABLE",
    "NCCL_SOCKET_IFACE": "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_INTERFACE": "NCCL_SOCKET_IFNAME",
    "NCCL_THREADS": "NCCL_NTHREADS",
}
_OPPOSITE = {"DISABLE": "ENABLE", "ENABLE": "DISABLE"}


def name_findings(
    setting: Setting, variable: Variable | None, around: Circumstances, *, suggest: bool = True
) -> Iterator[Finding]:
    """What there is to say of the name alone. `variable` is what the catalogue has under it.

    Without `suggest` no near name is looked for, which takes a millisecond.
    """
    name = setting.name
    if variable is not None:
        yield from _by_release(setting, variable, around)
    elif is_amds(name):
        text = (
            "for AMD's ROCm and its RCCL, which reads NCCL_* names by rules of its own: what is "
            "said here of those holds for NVIDIA's NCCL alone"
        )
        yield finding(setting, "rccl", text, "ROCm/rocm-systems#11255, #7604")
    elif name.startswith("TORCH_NCCL_"):
        if name not in TORCH_NAMES:
            yield from _not_torchs(setting, suggest=suggest)
    elif name.startswith("NCCL_") and (reader := reader_of(name)):
        if setting.exported or not of_scripts(name):
            yield _foreign(setting, reader)
    elif nearly_nccl(name):
        if suggest and (near := _near_nccl(name)):
            yield finding(setting, "misspelt", f"nobody reads it; did you mean {near}?")
    elif name.startswith("NCCL_"):
        cutoff = _CLOSE if setting.exported else _VERY_CLOSE
        near = _near_nccl(name, cutoff) if suggest else None
        if near is not None or setting.exported or name in _FICTIONS:  # else the script's own
            yield _unknown(setting, around, near)


def _not_torchs(setting: Setting, *, suggest: bool) -> Iterator[Finding]:
    name = setting.name
    near = suggestion(name, TORCH_NAMES) if suggest and name not in _FICTIONS else None
    if near is not None:
        yield finding(setting, "misspelt", f"torch reads no such name; did you mean {near}?")
    else:
        why = _FICTIONS.get(name, "take it out, or look for it in torch's documentation")
        text = f"no torch from 2.6 to 2.14 reads it: it does nothing; {why}"
        yield finding(setting, "unknown-variable", text)


def suggestion(name: str, known: frozenset[str], cutoff: float = _CLOSE) -> str | None:
    """The known name that is most likely meant, None if none is near."""
    if len(name) > _LONGEST:
        return None
    words = sorted(name.upper().split("_"))
    opposite = sorted(_OPPOSITE.get(word, word) for word in words)
    for other in sorted(known):
        if sorted(other.split("_")) == words:  # NCCL_DISABLE_P2P
            return other
    for other in sorted(known):
        if opposite != words and sorted(other.split("_")) == opposite:  # NCCL_NVLS_DISABLE
            return f"{other}, with the opposite value"
    close = difflib.get_close_matches(name.upper(), sorted(known), 1, cutoff)
    return close[0] if close else None


def _near_nccl(name: str, cutoff: float = _CLOSE) -> str | None:
    begun = name.upper()
    if (meant := without_underscore(name)) is not None:
        return meant
    if nearly_nccl(name):
        begun = "NCCL_" + begun.partition("_")[2]
        return begun if begun in _current() else suggestion(begun, _current())
    return _MEANT.get(begun) or suggestion(name, _current(), cutoff)


@functools.cache
def _current() -> frozenset[str]:
    variables = (catalog.lookup(name) for name in catalog.names())
    return frozenset(v.name for v in variables if v is not None and v.removed is None)


def _unknown(setting: Setting, around: Circumstances, near: str | None) -> Finding:
    fiction = _FICTIONS.get(setting.name)
    if near is not None and fiction is None and around.version <= NEWEST:
        text = f"NCCL reads no such name and says nothing; did you mean {near}?"
        return finding(setting, "misspelt", text)
    hint = f"; did you mean {near}?" if near else ""
    hint = f"; {fiction}" if fiction else hint
    if around.version > NEWEST and setting.name.startswith("NCCL_"):
        text = f"no release up to {NEWEST} reads it; whether {around.version} does is not known"
        return finding(setting, "newer-release", f"{text}{hint}")
    why = f"; {fiction}" if fiction else "; take it out, or look for it in NVIDIA's guide"
    text = f"no NCCL release up to {NEWEST} reads it: it does nothing{why}"
    return finding(setting, "unknown-variable", text)


def _foreign(setting: Setting, reader: str) -> Finding:
    who, _, new_name = reader.partition(", as ")
    if new_name:
        text = f"read by {who}, not by NCCL, and under an old name; write {new_name}"
        return finding(setting, "not-nccls", text, "NVIDIA/nccl#1453")
    return finding(setting, "not-nccls", f"read by {reader}, not by NCCL: not checked")


def _by_release(setting: Setting, variable: Variable, around: Circumstances) -> Iterator[Finding]:
    at = around.version
    if variable.removed is not None and at >= variable.removed:
        instead = catalog.successor(variable, at)
        hint = f"see {instead}" if instead else "take it out"
        text = f"not read since NCCL {variable.removed}, this is {at}: it does nothing; {hint}"
        source = "NVIDIA/nccl#1453" if setting.name == "NCCL_CHECKS_DISABLE" else None
        yield finding(setting, "removed", text, source)
    elif variable.since is not None and at < variable.since:
        text = f"read from NCCL {variable.since} on, this is {at}: it does nothing yet"
        yield finding(setting, "not-yet", text)
    elif variable.deprecated is not None and at >= variable.deprecated:
        instead = catalog.successor(variable, at)
        hint = f"; its successor is {instead}" if instead else ""
        yield finding(setting, "deprecated", f"out of date since NCCL {variable.deprecated}{hint}")
