"""The language of NCCL_ALGO and NCCL_PROTO, and what a value leaves enabled.

    value := entry (";" entry)*           ";" and ":" only from NCCL 2.24
    entry := [function ":"] ["^"] token ("," token)*

Only the first entry may lack a function and then holds for all; a later entry replaces what was
said for its function. "^" turns a whole entry round: what it lists is off, the rest is on.
Source: parseList in src/graph/tuning.cc of NCCL 2.24, and the filters of the releases before it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from packaging.version import Version

from nccltune.nccl.catalog import NEWEST

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")

ALGORITHMS_OF: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "Broadcast": frozenset({"Ring"}),
        "Reduce": frozenset({"Ring"}),
        "AllGather": frozenset({"Ring", "PAT", "NVLS", "CollNetDirect"}),
        "ReduceScatter": frozenset({"Ring", "PAT", "NVLS", "CollNetDirect"}),
        "AllReduce": frozenset(
            {"Ring", "Tree", "CollNet", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree"}
        ),
    }
)
"""The algorithms that exist for each function. Nothing but Ring and Tree has LL and LL128."""

DDP_FUNCTIONS = ("Broadcast", "AllGather", "AllReduce")
"""What DDP calls: it compares and copies the parameters at start-up before it reduces."""

PREFIXES_SINCE = Version("2.24")

# (first release, first release without it or None)
_ALGORITHMS: Mapping[str, tuple[str, str | None]] = {
    "Ring": ("2.5", None),
    "Tree": ("2.5", None),
    "CollNet": ("2.6", "2.14"),
    "CollNetDirect": ("2.14", None),
    "CollNetChain": ("2.14", None),
    "NVLS": ("2.17", None),
    "NVLSTree": ("2.18", None),
    "PAT": ("2.23", None),
}
_PROTOCOLS: Mapping[str, tuple[str, str | None]] = {
    "LL": ("2.5", None),
    "LL128": ("2.5", None),
    "Simple": ("2.5", None),
}
_TOKENS = {"NCCL_ALGO": _ALGORITHMS, "NCCL_PROTO": _PROTOCOLS}


def tokens(name: str, version: Version | None) -> tuple[str, ...]:
    """The tokens that NCCL_ALGO or NCCL_PROTO knows in that version (None: the newest)."""
    at = NEWEST if version is None else version
    return tuple(
        token
        for token, (since, until) in _TOKENS[name].items()
        if Version(since) <= at and (until is None or at < Version(until))
    )


def grammar_error(name: str, value: str, version: Version | None) -> str | None:
    """Why NCCL would not understand this value of NCCL_ALGO or NCCL_PROTO as meant, else None.

    Up to 2.23 NCCL drops what it does not know without a word; from 2.24 it refuses to start.
    """
    if any(character.isspace() for character in value):
        return "it contains a space, which NCCL takes as part of a name"
    if not _has_prefixes(version) and (";" in value or ":" in value):
        return f"entries with a function (';' and ':') are understood from NCCL {PREFIXES_SINCE}"
    for position, entry in enumerate(value.split(";")):
        error = _entry_error(name, entry, position == 0, version)
        if error is not None:
            return error
    return None


def enabled(name: str, value: str, version: Version | None) -> dict[str, frozenset[str]]:
    """The tokens that the value leaves on, by function. The value must be free of grammar errors.

    A function that no entry speaks of keeps what NCCL would choose from by itself: every token,
    but not LL128, since that means "where it is safe" and not "on".
    """
    known = frozenset(tokens(name, version))
    table = {function: known - {"LL128"} for function in FUNCTIONS}
    for entry in value.split(";"):
        function, _, listed = entry.rpartition(":")
        named = frozenset(_canonical(token, known) for token in listed.lstrip("^").split(","))
        chosen = known - named if listed.startswith("^") else named
        for target in FUNCTIONS:
            if function.lower() in ("", target.lower()):
                table[target] = chosen
    return table


def starved_functions(value: str, version: Version | None) -> tuple[str, ...]:
    """The functions for which this NCCL_ALGO, as it stands, leaves no algorithm that exists.

    What follows depends on the release: see `kills_ddp`. A value with grammar errors starves
    nothing here: `grammar_error` speaks first.
    """
    if grammar_error("NCCL_ALGO", value, version) is not None:
        return ()
    table = enabled("NCCL_ALGO", value, version)
    return tuple(name for name in FUNCTIONS if not table[name] & ALGORITHMS_OF[name])


def kills_ddp(value: str, version: Version | None) -> tuple[str, ...]:
    """The functions of DDP that fail under this NCCL_ALGO as it stands, empty if none does.

    Before 2.24 Ring is left to all functions but AllReduce, so that programs run with Tree; from
    2.19 on AllReduce falls back to it too. From 2.24 a function without an algorithm is an error.
    """
    at = NEWEST if version is None else version
    if Version("2.19") <= at < PREFIXES_SINCE:
        return ()
    filtered = ("AllReduce",) if at < PREFIXES_SINCE else DDP_FUNCTIONS
    starved = starved_functions(value, version)
    return tuple(function for function in filtered if function in starved)


def forces_ll128(value: str, version: Version | None) -> bool:
    """Whether this NCCL_PROTO names or implies LL128 for any function.

    Up to 2.30 NCCL then skips its own test of whether LL128 is safe on this path; wrong sums were
    reported (NVIDIA/nccl#831, #1261). "^LL" and "^Simple" imply it.
    """
    if grammar_error("NCCL_PROTO", value, version) is not None:
        return False
    return any("LL128" in on for on in enabled("NCCL_PROTO", value, version).values())


def _has_prefixes(version: Version | None) -> bool:
    return version is None or version >= PREFIXES_SINCE


def _canonical(token: str, known: frozenset[str]) -> str:
    return next(name for name in known if name.lower() == token.lower())


def _entry_error(name: str, entry: str, first: bool, version: Version | None) -> str | None:
    function, colon, listed = entry.partition(":")
    if not colon:
        function, listed = "", entry
        if not first:
            return f"only the first entry may lack a function: {entry!r}"
    elif function.lower() not in [known.lower() for known in FUNCTIONS]:
        return f"no function is called {function!r}; there are {', '.join(FUNCTIONS)}"
    known = tokens(name, version)
    for token in listed.removeprefix("^").split(","):
        if token.lower() not in [spelling.lower() for spelling in known]:
            return _token_error(name, token, known, version)
    return None


def _token_error(name: str, token: str, known: tuple[str, ...], version: Version | None) -> str:
    if not token:
        return "an entry is empty, or a comma stands at its beginning or end"
    if ":" in token or token.lower() in [function.lower() for function in FUNCTIONS]:
        return f"entries for different functions are separated by ';', not ',': {token!r}"
    if token.startswith("^"):
        return f"'^' may only stand at the beginning of an entry: {token!r}"
    release = NEWEST if version is None else version
    close = difflib.get_close_matches(token.lower(), [item.lower() for item in known], 1)
    hint = next((f"; did you mean {item}?" for item in known if item.lower() in close), "")
    return f"{token!r} is not known to NCCL {release} ({', '.join(known)}){hint}"
