"""Reading the YAML file of a search space or a fragment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nccltune.errors import UsageError
from nccltune.safe_yaml import read_document


def read_mapping(path: Path) -> dict[Any, Any]:
    """The mapping that `path` holds. Raises UsageError for anything else: see `safe_yaml`."""
    content = read_document(path)
    if isinstance(content, Mapping):
        return dict(content)
    if content is None:
        raise UsageError(f"{path}: is empty, a search space needs version and parameters")
    kind = "a list" if isinstance(content, list) else "a single value"
    raise UsageError(f"{path}: must be a mapping with version and parameters, got {kind}")
