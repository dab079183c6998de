"""The search space as it is on one machine for one job, and how it is kept in study.yaml."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pydantic import StrictBool, StrictStr, ValidationError

from nccltune.errors import UsageError
from nccltune.space.arguments import Target
from nccltune.space.base import Frozen
from nccltune.space.messages import lines
from nccltune.space.model import Constraints, Parameter, Preset
from nccltune.space.scalars import StrictValue, Value

Action = Literal["dropped", "narrowed", "added", "fixed", "pinned", "guarded"]


@dataclass(frozen=True)
class Note:
    """What became of a parameter on the way from the file to this machine, and why."""

    parameter: str
    action: Action
    reason: str


@dataclass(frozen=True)
class ResolvedSpace:
    """What will be searched here, with everything needed to judge a configuration."""

    parameters: tuple[Parameter, ...]
    """In the order of the file."""
    fixed: dict[str, Value]
    """The user's --fix: the same in the baseline and in all candidates."""
    baseline: dict[str, Value]
    """The default of every searched parameter, and the fixed values."""
    constraints: Constraints
    presets: tuple[Preset, ...]
    """Those that differ from the baseline and break no rule here, cut to what is searched."""
    notes: tuple[Note, ...]
    probed: bool
    """False: facts that only the probe launch tells were not known yet."""
    given: dict[str, Value] = field(default_factory=dict)
    """What holds here without being set by us and matters to a rule: the site's variables, the
    user's own num_workers, DDP's defaults. A name that is missing is not set."""
    fixed_targets: dict[str, Target] = field(default_factory=dict)
    may_gain: bool = field(default=False, compare=False)
    """Whether the probe launch may show a path between ranks that adds a parameter."""

    def to_dict(self) -> dict[str, Any]:
        """Mappings, lists and scalars alone, so that any YAML or JSON writer can keep it."""
        return {
            "parameters": [parameter.plain() for parameter in self.parameters],
            "fixed": dict(self.fixed),
            "fixed_targets": dict(self.fixed_targets),
            "given": dict(self.given),
            "baseline": dict(self.baseline),
            "constraints": self.constraints.plain(),
            "presets": [preset.plain() for preset in self.presets],
            "notes": [asdict(note) for note in self.notes],
            "probed": self.probed,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], source: str = "space") -> ResolvedSpace:
        """The inverse of `to_dict`.

        Raises:
            UsageError: `document` is not one; each line begins with `source`.
        """
        try:
            kept = _Document.model_validate(document)
        except ValidationError as error:
            raise UsageError("\n".join(lines(error, source, _Document))) from None
        values = {name: getattr(kept, name) for name in _Document.model_fields}
        values["notes"] = tuple(Note(n.parameter, n.action, n.reason) for n in kept.notes)
        return cls(**values)

    def digest(self) -> str:
        """SHA-256 of what is searched, as hexadecimal text.

        Equal digests mean that trials of one can be told to a study of the other. Notes, presets
        and descriptions are left out: they change what is said or tried first, not what is legal.
        """
        document = self.to_dict()
        for name in ("notes", "presets", "probed"):
            del document[name]
        for parameter in document["parameters"]:
            for description in ("about", "caution"):
                parameter.pop(description, None)
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


class _Note(Frozen):
    parameter: StrictStr
    action: Action
    reason: StrictStr


Values = dict[StrictStr, StrictValue]


class _Document(Frozen):
    parameters: tuple[Parameter, ...]
    fixed: Values
    fixed_targets: dict[StrictStr, Target]
    given: Values
    baseline: Values
    constraints: Constraints
    presets: tuple[Preset, ...]
    notes: tuple[_Note, ...]
    probed: StrictBool
