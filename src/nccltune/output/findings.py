"""What is worth telling: a fact with its limit, and what to do next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
"""As for lint. error: does not work, or not as meant; warning: dangerous or slow; note: good to
know.
"""

_ORDER = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """`about` is a word for what it concerns, `next` one sentence without a full stop."""

    severity: Severity
    about: str
    fact: str
    next: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The gravest first, each once."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda f: _ORDER.index(f.severity)))
