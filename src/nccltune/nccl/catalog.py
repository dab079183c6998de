"""The environment variables of NCCL, by name. The facts are in variables.yaml beside this file."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

import yaml
from packaging.version import Version

Kind = Literal["bool", "int", "size", "enum", "string", "list"]
Scope = Literal["process", "communicator"]

NEWEST = Version("2.30.7")
"""The newest NCCL release that variables.yaml describes."""

FOREIGN: Mapping[str, str] = MappingProxyType(
    {
        "NCCL_ASYNC_ERROR_HANDLING": "torch, as TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "NCCL_BLOCKING_WAIT": "torch, as TORCH_NCCL_BLOCKING_WAIT",
        "NCCL_DESYNC_DEBUG": "torch, as TORCH_NCCL_DESYNC_DEBUG",
        "NCCL_ENABLE_TIMING": "torch, as TORCH_NCCL_ENABLE_TIMING",
        "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": (
            "torch, as TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
        ),
        "NCCL_TUNER_CONFIG_FILE": "NCCL's example tuner plugin",
        "NCCL_VERSION": "nothing; NVIDIA's container images set it as a note",
    }
)
"""Names that begin with NCCL_ but that NCCL itself does not read, and who does."""


@dataclass(frozen=True)
class Variable:
    """One environment variable of NCCL.

    `choices`, `minimum` and `maximum` (inclusive) hold the values worth writing down: NCCL's own
    marks for "automatic" are left out. `since` is None where no examined release reads the name;
    `removed` is the first release that ignores it. `config` is the attribute of torch's
    `ProcessGroupNCCL.Options().config` with the same meaning. `applies_to` names the parts of NCCL
    that must be in use, `only` a narrower condition in words. `perf` is "weak" for a small or
    special effect on speed. `automatic` holds NCCL's own marks for "automatic". `debugging`: the
    user guide lists it as not to be kept. `fabric`: its value belongs to one network. From
    `typed_since` on a truth value may be a word.
    """

    name: str
    kind: Kind
    since: Version | None = None
    removed: Version | None = None
    deprecated: Version | None = None
    replacement: str | None = None
    scope: Scope = "process"
    config: str | None = None
    choices: tuple[str, ...] = ()
    choices_since: Mapping[str, Version] = field(default_factory=dict)
    any_case: bool = False
    minimum: int | None = None
    maximum: int | None = None
    power_of_two: bool = False
    automatic: tuple[int, ...] = ()
    typed_since: Version | None = None
    applies_to: tuple[str, ...] = ("all",)
    only: tuple[str, ...] = ()
    risk: tuple[str, ...] = ()
    documented: bool = False
    debugging: bool = False
    fabric: bool = False
    perf: bool | Literal["weak"] = False

    @property
    def is_integer(self) -> bool:
        """Whether NCCL reads the text through strtoll (or only integers mean something to it)."""
        if self.kind in ("bool", "int", "size"):
            return True
        return bool(self.choices) and all(choice.isdigit() for choice in self.choices)


def lookup(name: str) -> Variable | None:
    """The variable of that exact name, current or removed; None if NCCL never read it."""
    return _variables().get(name)


def names() -> tuple[str, ...]:
    """All names, removed ones included, in alphabetical order."""
    return tuple(sorted(_variables()))


def successor(variable: Variable, version: Version) -> str | None:
    """The name to write in that release instead: the last of the chain that is there already."""
    name: str | None = None
    following = variable.replacement
    while following is not None:
        next_one = lookup(following)
        if next_one is None or (next_one.since is not None and version < next_one.since):
            break
        if next_one.removed is None or version < next_one.removed:
            name = following
        is_old = next_one.deprecated is not None and version >= next_one.deprecated
        is_gone = next_one.removed is not None and version >= next_one.removed
        following = next_one.replacement if is_old or is_gone else None
    return name


def scope_of(name: str) -> Scope:
    """The cheapest level at which a new value takes effect; "process" for unknown names.

    "communicator" means that a new process group in live ranks is enough: NCCL reads the variable
    anew for each, or torch offers it as `config_field(name)`.
    """
    variable = lookup(name)
    return "process" if variable is None else variable.scope


def config_field(name: str) -> str | None:
    """The attribute of torch's `ProcessGroupNCCL.Options().config` with the same meaning, or None.

    It exists only where torch was built against an NCCL that has it: test with hasattr. The
    environment variable overrides it.
    """
    variable = lookup(name)
    return None if variable is None else variable.config


@functools.cache
def _variables() -> Mapping[str, Variable]:
    text = resources.files("nccltune.nccl").joinpath("variables.yaml").read_text("utf-8")
    # The C parser reads the file in a seventh of the time; not every PyYAML has it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries = yaml.load(text, Loader=loader)
    return MappingProxyType({entry["name"]: _variable(entry) for entry in entries})


def _variable(entry: Mapping[str, Any]) -> Variable:
    since: Mapping[str, str] = entry.get("choices_since", {})
    return Variable(
        name=entry["name"],
        kind=entry["kind"],
        since=_version(entry.get("since")),
        removed=_version(entry.get("removed")),
        deprecated=_version(entry.get("deprecated")),
        replacement=entry.get("replacement"),
        scope=entry["scope"],
        config=entry.get("config"),
        choices=tuple(str(choice) for choice in entry.get("choices", ())),
        choices_since={choice: Version(text) for choice, text in since.items()},
        any_case=entry.get("any_case", False),
        minimum=entry.get("min"),
        maximum=entry.get("max"),
        power_of_two=entry.get("power_of_two", False),
        automatic=tuple(entry.get("automatic", ())),
        typed_since=_version(entry.get("typed_since")),
        applies_to=tuple(entry["applies_to"]),
        only=tuple(entry.get("only", ())),
        risk=tuple(entry["risk"]),
        documented=entry["documented"],
        debugging=entry.get("debugging", False),
        fabric=entry.get("fabric", False),
        perf=entry["perf"],
    )


def _version(text: str | None) -> Version | None:
    return None if text is None else Version(text)
