"""Asks the job's Python which NCCL and torch it would load; quick, since torch is not imported."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nccltune.launch.supervised import Supervised
from nccltune.worker import libraries

_LIMIT_SECONDS = 60.0


@dataclass(frozen=True)
class Libraries:
    """Versions as they are written there (NCCL's may be its code, 22809); None where unknown."""

    nccl: str | None = None
    nccl_from: str | None = None
    torch: str | None = None


def libraries_of(python: str, environ: Mapping[str, str]) -> Libraries:
    """What that interpreter would load; nothing known where it does not answer."""
    with tempfile.TemporaryDirectory(prefix="nccltune-lint-") as folder:
        answer = Path(folder) / "answer.json"
        try:
            process = Supervised(  # with all that it starts, where it does not end
                [python, str(libraries.__file__), str(answer)], environ, Path(os.devnull)
            )
            try:
                process.wait(_LIMIT_SECONDS)
            finally:
                process.end()
            found = json.loads(answer.read_text())
            return Libraries(found["nccl"], found["nccl_from"], found["torch"])
        except (OSError, ValueError, KeyError, TypeError):
            return Libraries()
