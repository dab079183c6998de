"""The user's own training script as a job: what is asked of it, what is known of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nccltune.errors import UsageError
from nccltune.launch.script import ScriptCommand
from nccltune.space import Value
from nccltune.space.arguments import OF_LOADER
from nccltune.space.scalars import show

_UNSET = {"bucket_cap_mb": "25", "prefetch_factor": "2"}
"""What a script is given for a value that is not set: torch's own default."""


@dataclass(frozen=True)
class ScriptFacts:
    """What a launch of the script as it is has shown."""

    facts: Mapping[str, Any]

    @property
    def batch_size(self) -> int:
        """Samples of a rank in a step, on average."""
        samples = self.facts["samples_per_step"]
        return max(1, int(round(sum(samples) / len(samples))))

    @property
    def num_workers(self) -> int:
        loader = self.loader
        return 0 if loader is None else int(loader["num_workers"])

    @property
    def loader(self) -> Mapping[str, Any] | None:
        """The first that feeds the training."""
        keys = self.facts["training"]
        return next((r for r in self.facts["loaders"] if keys and r["key"] == keys[0]), None)


@dataclass(frozen=True)
class ScriptTask:
    """`placed` are the parameters that the command has a place for. `facts` are known once the
    script was looked at.
    """

    command: ScriptCommand
    placed: tuple[str, ...] = ()
    optimizer: int | None = None
    """Whose steps count, from 0; None: the busiest."""
    samples_per_step: int | None = None
    """Of a rank; None: from the batch."""
    loader_match: str | None = None
    allow_saves: bool = False
    scratch: bool = False
    facts: ScriptFacts | None = None

    def looked_at(self, facts: Mapping[str, Any]) -> ScriptTask:
        return replace(self, facts=ScriptFacts(facts))

    def to_dict(self) -> dict[str, Any]:
        """What a study is compared by when it is resumed."""
        options = {
            "optimizer": self.optimizer,
            "samples_per_step": self.samples_per_step,
            "loader_match": self.loader_match,
        }
        return {
            "script": list(self.command.words),
            "script_sha256": _digest(self.command),
            **{name: value for name, value in options.items() if value is not None},
            **({"allow_saves": True} if self.allow_saves else {}),
            **({"workdir": "scratch"} if self.scratch else {}),
        }

    def request(
        self, ddp: Mapping[str, Any], loader: Mapping[str, Any], batch_factor: float = 1.0
    ) -> dict[str, Any]:
        """The part of a request that is about the script. `batch_factor`: the batch size over that
        of the baseline, for which the user has told the samples of a step.
        """
        samples = self.samples_per_step
        known = None if self.facts is None else self.facts.facts
        counted = self.optimizer if known is None else known["optimizer"]
        return {
            "ddp": dict(ddp),
            "loader": dict(loader),
            "script": {
                "training": None if known is None else list(known["training"]),
                "match": self.loader_match,
                "optimizer": counted,
                "samples_per_step": None if samples is None else round(samples * batch_factor),
                "check_parameters": known is None or known["parameters_equal"],
            },
        }

    def texts(self, values: Mapping[str, Value]) -> dict[str, str]:
        """What stands in the command for the names in braces."""
        return {name: _text(name, values.get(name)) for name in self.placed}

    def no_place(self, ddp_arguments: frozenset[str]) -> dict[str, str]:
        """Parameters that cannot reach the script, and why; all that is known before it was looked
        at where it was not.
        """
        reasons: dict[str, str] = {}
        if "batch_size" not in self.placed:
            reasons["batch_size"] = f"{self.command.name} has no place for it ({{batch_size}})"
        if self.facts is not None:
            reasons |= _not_injected(self, self.facts, ddp_arguments)
        return {name: why for name, why in reasons.items() if name not in self.placed}


def _not_injected(
    task: ScriptTask, known: ScriptFacts, ddp_arguments: frozenset[str]
) -> dict[str, str]:
    facts, name, reasons = known.facts, task.command.name, dict[str, str]()
    if not facts["ddp_modules"]:
        what = "shards its model with FSDP" if facts["fsdp"] else "wraps no model in DDP"
        reasons |= dict.fromkeys(ddp_arguments, f"{name} {what}")
    for argument, value in facts["ddp_kept"].items():
        reasons[argument] = f"{name} sets it itself ({argument}={show(value)})"
    if facts["accumulates"]:
        reasons["static_graph"] = f"{name} accumulates gradients, which it breaks"
    loader = known.loader
    if loader is None:
        reasons |= dict.fromkeys(OF_LOADER, f"no DataLoader of {name} feeds the training")
    elif loader["iterable"]:
        reasons["num_workers"] = f"{name} has an IterableDataset: other workers read other data"
    return reasons


def _text(name: str, value: Value) -> str:
    if value is None:
        return _UNSET.get(name, "")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _digest(command: ScriptCommand) -> str | None:
    """Of the script's file: with another one, old and new trials cannot be compared."""
    if command.file is None or not command.file.is_file():
        return None
    try:
        return hashlib.sha256(command.file.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"{command.file}: cannot be read: {error.strerror}") from error
