"""The search space as a file states it: parameters, constraints, presets.

Everything is checked on construction; `loading` turns broken rules into messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictStr, field_validator

from nccltune.space.arguments import (
    ALWAYS_UNSAFE,
    DDP_DEFAULTS,
    NAMES_INTERFACES,
    USERS_OWN,
    Target,
    target_problem,
    value_problem,
)
from nccltune.space.base import Frozen
from nccltune.space.conditions import NOT_NULL, Accepted, When
from nccltune.space.constraints import BUILT_IN, Constraints
from nccltune.space.scalars import (
    Problem,
    StrictNumber,
    StrictValue,
    Value,
    broken,
    contains,
    duplicates,
    is_number,
    is_whole,
    quoted,
    same,
    show,
)

__all__ = [
    "Constraints",
    "Fragment",
    "Listing",
    "Parameter",
    "Preset",
    "Range",
    "Risk",
    "Space",
    "When",
]

Risk = Literal["safe", "numerics", "guarded", "unsafe"]
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_ARGUMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SOURCE = re.compile(r"https?://\S+|[\w.-]+/[\w.-]+#\d+")


class Range(Frozen):
    """Numbers from `low` to `high`, both included."""

    low: StrictNumber
    high: StrictNumber
    step: StrictNumber | None = None
    log: StrictBool = False
    type: Literal["int", "float"] = "int"

    def problems(self) -> Iterator[Problem]:
        given = {"low": self.low, "high": self.high, "step": self.step}
        for name, value in given.items():
            if self.type == "int" and value is not None and not is_whole(value):
                yield Problem(name, f"must be a whole number with type int, got {value}")
        if self.low > self.high:
            yield Problem("", f"low must not exceed high, got low={self.low} high={self.high}")
        if self.log and self.low <= 0:
            yield Problem("", f"log needs a low above 0, got low={self.low}")
        if self.step is None:
            return
        if self.log:
            yield Problem("", f"step and log exclude each other, got step={self.step} log=true")
        if self.step <= 0:
            yield Problem("step", f"must be above 0, got {self.step}")
        elif not self._on_grid(self.high):
            # Optuna would move high without asking.
            text = f"step must divide high - low, got low={self.low} high={self.high}"
            yield Problem("", f"{text} step={self.step}")

    def contains(self, value: Value) -> bool:
        """Whether `value` has the type of this range, lies in it and on its steps."""
        if not is_number(value) or (self.type == "int" and not is_whole(value)):
            return False
        assert isinstance(value, int | float)
        return self.low <= value <= self.high and (self.step is None or self._on_grid(value))

    def _on_grid(self, value: float) -> bool:
        assert self.step is not None
        steps = (value - self.low) / self.step
        return abs(steps - round(steps)) < 1e-9 * max(1.0, abs(steps))

    def __str__(self) -> str:
        kind = "a whole number" if self.type == "int" else "a number"
        step = f" in steps of {self.step}" if self.step is not None else ""
        return f"{kind} from {self.low} to {self.high}{step}"


class Parameter(Frozen):
    """One thing that may be tried, with its values in the order of the file.

    `default` is the value in the baseline; null means "not set by us" for variables and DDP,
    and the user's own value for num_workers and batch_size.
    """

    name: Annotated[StrictStr, Field(exclude=True)]  # the key in a file, so no key of its own
    target: Target
    choices: tuple[StrictValue, ...] | None = None
    range: Range | None = None
    choices_from: Literal["interfaces"] | None = None
    """What the machine makes the choices of, when the space is resolved for it."""
    default: StrictValue = None
    when: When | None = None
    risk: Risk = "safe"
    caution: StrictStr | None = None
    """What was reported of it, told where a guarded parameter is offered."""
    about: StrictStr | None = None

    def problems(self) -> Iterator[Problem]:
        pattern, like = (
            (_VARIABLE, "an environment variable such as NCCL_ALGO")
            if self.target == "env"
            else (_ARGUMENT, "an argument such as bucket_cap_mb")
        )
        if not pattern.fullmatch(self.name):
            yield Problem("", f"name must look like {like}, got {quoted(self.name)}")
        if text := target_problem(self.name, self.target):
            yield Problem("target", text)
        sources = ("choices", "range", "choices_from")
        given = [name for name in sources if getattr(self, name) is not None]
        if not given:
            yield Problem("", "needs choices or range, got neither")
        elif len(given) > 1:
            both = "both" if len(given) == 2 else "all"
            yield Problem("", f"{' and '.join(given)} exclude each other, got {both}")
        elif self.choices_from is not None:
            yield from self._source_problems()
        else:
            yield from self._value_problems()
        for field, text in (("about", self.about), ("caution", self.caution)):
            if text is not None and not text.isprintable():
                yield Problem(field, "must be one line")

    def _source_problems(self) -> Iterator[Problem]:
        if self.name not in NAMES_INTERFACES:
            text = f"{self.choices_from} are for {', '.join(sorted(NAMES_INTERFACES))} alone"
            yield Problem("choices_from", text)
        if self.default is not None:
            yield Problem("default", f"must be null, got {quoted(self.default)}")

    def _value_problems(self) -> Iterator[Problem]:
        if self.choices is not None:
            if not self.choices:
                yield Problem("choices", "must not be empty")
            for value in duplicates(self.choices):
                yield Problem("choices", f"must not repeat a value, got {quoted(value)} twice")
            for value in self.choices:
                if text := self._refused(value):
                    yield Problem("choices", f"{text}, got {quoted(value)}")
        if self.range is not None:
            for field, bound in (("low", self.range.low), ("high", self.range.high)):
                if text := self._refused(bound):
                    yield Problem(f"range.{field}", f"{text}, got {quoted(bound)}")
        means_users_own = self.default is None and self.name in USERS_OWN
        if self.choices != () and not means_users_own and not self.legal(self.default):
            yield Problem("default", f"must be {self.allowed()}, got {quoted(self.default)}")

    def _refused(self, value: Value) -> str | None:
        if value is None and self.name in USERS_OWN:
            return None
        return value_problem(self.name, self.target, value)

    def legal(self, value: Value) -> bool:
        """Whether `value` is one of this parameter's."""
        if self.range is not None:
            return self.range.contains(value)
        if self.choices_from is not None:
            return value is None or (isinstance(value, str) and value.startswith("="))
        return contains(self.choices or (), value)

    def allowed(self) -> str:
        """The values in words: "one of null, 5, 10", "a whole number from 0 to 32"."""
        if self.range is not None:
            return str(self.range)
        if self.choices_from is not None:
            return f"null or one of this machine's {self.choices_from}, as =name"
        return f"one of {', '.join(show(value) for value in self.choices or ())}"

    def effective_risk(self) -> Risk:
        """The risk as the file states it, unless we know better."""
        return "unsafe" if self.name in ALWAYS_UNSAFE else self.risk


class Preset(Frozen):
    """A configuration that somebody reported as good, tried early."""

    name: Annotated[StrictStr, Field(min_length=1)]
    source: StrictStr
    values: Annotated[dict[StrictStr, StrictValue], Field(min_length=1)]

    def problems(self) -> Iterator[Problem]:
        if not _SOURCE.fullmatch(self.source):
            rule = "must be a public URL or owner/repository#number"
            yield Problem("source", f"{rule}, got {quoted(self.source)}")


class Listing(Frozen):
    """Parameters with their rules and presets, which name no parameters but these."""

    version: Literal[1]
    about: StrictStr | None = None
    parameters: dict[str, Parameter] = {}
    constraints: Constraints = Constraints()
    presets: tuple[Preset, ...] = ()

    @field_validator("parameters", mode="before")
    @classmethod
    def _name_parameters(cls, raw: object) -> object:
        if not isinstance(raw, Mapping):
            return raw
        for key, entry in raw.items():
            if not isinstance(key, str):
                raise broken(Problem("", f"parameter names must be texts, got {quoted(key)}"))
            if isinstance(entry, Mapping) and entry.get("name", key) != key:
                got = quoted(entry["name"])
                raise broken(Problem(key, f"the name is the key {quoted(key)}, got name {got}"))
        return {
            key: {"name": key, **entry} if isinstance(entry, Mapping) else entry
            for key, entry in raw.items()
        }

    def problems(self) -> Iterator[Problem]:
        yield from self._when_problems()
        for where, name in self.constraints.named():
            if name not in self.parameters:
                yield Problem(f"constraints.{where}", self._unknown(name))
        for index, combination in enumerate(self.constraints.forbids):
            yield from self._accepted_problems(f"constraints.forbids[{index}]", combination)
        if text := self._broken_rule({}):
            yield Problem("constraints", f"the defaults break a rule: {text}")
        yield from self._preset_problems()

    def _when_problems(self) -> Iterator[Problem]:
        for name, parameter in self.parameters.items():
            if parameter.when is None or parameter.when.param is None:
                continue
            where = f"parameters.{name}.when.param"
            for other in parameter.when.param:
                if other not in self.parameters:
                    yield Problem(where, self._unknown(other))
            yield from self._accepted_problems(where, parameter.when.param)
            if name in self._ancestors(name):
                yield Problem(where, f"{name} must not depend on itself")

    def _ancestors(self, name: str) -> set[str]:
        found: set[str] = set()
        waiting = [name]
        while waiting:
            parameter = self.parameters.get(waiting.pop())
            names = parameter.when.param or {} if parameter and parameter.when else {}
            waiting.extend(names.keys() - found)
            found.update(names)
        return found

    def _accepted_problems(self, where: str, accepted: dict[str, Accepted]) -> Iterator[Problem]:
        for name, values in accepted.items():
            parameter = self.parameters.get(name)
            if parameter is None or values == (NOT_NULL,):
                continue
            for value in values:
                if not parameter.legal(value):
                    rule = f"must be {parameter.allowed()}"
                    yield Problem(f"{where}.{name}", f"{rule}, got {quoted(value)}")

    def _preset_problems(self) -> Iterator[Problem]:
        names: tuple[Value, ...] = tuple(preset.name for preset in self.presets)
        for name in duplicates(names):
            yield Problem("presets", f"names must not repeat, got {quoted(name)} twice")
        for index, preset in enumerate(self.presets):
            where = f"presets[{index}].values"
            for name, value in preset.values.items():
                parameter = self.parameters.get(name)
                if parameter is None:
                    yield Problem(where, self._unknown(name))
                elif not parameter.legal(value):
                    rule = f"must be {parameter.allowed()}"
                    yield Problem(f"{where}.{name}", f"{rule}, got {quoted(value)}")
            if text := self._broken_rule(preset.values):
                yield Problem(where, text)

    def _broken_rule(self, changes: Mapping[str, Value]) -> str | None:
        defaults = {name: parameter.default for name, parameter in self.parameters.items()}
        values = {**defaults, **changes}
        unknown = {name for name in USERS_OWN if values.get(name) is None}
        return self.constraints.broken_by(values, unknown) or BUILT_IN.broken_by(values, unknown)

    def _unknown(self, name: str) -> str:
        kind, known = type(self).__name__.lower(), ", ".join(self.parameters) or "none"
        return f"unknown parameter {quoted(name)}, the {kind} has {known}"


class Space(Listing):
    """A whole search space. With `fragments` it takes what the path between ranks adds."""

    parameters: Annotated[dict[str, Parameter], Field(min_length=1)]
    fragments: StrictBool = False


class Fragment(Listing):
    """What one path between ranks adds to a space, and what is better left alone there.

    Nothing of it changes the baseline: every default is what holds where nothing is set.
    """

    when: When
    unset: dict[StrictStr, StrictStr] = {}
    """Names that are not searched on this path, with the reason."""

    def problems(self) -> Iterator[Problem]:
        if self.when == When():
            yield Problem("when", "must not be empty: it says on which path the fragment acts")
        if self.when.param is not None:
            yield Problem("when.param", "is for parameters, a fragment depends on the path alone")
        if not self.parameters and not self.unset:
            yield Problem("", "needs parameters or unset, got neither")
        for name, reason in self.unset.items():
            if name in self.parameters:
                yield Problem(f"unset.{name}", "is a parameter of the fragment too")
            if not reason or not reason.isprintable():
                yield Problem(f"unset.{name}", "must be a reason in one line")
        for name, parameter in self.parameters.items():
            neutral = DDP_DEFAULTS.get(name)
            if not same(parameter.default, neutral):
                text = f"must be {show(neutral)}, which leaves the baseline as it is"
                yield Problem(
                    f"parameters.{name}.default", f"{text}, got {quoted(parameter.default)}"
                )
        yield from super().problems()
