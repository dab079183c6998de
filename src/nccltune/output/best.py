"""best.yaml: the settings that won, with what they were measured on. Written here and read back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nccltune.errors import UsageError
from nccltune.nccl.accepted import name_problem, value_problem
from nccltune.nccl.findings import shown
from nccltune.safe_yaml import read_document

_LARGEST = 1 << 20
_RESULT, _DEFINITION = "best.yaml", "study.yaml"
_SECTIONS = ("ddp", "loader", "env", "workload", "machine", "provenance")
_OURS = {
    *("PYTHONPATH", "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE"),
    *("LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"),
}
_BY_LAUNCH = ("NCCLTUNE_", "TORCHELASTIC_", "NCCL_DEBUG")


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
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """What the result depends on; empty in files of earlier versions."""

    def __repr__(self) -> str:
        """The settings alone; where they come from takes pages."""
        parts = {"env": self.env, "ddp": self.ddp, "loader": self.loader}
        shown_ = ", ".join(f"{name}={dict(values)!r}" for name, values in parts.items())
        return f"Best({shown_}, batch_size={self.batch_size})"

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
            **({"fingerprint": dict(self.fingerprint)} if self.fingerprint else {}),
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


def result_file(path: str | os.PathLike[str]) -> Path:
    """The file that is meant: of a study's folder its best.yaml.

    Raises: UsageError where it has none.
    """
    file = Path(path)
    if not (file / _DEFINITION).is_file():
        return file
    if not (file / _RESULT).is_file():
        raise UsageError(f"{file}: has no {_RESULT} yet; `nccltune search` goes on with it")
    return file / _RESULT


def read_best(path: str | os.PathLike[str]) -> Best:
    """Read a best.yaml, or that of a study's folder, as data from anywhere: see `safe_yaml`.

    Raises: UsageError naming the file and what is wrong with it.
    """
    file = result_file(path)
    data = read_document(file)
    if file.name == _DEFINITION and isinstance(data, dict) and "space" in data:
        raise UsageError(f"{file}: that is a study's definition; its result is {_RESULT} beside it")
    if not isinstance(data, dict) or data.get("version") != 1:
        raise UsageError(f"{file}: not a best.yaml of version 1")
    data.setdefault("fingerprint", {})
    for name in (*_SECTIONS, "fingerprint"):
        if not isinstance(data.get(name), dict):
            kind = type(data.get(name)).__name__
            raise UsageError(f"{file}: {name}: must be a mapping, got {kind}")
    batch_size = data.get("batch_size")
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise UsageError(f"{file}: batch_size: must be a whole number >= 1, got {batch_size!r}")
    _check_verdict(file, data.get("verdict"))
    unpinned = data["provenance"].get("unpinned") or []
    if not isinstance(unpinned, list) or not all(isinstance(n, str) for n in unpinned):
        raise UsageError(f"{file}: provenance.unpinned: must be a list of names")
    placed = data["workload"].get("placed") or {}
    if not isinstance(placed, dict) or not all(isinstance(v, (str, int)) for v in placed.values()):
        raise UsageError(f"{file}: workload.placed: must be a mapping to texts")
    fields = {name: data[name] for name in (*_SECTIONS, "fingerprint")}
    return Best(batch_size=batch_size, verdict=data.get("verdict"), **fields)


def _check_verdict(file: Path, verdict: Any) -> None:
    if verdict is None:
        return
    if not isinstance(verdict, dict):
        raise UsageError(f"{file}: verdict: must be null or a mapping")
    for name in ("ratio", "low", "high", "threshold"):
        if not isinstance(verdict.get(name), (int, float, type(None))):
            raise UsageError(f"{file}: verdict.{name}: must be a number")


def read_variables(path: str | os.PathLike[str], best: Best) -> dict[str, str]:
    """The variables of a best.yaml as texts; numbers are taken as they are written.

    Raises: UsageError for what no file of settings may set: see `allowed_variable`.
    """
    found = {}
    given: Mapping[Any, Any] = best.env  # a file holds what it likes
    for name, value in given.items():
        where = f"{path}: env.{shown(str(name))}"
        is_text = isinstance(value, (int, str)) and not isinstance(value, bool)
        if not is_text or not isinstance(name, str):
            raise UsageError(f"{where}: must be text, in quotes")
        found[name] = allowed_variable(where, name, str(value))
    return found


def allowed_variable(where: str, name: str, value: str) -> str:
    """The value. `where` is the place in the file, the name at its end.

    Raises: UsageError for what every launch sets, and for what a file from elsewhere may not set,
    since a job would load, run or write something by it.
    """
    if name in _OURS or name.startswith(_BY_LAUNCH):
        raise UsageError(f"{where}: is set by every launch; take it out of the file")
    if "\r" in value:
        raise UsageError(f"{where}: holds a carriage return; save the file with Unix line ends")
    if problem := name_problem(name) or value_problem(name, value):
        raise UsageError(
            f"{where}: {problem}; take it out of the file, and export it in the job yourself if it "
            "is to be set"
        )
    return value
