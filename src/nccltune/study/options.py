"""What the user asked for, as one value; strings were parsed at the edge."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from nccltune.errors import UsageError
from nccltune.space import Value


@dataclass(frozen=True)
class SearchOptions:
    """Options of `nccltune search`; None is "not given"."""

    model: str | None = None
    trials: int | None = None
    time_budget: float | None = None
    space: str | None = None
    device: str = "auto"
    backend: str = "auto"
    nproc_per_node: int | None = None
    emulate_hosts: int | None = None
    launcher: str = "auto"
    hosts: str | None = None
    """Of --launcher ssh: a list, or the path of a file."""
    ssh: str = "ssh"
    python: str | None = None
    allow_busy: bool = False
    batch_size: int | None = None
    num_workers: int | None = None
    image_size: int | None = None
    data: str = "images"
    precision: str = "tf32"
    channels_last: bool = False
    cudnn_benchmark: bool = True
    fix: Mapping[str, Value] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    unpin: tuple[str, ...] = ()
    allow_guarded: bool = False
    allow_unsafe: bool = False
    study: str | None = None
    storage: str | None = None
    """A database or journal file in which several tuners share the study."""
    split: int | None = None
    """Among so many tuners the nodes of an allocation are divided."""
    studies_dir: Path = Path("studies")
    new: bool = False
    accept_machine: bool = False
    seed: int = 0
    sampler: str = "guided"
    pruner: str = "own"
    measure_seconds: float = 1.2
    confirm_launches: int = 12
    search_anyway: bool = False
    with_serials: bool = False
    optimizer: int | None = None
    samples_per_step: int | None = None
    loader_match: str | None = None
    allow_saves: bool = False
    workdir: str = "here"
    script: tuple[str, ...] = ()
    """The user's own training script, and how it is started; empty: a job of ours."""
    command: tuple[str, ...] = ()

    def complete(self, device: str) -> SearchOptions:
        """With the documented defaults filled in. Without a --model a machine without GPUs gets a
        small job that ends in minutes there; what was given stays as given.
        """
        small = self.model is None and device == "cpu"
        return replace(
            self,
            model=self.model or ("resnet18" if small else "resnet50"),
            trials=self.trials or (12 if small else 40),
            time_budget=self.time_budget or (240.0 if small and not self.trials else None),
            batch_size=self.batch_size or (8 if small else 64),
            image_size=self.image_size or (64 if small else 224),
        )


_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


def parse_duration(text: str) -> float:
    """Seconds of "90", "90s", "10m", "1h30m". Raises UsageError."""
    match = _DURATION.fullmatch(text.strip())
    if not match or not any(match.groups()):
        raise UsageError(f"not a time: {text!r}; write it like 90s, 10m or 1h30m")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    total = hours * 3600 + minutes * 60 + seconds
    if total <= 0:
        raise UsageError(f"a time must be above 0, got {text!r}")
    return total


def parse_fix(assignments: tuple[str, ...]) -> dict[str, Value]:
    """NAME=VALUE pairs; values as YAML reads them, so that 8, true and null are what they say."""
    fixed: dict[str, Value] = {}
    for assignment in assignments:
        name, found, text = assignment.partition("=")
        if not found or not name:
            raise UsageError(f"--fix {assignment}: write it as NAME=VALUE")
        if name in fixed:
            raise UsageError(f"--fix {name}: given twice")
        fixed[name] = _value(name, text)
    return fixed


def _value(name: str, text: str) -> Value:
    if not text.strip():
        raise UsageError(f"--fix {name}=: needs a value; write {name}=null for unset")
    if text.strip() in ("null", "~", "unset"):
        return None
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):  # 2020-13-45 is a date to YAML
        return text
    if value is None:  # null, Null, NULL; "# ..." is null for YAML too, but nobody means it
        return text if text.lstrip().startswith("#") else None
    return value if isinstance(value, (bool, int, float, str)) else text  # a list, a date
