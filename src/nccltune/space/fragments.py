"""Fragments: what the path between ranks (NVLink, PCIe, a network) adds to a space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nccltune.space.conditions import When
from nccltune.space.constraints import Constraints
from nccltune.space.facts import Facts
from nccltune.space.model import Fragment, Parameter, Preset, Space
from nccltune.space.resolved import Note


@dataclass(frozen=True)
class Extended:
    """A space with what its path adds; `space` is not validated again."""

    space: Space
    added: Mapping[str, str]
    """By parameter that a fragment brought: which one, and what it is for."""
    unset: Mapping[str, str]
    """By name that is left alone on this path: why."""
    notes: tuple[Note, ...]
    """Of the fragments that add nothing here."""


def extend(space: Space, fragments: Mapping[str, Fragment], facts: Facts) -> Extended:
    """The space with the fragments of this job's path, if it takes any.

    The space's own parameters stand as they are; of two fragments with the same one the first
    gives it. Before the probe launch nothing is added: then the path is not known.
    """
    if not space.fragments or not fragments:
        return Extended(space, {}, {}, ())
    if not facts.probed:
        reason = "nothing is added for the path between ranks, which only a probe launch tells"
        return Extended(space, {}, {}, (Note("fragments", "dropped", reason),))
    unmet = {name: fragment.when.unmet(facts) for name, fragment in fragments.items()}
    acting = {name: fragments[name] for name, reason in unmet.items() if reason is None}
    whole = with_all(space, acting)
    return Extended(
        space=whole,
        added=_added(space, acting, facts),
        unset={
            name: f"fragment {label}: {reason}"
            for label, fragment in acting.items()
            for name, reason in fragment.unset.items()
        },
        notes=tuple(
            Note(f"fragment {name}", "dropped", f"{reason}: {missed}")
            for name, reason in unmet.items()
            if reason and (missed := _missed(fragments[name], whole))
        ),
    )


def with_all(space: Space, fragments: Mapping[str, Fragment]) -> Space:
    """The space with all of these fragments, whatever their conditions say."""
    if not space.fragments:
        return space
    parameters: dict[str, Parameter] = {}
    rules = Constraints()
    presets: list[Preset] = []
    for fragment in fragments.values():
        parameters |= _without(fragment.parameters, parameters)
        rules = _joined(rules, fragment.constraints)
        # What is particular to the path is tried before what is good in general.
        presets += fragment.presets
    own = {preset.name for preset in space.presets}
    update = {
        "parameters": {**space.parameters, **_without(parameters, space.parameters)},
        "constraints": _joined(space.constraints, rules),
        "presets": (*(preset for preset in presets if preset.name not in own), *space.presets),
    }
    return space.model_copy(update=update)


def _added(space: Space, acting: Mapping[str, Fragment], facts: Facts) -> dict[str, str]:
    added: dict[str, str] = {}
    for label, fragment in acting.items():
        for name in _without(fragment.parameters, space.parameters):
            added.setdefault(name, f"fragment {label} ({_path(fragment.when, facts)})")
    return added


def _missed(fragment: Fragment, whole: Space) -> str:
    """The parameters that are not there for want of this fragment."""
    return ", ".join(_without(fragment.parameters, whole.parameters))


def _path(when: When, facts: Facts) -> str:
    """The facts that the fragment acts for, in words: transport P2P over NVLink."""
    parts = [f"network {facts.network}"] if when.network else []
    if when.transport:
        wanted = {name.lower() for name in when.transport}
        used = [name for name in facts.transports if name.lower() in wanted]
        links = {None: "", True: " over NVLink", False: " without NVLink"}[when.nvlinks]
        parts.append(f"transport {', '.join(used)}{links}")
    return ", ".join(parts) or f"backend {facts.backend}"


def _without(
    parameters: Mapping[str, Parameter], others: Mapping[str, Parameter]
) -> dict[str, Parameter]:
    return {name: entry for name, entry in parameters.items() if name not in others}


def _joined(one: Constraints, other: Constraints) -> Constraints:
    """All rules of both, each once."""
    update = {}
    for field in type(one).model_fields:
        mine = getattr(one, field)
        update[field] = (*mine, *(rule for rule in getattr(other, field) if rule not in mine))
    return one.model_copy(update=update)
