"""Values: numbers that NCCL reads differently, words that it does not know, limits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.version import Version

from nccltune.nccl import values
from nccltune.nccl.catalog import Variable
from nccltune.nccl.findings import Finding, Setting, finding, shown
from nccltune.nccl.integers import plain_integer, strtoll

_UNITS = {"k": 10, "m": 20, "g": 30}
_WITH_UNIT = re.compile(r"(\d{1,9})\s*([kmg])i?b?", re.I | re.A)
_WORDS = frozenset({"1", "t", "true", "0", "f", "false"})
_TRUE = frozenset({"true", "yes", "on", "y", "t", "enable", "enabled"})
_ONE_ALONE = frozenset({"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"})
_LISTS = frozenset({"NCCL_ALGO", "NCCL_PROTO", "NCCL_THREAD_THRESHOLDS"})
_LEVELS = frozenset({"NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"})
_HIGHEST = 5
_MEANT_EMPTY = frozenset({"NCCL_DEBUG_TIMESTAMP_FORMAT", "NCCL_DEBUG_TIMESTAMP_LEVELS"})
_MAGIC = re.compile(r"0[xX][0-9a-fA-F]+|\d+", re.A)
_NETDEVS = re.compile(r"AUTO|ALL|MAX:\d+", re.I | re.A)


def value_findings(setting: Setting, variable: Variable, version: Version) -> Iterator[Finding]:
    """What is wrong with the text as NCCL reads it, lists of algorithms left aside."""
    value, name = setting.value, setting.name
    if value is None:
        return
    if value == "":
        if name not in _MEANT_EMPTY:
            yield _empty(setting, version)
    elif name in _LISTS:
        return
    elif name == "NCCL_SOCKET_MAGIC":
        if not _MAGIC.fullmatch(value):
            text = "no whole number: NCCL takes its built-in value"
            yield finding(setting, "unreadable-number", text)
    elif variable.choices and not _is_number(variable):
        yield from _words(setting, variable, value, version)
    elif variable.is_integer:
        yield from _number(setting, variable, value, version)
    else:
        yield from _text(setting, value)


def _is_number(variable: Variable) -> bool:
    return variable.is_integer and variable.kind != "list"


def _empty(setting: Setting, version: Version) -> Finding:
    text = "set to nothing: NCCL takes most variables for unset then, others not; unset it instead"
    if setting.name in ("NCCL_ALGO", "NCCL_PROTO") and version < Version("2.24"):
        text = f"set to nothing: up to NCCL 2.23 that leaves no choice at all, this is {version}"
    return finding(setting, "empty-value", text)


def _number(
    setting: Setting, variable: Variable, value: str, version: Version
) -> Iterator[Finding]:
    typed = variable.typed_since is not None and version >= variable.typed_since
    if typed and value.lower() in _WORDS:
        return
    number = plain_integer(value)
    if number is None:
        yield finding(setting, "unreadable-number", _reads(variable, value))
        return
    if number in variable.automatic:
        text = (
            f"{number} is NCCL's own mark for automatic, and releases have changed such marks; "
            "leave the variable unset"
        )
        yield finding(setting, "sentinel", text, "meta-pytorch/torchcomms#1433")
    elif not -(2**63) <= number < 2**63:
        text = "does not fit into 64 bits: NCCL says so and takes its default"
        yield finding(setting, "out-of-range", text)
    elif variable.name == "NCCL_BUFFSIZE" and number > 0:
        yield from _buffer_size(setting, variable, number)
    elif variable.name == "NCCL_NTHREADS":
        yield from _threads(setting, number)
    else:
        yield from _range(setting, variable, number, version)


def _reads(variable: Variable, value: str) -> str:
    read = f"NCCL reads {shown(value)} as {strtoll(value)} and does not complain"
    if match := _WITH_UNIT.fullmatch(value):
        return f"{read}; write {int(match[1]) << _UNITS[match[2].lower()]}"
    if value.lower() in _TRUE:
        return f"{read}; write 1"
    unit = " of bytes" if variable.kind == "size" else ""
    return f"{read}; write a plain decimal number{unit}"


def _range(
    setting: Setting, variable: Variable, number: int, version: Version
) -> Iterator[Finding]:
    source = {
        "NCCL_IB_RETRY_CNT": "NVIDIA/nccl#1453",
        "NCCL_P2P_PER_CHANNEL_NET_BW": "meta-pytorch/torchcomms#1433",
    }.get(variable.name)
    if variable.choices:
        if str(number) in variable.choices:
            yield from _too_new(setting, variable, str(number), version)
            return
        effect = "acts on 1 alone" if variable.name in _ONE_ALONE else "knows no such value"
        text = f"NCCL {effect}; it is one of {', '.join(variable.choices)}"
        yield finding(setting, "out-of-range", text, source)
        return
    reason = values.range_reason(variable, number, version)
    if reason is not None:
        text = f"{reason}: NCCL caps it, replaces it or goes wrong, mostly without a word"
        yield finding(setting, "out-of-range", text, source)


def _buffer_size(setting: Setting, variable: Variable, number: int) -> Iterator[Finding]:
    low, high = variable.minimum or 0, variable.maximum or 0
    if number & (number - 1):
        text = "no power of two: NCCL takes it, and wrong sums and hangs are reported"
        yield finding(setting, "dangerous", text, "NVIDIA/nccl#698, #1739")
    elif not low <= number <= high:
        text = f"NCCL takes any size; reports of right sums are for {low} to {high}"
        yield finding(setting, "dangerous", text, "NVIDIA/nccl#698, #1739")


def _threads(setting: Setting, number: int) -> Iterator[Finding]:
    if number % 32 or not 64 <= number <= 512:
        text = "NCCL puts another number in its place; it is one of 64, 128, 256, 512"
        yield finding(setting, "out-of-range", text)
    elif number & (number - 1):
        text = (
            "no power of two: NCCL takes it, and wrong sums are reported for large messages; use "
            "64, 128, 256 or 512"
        )
        yield finding(setting, "dangerous", text, "NVIDIA/nccl#698")


def _words(setting: Setting, variable: Variable, value: str, version: Version) -> Iterator[Finding]:
    separator = {"NCCL_CTA_POLICY": "|", "NCCL_DEBUG_SUBSYS": ","}.get(setting.name)
    parts = value.split(separator) if separator else [value]
    for part in parts:
        word = part.removeprefix("^") if setting.name == "NCCL_DEBUG_SUBSYS" else part
        word = word.upper() if variable.any_case else word
        if word not in variable.choices and setting.name in _LEVELS and value[:1].isdigit():
            yield _level(setting, value)
            return
        if word not in variable.choices:
            yield finding(setting, "unknown-value", _unknown_word(setting.name, variable, part))
            return
        yield from _too_new(setting, variable, word, version)
    if setting.name in _LEVELS and value.isdigit():
        text = "a number for a kind of path, whose meaning may change; write the word"
        yield finding(setting, "legacy-level", text)


def _level(setting: Setting, value: str) -> Finding:
    """A number for a kind of path; NCCL reads what begins with a digit so."""
    if strtoll(value) > _HIGHEST:
        text = f"the highest number is {_HIGHEST}, SYS: NCCL takes {shown(value)} for that"
        return finding(setting, "out-of-range", text)
    text = f"NCCL reads {shown(value)} as {strtoll(value)} and does not complain; write the word"
    return finding(setting, "unreadable-number", text)


def _unknown_word(name: str, variable: Variable, part: str) -> str:
    hint = ""
    if part.upper() in variable.choices:
        hint = f"; write {part.upper()}, case counts"
    elif name == "NCCL_DEBUG" and part.upper() == "WARNING":
        hint = "; write WARN"
    given = shown(part) or "an empty word"
    known = ", ".join(choice for choice in variable.choices if not choice.isdigit())
    return f"NCCL does not know {given} and goes on as if it were not there{hint} (known: {known})"


def _too_new(
    setting: Setting, variable: Variable, choice: str, version: Version
) -> Iterator[Finding]:
    since = variable.choices_since.get(choice)
    if since is not None and version < since:
        text = f"{choice} is understood from NCCL {since} on, this is {version}"
        yield finding(setting, "not-yet", text)


def _text(setting: Setting, value: str) -> Iterator[Finding]:
    name = setting.name
    if value.startswith("~"):
        text = "NCCL does not replace ~ by the home directory; write the whole path"
        yield finding(setting, "not-expanded", text)
    elif name == "NCCL_NETDEVS_POLICY" and not _NETDEVS.fullmatch(value):
        text = "NCCL takes AUTO for what it does not know; it is AUTO, ALL or MAX:number"
        yield finding(setting, "unknown-value", text)
    elif name == "NCCL_SOCKET_IFNAME" and len(value) == 1:
        yield finding(setting, "unknown-value", "NCCL ignores a name of one character")
