"""How NCCL turns the text of an integer variable into a number."""

from __future__ import annotations

import re

_PREFIX = re.compile(r"\s*(?P<sign>[+-]?)(?P<digits>0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", re.A)
_DIGITS = 200  # Python refuses to read a decimal number of thousands of digits
_PLAIN = re.compile(r"[+-]?(?:0|[1-9][0-9]*|0[xX][0-9a-fA-F]+)", re.A)


def strtoll(text: str) -> int:
    """The number that C's strtoll with base 0 reads at the start of the text, 0 if there is none.

    So "8M" is 8, "true" is 0 and "016" is fourteen; NCCL logs the result as if it had been asked
    for. Overflow is not modelled: that alone is something NCCL reports.
    """
    match = _PREFIX.match(text)
    if match is None:
        return 0
    digits = match["digits"]
    if digits[:2] in ("0x", "0X"):
        number = int(digits, 16)
    else:
        number = int(digits[:_DIGITS], 8 if digits.startswith("0") else 10)
    return -number if match["sign"] == "-" else number


def plain_integer(text: str) -> int | None:
    """The number, if the whole text is a decimal or 0x number without leading zeros, else None.

    Of a number with hundreds of digits it is no more than that it does not fit into 64 bits.
    """
    if not is_plain_integer(text):
        return None
    return int(text[:_DIGITS], 0)


def is_plain_integer(text: str) -> bool:
    """Whether the whole text is a decimal or 0x number without leading zeros (no octal)."""
    return _PLAIN.fullmatch(text) is not None
