"""What an earlier generation teaches a new search: its best settings are tried first."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nccltune.output.words import value as shown
from nccltune.space import ResolvedSpace, Value, changes, key
from nccltune.space.arguments import KINDS
from nccltune.study.planner import Earlier
from nccltune.study.summary import Summary

_RUNNERS_UP = 3


def earlier_points(
    old: Summary, generation: int, space: ResolvedSpace
) -> tuple[list[Earlier], list[str]]:
    """The old best, then its runners-up, as far as they apply in `space`; and what does not, with
    the reason, a line for each value.
    """
    points: list[Earlier] = []
    dropped: dict[str, None] = {}
    known = {key({})}
    for origin, values in _best_first(old, generation):
        usable, reasons = _applying(values, space)
        dropped.update(dict.fromkeys(reasons))
        if key(usable) not in known:
            known.add(key(usable))
            points.append(Earlier(origin, usable))
    return points, list(dropped)


def _best_first(old: Summary, generation: int) -> list[tuple[str, Mapping[str, Value]]]:
    """What differs from the defaults; larger batches are another training and left out."""
    own = old.own
    found = []
    if own is not None and own.faster:
        found.append((f"best of generation {generation}", own.configuration))
    ranked = [each.trial for each in old.ranking("search") if each.trial.number]
    found += [
        (f"trial {trial.number} of generation {generation}", trial.parameters)
        for trial in ranked[:_RUNNERS_UP]
    ]
    return [(origin, changes(values, old.space.baseline)) for origin, values in found]


def targets_of(names: Collection[str]) -> tuple[str, ...]:
    """Where these parameters are set, as --only names it: env, ddp, loader, batch."""
    found = (KINDS[name].target if name in KINDS else "env" for name in names)
    known = {"env", "ddp", "loader", "batch"}
    return tuple(dict.fromkeys(n if n in known else t for n, t in zip(names, found, strict=True)))


def _applying(
    values: Mapping[str, Value], space: ResolvedSpace
) -> tuple[dict[str, Value], list[str]]:
    searched = {parameter.name: parameter for parameter in space.parameters}
    why = {note.parameter: note.reason for note in space.notes}
    usable, reasons = {}, []
    for name, value in values.items():
        if name in space.fixed:
            reasons.append(f"{name}={shown(value)}: --fix holds {shown(space.fixed[name])}")
        elif name not in searched:
            reasons.append(f"{name}={shown(value)}: {why.get(name, _of_fragment(name, why))}")
        elif not searched[name].legal(value):
            reasons.append(f"{name}={shown(value)}: not {searched[name].allowed()} here")
        else:
            usable[name] = value
    return usable, reasons


def _of_fragment(name: str, why: Mapping[str, str]) -> str:
    """Notes of fragments name their parameters at the end."""
    found = [reason for reason in why.values() if name in reason]
    return found[0].partition(": ")[0] if found else "not searched here"
