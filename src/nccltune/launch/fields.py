"""Fields of messages from other machines. What a node sends is not trusted: each is of the right
type and within bounds, or a ProtocolError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nccltune.launch.connection import ProtocolError

LARGEST_PORT = (1 << 16) - 1
_LARGEST_PID = 1 << 22  # of Linux
_CODES = (255, -255)
_RANK = re.compile(r"[0-9]{1,7}")


def integer(message: Mapping[str, Any], name: str, most: int, least: int = 0) -> int:
    """From `least` to `most`; True is no number."""
    return _within(message.get(name), name, most, least)


def pids(message: Mapping[str, Any], name: str) -> list[int]:
    """A list of process ids."""
    found = message.get(name)
    if not isinstance(found, list):
        raise ProtocolError(f"{name} is no list")
    return [_within(each, name, _LARGEST_PID, 1) for each in found]


def exit_code(message: Mapping[str, Any], name: str) -> int | None:
    """As Python has it: negative for a signal, None where there is none."""
    return None if message.get(name) is None else integer(message, name, *_CODES)


def exit_codes(message: Mapping[str, Any], name: str) -> dict[int, int]:
    """By rank; in JSON what is a name is text."""
    found = message.get(name)
    if not isinstance(found, dict) or not all(_RANK.fullmatch(rank) for rank in found):
        raise ProtocolError(f"{name} are no exit codes of ranks")
    return {int(rank): _within(code, name, *_CODES) for rank, code in found.items()}


def words(message: Mapping[str, Any], name: str) -> list[str]:
    """A list of texts."""
    found = message.get(name)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ProtocolError(f"{name} is no list of words")
    return found


def _within(value: object, name: str, most: int, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ProtocolError(f"{name} is no number from {least} to {most}")
    return value
