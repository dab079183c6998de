"""What may be tried for a variable, and how it is spelled for the NCCL that will read it."""

from __future__ import annotations

import difflib

from packaging.version import Version

from nccltune.nccl import catalog, grammar
from nccltune.nccl.catalog import FOREIGN, NEWEST, Variable
from nccltune.nccl.integers import is_plain_integer, plain_integer, strtoll

ALL_REDUCE_ALGORITHMS = ("Ring", "Tree", "NVLS", "NVLSTree")
"""The short values of NCCL_ALGO in a search space: one algorithm, for all-reduce alone."""

# No value of these gains anything for DDP, and public reports show hangs and wrong sums.
_NEVER = {
    "NCCL_CHUNK_SIZE": "wrong sums and hangs were reported (NVIDIA/nccl#2408, #1496)",
    "NCCL_LL_BUFFSIZE": "hangs and wrong sums were reported (NVIDIA/nccl#1739)",
    "NCCL_LL128_BUFFSIZE": "hangs and wrong sums were reported (NVIDIA/nccl#1739)",
}

_UNSAFE = {
    ("NCCL_NVLS_ENABLE", "1"): (
        "takes multicast for granted instead of asking the device, and is fatal or hangs where "
        "it is missing (NVIDIA/nccl#1197, #1716, #2077); leave it unset"
    ),
    ("NCCL_GDR_FLUSH_DISABLE", "1"): (
        "drops the flush after a GPUDirect receive, without which stale data may be read"
    ),
}

_CHANNEL_LIMITS = frozenset(
    {
        "NCCL_MIN_CTAS",
        "NCCL_MAX_CTAS",
        "NCCL_MIN_NCHANNELS",
        "NCCL_MAX_NCHANNELS",
        "NCCL_MIN_NRINGS",
        "NCCL_MAX_NRINGS",
        "NCCL_NVLS_NCHANNELS",
        "NCCL_MIN_P2P_NCHANNELS",
        "NCCL_MAX_P2P_NCHANNELS",
    }
)
_CHANNELS_64_SINCE = Version("2.25")
_INT64 = 2**63


def refusal(
    name: str, value: object, version: Version | None, *, allow_unsafe: bool = False
) -> str | None:
    """Why this value may not be tried with that NCCL, as a sentence for the user; None if it may.

    `version` None stands for the newest release that is known. `allow_unsafe` lifts the refusals
    of values that can work but skip a safety test of NCCL, and no others. None as a value means
    "not set by us" and is never refused. Names that are not NCCL's are only held to be not empty.
    """
    if value is None:
        return None
    if not isinstance(value, (bool, int, float, str)):
        return f"{name}: a {type(value).__name__} cannot be the value of a variable: {value!r}"
    text = spell(name, value, version)
    if text == "":
        return f"{name}: an empty value is not the same as unset; leave the variable out instead"
    if not name.startswith("NCCL_") or name in FOREIGN:
        return None
    if name.startswith("NCCL_DEBUG"):
        return f"{name}: every launch of ours sets it, so that NCCL's log can be read"
    variable = catalog.lookup(name)
    if variable is None:
        return _unknown(name)
    reason = (
        _version_reason(variable, version)
        or _never_reason(variable)
        or _value_reason(variable, _text(value), text, version)
        or (None if allow_unsafe else _unsafe_reason(variable, text, version))
    )
    return None if reason is None else f"{name}={_text(value)}: {reason}"


def spell(name: str, value: object, version: Version | None) -> str:
    """The text that goes into the environment.

    A single all-reduce algorithm as NCCL_ALGO is spelled so that it restricts all-reduce alone
    where the release can say so: a plain "Tree" would leave DDP's broadcast at start-up without an
    algorithm. From 2.24 that is "ring,tree;allreduce:tree", which (unlike "allreduce:tree") also
    stays right beside an NCCL_PROTO without a function in 2.31 (vllm-project/vllm#58179). Text in
    NCCL's own grammar is passed through. Raises TypeError for what no variable can hold.
    """
    if not isinstance(value, (bool, int, float, str)):
        raise TypeError(f"{name}: not a text, number or truth value: {value!r}")
    text = _text(value)
    algorithm = _all_reduce_algorithm(text) if name == "NCCL_ALGO" else None
    if algorithm is None:
        return text
    if version is not None and version < grammar.PREFIXES_SINCE:
        return algorithm
    short = algorithm.lower()
    others = "ring,tree" if short in ("ring", "tree") else f"ring,tree,{short}"
    return f"{others};allreduce:{short}"


def _text(value: bool | int | float | str) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _all_reduce_algorithm(text: str) -> str | None:
    return next((name for name in ALL_REDUCE_ALGORITHMS if name.lower() == text.lower()), None)


def _unknown(name: str) -> str:
    current = [other for other in catalog.names() if not _is_removed(other)]
    close = difflib.get_close_matches(name, current, 1, 0.8)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{name}: no NCCL release up to {NEWEST} reads a variable of this name{hint}"


def _is_removed(name: str) -> bool:
    variable = catalog.lookup(name)
    return variable is not None and variable.removed is not None


def _version_reason(variable: Variable, version: Version | None) -> str | None:
    at = NEWEST if version is None else version
    if variable.removed is not None and at >= variable.removed:
        instead = catalog.successor(variable, at)
        hint = f"; see {instead}" if instead else ""
        return f"no longer read since NCCL {variable.removed}, this is {at}{hint}"
    if variable.since is not None and at < variable.since:
        return f"read from NCCL {variable.since} on, this is {at}"
    return None


def _never_reason(variable: Variable) -> str | None:
    reason = _NEVER.get(variable.name)
    return None if reason is None else f"never tried: {reason}"


def _value_reason(variable: Variable, given: str, text: str, version: Version | None) -> str | None:
    """`given` is the value as written in the search space, `text` its spelling."""
    if variable.name in ("NCCL_ALGO", "NCCL_PROTO"):
        return _list_reason(variable.name, given, text, version)
    if variable.name == "NCCL_THREAD_THRESHOLDS":
        return _thresholds_reason(text)
    if variable.choices:
        return _choice_reason(variable, text, version)
    if variable.is_integer:
        return _integer_reason(variable, text) or range_reason(variable, int(text, 0), version)
    return None


def _list_reason(name: str, given: str, text: str, version: Version | None) -> str | None:
    error = grammar.grammar_error(name, text, version)
    if error is not None:
        return error
    if name == "NCCL_PROTO":
        left = grammar.enabled(name, text, version)
        bare = [function for function in grammar.FUNCTIONS if not left[function]]
        return f"leaves no protocol for {', '.join(bare)}" if bare else None
    if "AllReduce" in grammar.starved_functions(text, version):
        return "leaves no algorithm for AllReduce"
    killed = grammar.kills_ddp(text, version)
    if not killed:
        return None
    if version is None or version >= grammar.PREFIXES_SINCE:
        way = "restrict one function alone, as in ring,tree;allreduce:tree"
    else:
        way = f"NCCL {version} cannot restrict all-reduce alone"
    return f"leaves no algorithm for {', '.join(killed)}, which DDP needs at start-up; {way}"


def _thresholds_reason(text: str) -> str | None:
    numbers = text.split(" ")
    if len(numbers) <= 6 and all(is_plain_integer(number) for number in numbers):
        return None
    return "must be up to six integers with single spaces between them; NCCL does not split at ','"


def _choice_reason(variable: Variable, text: str, version: Version | None) -> str | None:
    at = NEWEST if version is None else version
    parts = text.split("|") if variable.kind == "list" else [text]
    for part in parts:
        choice = part.upper() if variable.any_case else part
        if choice not in variable.choices:
            return _not_a_choice(variable, text)
        since = variable.choices_since.get(choice)
        if since is not None and at < since:
            return f"{choice} is understood from NCCL {since} on, this is {at}"
    return None


def _not_a_choice(variable: Variable, text: str) -> str:
    allowed = f"must be one of {', '.join(variable.choices)}"
    error = _integer_reason(variable, text) if variable.is_integer else None
    return allowed if error is None else f"{error}; {allowed}"


def _integer_reason(variable: Variable, text: str) -> str | None:
    number = plain_integer(text)
    if number is not None:
        return None if -_INT64 <= number < _INT64 else "does not fit into 64 bits"
    unit = " of bytes" if variable.kind == "size" else ""
    return f"NCCL would read this as {strtoll(text)}; write a plain decimal number{unit}"


def range_reason(variable: Variable, number: int, version: Version | None) -> str | None:
    """Which limit of the catalogue the number breaks with that NCCL; None if none."""
    low, high = variable.minimum, variable.maximum
    release = ""
    if variable.name in _CHANNEL_LIMITS and version is not None and version < _CHANNELS_64_SINCE:
        high, release = 32, f" before NCCL {_CHANNELS_64_SINCE}"
    if low is not None and number < low:
        hint = "; to leave it to NCCL, leave it unset" if number < 0 else ""
        return f"must be at least {low}{hint}"
    if high is not None and number > high:
        return f"must be at most {high}{release}"
    if variable.power_of_two and (number <= 0 or number & (number - 1)):
        return "must be a power of two"
    return None


def _unsafe_reason(variable: Variable, text: str, version: Version | None) -> str | None:
    if variable.name == "NCCL_PROTO" and grammar.forces_ll128(text, version):
        return (
            "names or implies LL128, and so skips NCCL's test of whether LL128 is safe here: "
            "unsafe (NVIDIA/nccl#831); leave it unset, or use Simple, LL, LL,Simple or ^LL128"
        )
    reason = _UNSAFE.get((variable.name, text))
    return None if reason is None else f"unsafe: {reason}"
