"""Numbers and configurations in words. No printing here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def samples(value: float | None) -> str:
    """Samples per second, with as many digits as carry meaning."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def difference(value: float | None, baseline: float | None) -> str:
    """More or fewer samples/s than the baseline, in per cent."""
    if value is None or not baseline:
        return "-"
    return f"{100 * (value / baseline - 1):+.1f}%"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def value(setting: Any) -> str:
    """As YAML and the command line spell it."""
    if setting is None:
        return "unset"
    if isinstance(setting, bool):
        return "true" if setting else "false"
    return str(setting)


def settings(changes: Mapping[str, Any]) -> str:
    """`bucket_cap_mb=50 NCCL_ALGO=Ring`; what differs from the baseline, or that nothing does."""
    if not changes:
        return "(the defaults)"
    return " ".join(f"{name}={value(setting)}" for name, setting in changes.items())


def size(count: float) -> str:
    """Bytes, in powers of 1024."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
