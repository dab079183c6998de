"""best.yaml: the settings that won, with what they were measured on. Written here and read back."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nccltune.errors import UsageError

_LARGEST = 1 << 20
_SECTIONS = ("ddp", "loader", "env", "workload", "machine", "provenance")
_OURS = {
    *("PYTHONPATH", "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE"),
    *("LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"),
}

VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Best:
    """Settings for a job. `batch_size` is a rank's; `verdict` is None until they are confirmed."""

    env: Mapping[str, str]
    ddp: Mapping[str, Any]
    loader: Mapping[str, Any]
    batch_size: int
    workload: Mapping[str, Any]
    verdict: Mapping[str, Any] | None
    machine: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @property
    def ddp_kwargs(self) -> dict[str, Any]:
        """For `DistributedDataParallel(model, **best.ddp_kwargs)`."""
        return dict(self.ddp)

    @property
    def loader_kwargs(self) -> dict[str, Any]:
        """For `DataLoader(dataset, batch_size=best.batch_size, **best.loader_kwargs)`."""
        return dict(self.loader)

    def to_yaml(self) -> str:
        data = {
            "version": 1,
            "ddp": dict(self.ddp),
            "loader": dict(self.loader),
            "batch_size": self.batch_size,
            "env": dict(self.env),
            "workload": dict(self.workload),
            "verdict": self.verdict,
            "machine": dict(self.machine),
            "provenance": dict(self.provenance),
        }
        return yaml.safe_dump(data, sort_keys=False, width=100)


def read_limited(file: Path) -> str:
    """A settings file's text. Raises OSError, also for what is no file or far too large."""
    if file.exists() and not file.is_file():
        raise OSError("is no file")
    if file.stat().st_size > _LARGEST:
        raise OSError(f"larger than {_LARGEST} bytes")
    with file.open(encoding="utf-8-sig", newline="") as text:  # a shell keeps carriage returns
        return text.read()


def read_best(path: str | os.PathLike[str]) -> Best:
    """Read a best.yaml. Raises UsageError naming the file and what is wrong with it."""
    file = Path(path)
    try:
        data = yaml.safe_load(read_limited(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read: {error}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{file}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict) or data.get("version") != 1:
        raise UsageError(f"{file}: not a best.yaml of version 1")
    for name in _SECTIONS:
        if not isinstance(data.get(name), dict):
            kind = type(data.get(name)).__name__
            raise UsageError(f"{file}: {name}: must be a mapping, got {kind}")
    batch_size = data.get("batch_size")
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise UsageError(f"{file}: batch_size: must be a whole number >= 1, got {batch_size!r}")
    fields = {name: data[name] for name in _SECTIONS}
    return Best(batch_size=batch_size, verdict=data.get("verdict"), **fields)


def read_variables(path: str | os.PathLike[str], best: Best) -> dict[str, str]:
    """The variables of a best.yaml as texts; numbers are taken as they are written.

    Raises: UsageError for what is no variable, or one that starts and holds the ranks.
    """
    found = {}
    given: Mapping[Any, Any] = best.env  # a file holds what it likes
    for name, value in given.items():
        where = f"{path}: env.{name}"
        is_text = isinstance(value, (int, str)) and not isinstance(value, bool)
        if not is_text or not isinstance(name, str):
            raise UsageError(f"{where}: must be text, in quotes")
        found[name] = allowed_variable(where, name, str(value))
    return found


def allowed_variable(where: str, name: str, value: str) -> str:
    """The value. Raises UsageError for what is no variable, or one that starts and holds the
    ranks.
    """
    if not VARIABLE_NAME.fullmatch(name) or "\0" in value:
        raise UsageError(f"{where}: not a variable")
    if "\r" in value:
        raise UsageError(f"{where}: holds a carriage return; save the file with Unix line ends")
    if name in _OURS or name.startswith(("NCCLTUNE_", "TORCHELASTIC_", "NCCL_DEBUG")):
        raise UsageError(f"{where}: is set by every launch; take it out of the file")
    return value
