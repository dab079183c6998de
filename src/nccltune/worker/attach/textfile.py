"""Metrics as a file for Prometheus, in the text format that the node exporter's textfile collector
reads (https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_ESCAPED = {"\\": r"\\", '"': r"\"", "\n": r"\n"}


@dataclass(frozen=True)
class Metric:
    """`about` is one line; `kind` is gauge or counter."""

    name: str
    about: str
    value: float
    kind: str = "gauge"


def rendered(metrics: Iterable[Metric], labels: Mapping[str, str]) -> str:
    """The file's text. Every metric gets all labels."""
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    labelled = f"{{{pairs}}}" if pairs else ""
    return "".join(
        f"# HELP {metric.name} {metric.about}\n"
        f"# TYPE {metric.name} {metric.kind}\n"
        f"{metric.name}{labelled} {metric.value!r}\n"
        for metric in metrics
    )


def _escaped(value: str) -> str:
    return "".join(_ESCAPED.get(character, character) for character in value)


def replace_file(path: str, text: str) -> None:
    """Whoever reads the file sees the old text or the new one, whole. Raises OSError."""
    folder, name = os.path.split(path)
    # Not with the name's ending, by which collectors choose; readable for them, as any file is.
    new = os.path.join(folder, f".{name}.{os.getpid()}.tmp")
    try:
        # A link that somebody has put there is not followed.
        given = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with open(given, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
