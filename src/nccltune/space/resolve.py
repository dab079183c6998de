"""From the space of a file to the space of this machine: what cannot act here is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from nccltune.errors import UsageError
from nccltune.nccl.site import SiteVariable
from nccltune.space.arguments import DDP_DEFAULTS, USERS_OWN
from nccltune.space.conditions import NOT_NULL, Accepted, accepts, show_accepted
from nccltune.space.configuration import canonical, key, violation
from nccltune.space.constraints import ACTS_ONLY_WITH, BUILT_IN, Constraints
from nccltune.space.facts import Data, Facts, Selection
from nccltune.space.fixing import check_names, fixed_notes, fixed_targets
from nccltune.space.fragments import Extended, extend, with_all
from nccltune.space.loading import load_fragments
from nccltune.space.model import Fragment, Parameter, Preset, Space
from nccltune.space.narrowing import Narrowed, drop_reason, guarded, narrow
from nccltune.space.resolved import Action, Note, ResolvedSpace
from nccltune.space.scalars import Value, from_text, is_on, show

__all__ = ["Action", "Data", "Facts", "Note", "ResolvedSpace", "Selection", "resolve"]


def resolve(
    space: Space,
    facts: Facts,
    selection: Selection,
    source: str,
    fragments: Mapping[str, Fragment] | None = None,
) -> ResolvedSpace:
    """What will be searched for this job, with the reason for all that will not be.

    `source` names the space in messages. `fragments` are what paths between ranks add to a space
    that takes them, by default the shipped ones. `parameters` may come out empty: then there is
    nothing to search here, and the notes say why.

    Raises:
        UsageError: a name that is not known, or a fixed value that cannot hold here.
    """
    if fragments is None:
        fragments = load_fragments() if space.fragments else {}
    # A name does not become unknown because its path is not used here.
    everything = with_all(space, fragments)
    check_names(everything, selection, source)
    targets = fixed_targets(everything, facts, selection, source)
    fixed = dict(selection.fix)
    here = extend(space, fragments, facts)
    rules = here.space.constraints
    parameters, notes = _acting_here(here, facts, selection)
    parameters, dropped = _able_to_act(parameters, fixed, facts)
    baseline = {**{p.name: p.default for p in parameters}, **fixed}
    added = tuple(
        Note(p.name, "added", here.added[p.name]) for p in parameters if p.name in here.added
    )
    resolved = ResolvedSpace(
        parameters=parameters,
        fixed=fixed,
        baseline=baseline,
        constraints=rules,
        presets=(),
        notes=(*fixed_notes(fixed), *added, *notes, *dropped, *here.notes),
        probed=facts.probed,
        given=_given(parameters, fixed, rules, facts),
        fixed_targets=targets,
        may_gain=not facts.probed and _may_gain(space, fragments, facts, selection),
    )
    return _with_presets(_with_baseline(resolved), here.space.presets)


def _may_gain(
    space: Space, fragments: Mapping[str, Fragment], facts: Facts, selection: Selection
) -> bool:
    """Whether a path that ranks may use here adds a parameter that the user wants searched."""
    for name, fragment in fragments.items():
        if fragment.when.unmet(facts) is None:
            here = Extended(with_all(space, {name: fragment}), {}, {}, ())
            found, _ = _acting_here(here, facts, selection)
            left, _ = _able_to_act(found, selection.fix, facts)
            if any(parameter.name not in space.parameters for parameter in left):
                return True
    return False


def _acting_here(
    here: Extended, facts: Facts, selection: Selection
) -> tuple[tuple[Parameter, ...], tuple[Note, ...]]:
    """Each parameter by itself: pinned, dropped, narrowed or left as it is."""
    kept: list[Parameter] = []
    notes: list[Note] = []
    for name, parameter in here.space.parameters.items():
        if name in selection.fix:
            continue
        left, said = _alone(parameter, here, facts, selection)
        notes.extend(said)
        if left is not None:
            kept.append(left)
    return tuple(kept), tuple(notes)


def _alone(parameter: Parameter, here: Extended, facts: Facts, selection: Selection) -> Narrowed:
    name = parameter.name
    if parameter.target == "env" and name in facts.site:
        return None, (Note(name, "pinned", _pinned(facts.site[name])),)
    if reason := drop_reason(parameter, facts, selection) or here.unset.get(name):
        return None, (Note(name, "dropped", reason),)
    left, said = narrow(parameter, facts, selection)
    if left is not None and (offer := guarded(parameter, selection)):
        return None, (offer,)
    return left, said


def _pinned(variable: SiteVariable) -> str:
    value = show(variable.value)
    return f"set by the site ({variable.source}): stays at {value} in baseline and candidates"


def _able_to_act(
    parameters: tuple[Parameter, ...], fixed: Mapping[str, Value], facts: Facts
) -> tuple[tuple[Parameter, ...], tuple[Note, ...]]:
    """Without those that wait for a value that another parameter never has here."""
    notes: list[Note] = []
    while True:
        searched = {parameter.name: parameter for parameter in parameters}
        reasons = {
            name: reason
            for name, parameter in searched.items()
            if (reason := next(_never_met(parameter, searched, fixed, facts), None))
        }
        if not reasons:
            return parameters, tuple(notes)
        # Dropping one may leave others waiting for it, so the rest is looked at again.
        notes.extend(Note(name, "dropped", reason) for name, reason in reasons.items())
        parameters = tuple(p for p in parameters if p.name not in reasons)


def _never_met(
    parameter: Parameter,
    searched: Mapping[str, Parameter],
    fixed: Mapping[str, Value],
    facts: Facts,
) -> Iterator[str]:
    conditions = parameter.when.param if parameter.when else None
    for name, accepted in (conditions or {}).items():
        need = f"needs {show_accepted(name, accepted)}"
        if name in searched:
            if not _can_be(searched[name], accepted):
                yield f"{need}, which is not among its values here"
            continue
        value = fixed[name] if name in fixed else _standing(name, facts)
        if not accepts(accepted, value):
            yield f"{need}, which stays {show(value)} here"
    other = ACTS_ONLY_WITH.get(parameter.name)
    if other is not None and other not in searched:
        value = fixed[other] if other in fixed else _standing(other, facts)
        if not is_on(value):
            yield f"does nothing without {other}, which stays {show(value)} here"


def _can_be(parameter: Parameter, accepted: Accepted) -> bool:
    if accepted != (NOT_NULL,):
        return any(parameter.legal(value) for value in accepted)
    return parameter.range is not None or any(v is not None for v in parameter.choices or ())


def _standing(name: str, facts: Facts) -> Value:
    """What holds for a name that we do not set: the site's, the user's, DDP's default."""
    if name in facts.site:
        return from_text(facts.site[name].value)
    if name in USERS_OWN:
        return facts.num_workers if name == "num_workers" else facts.batch_size
    return DDP_DEFAULTS.get(name)


def _given(
    parameters: tuple[Parameter, ...],
    fixed: Mapping[str, Value],
    constraints: Constraints,
    facts: Facts,
) -> dict[str, Value]:
    """The standing values that a rule about what we set looks at."""
    ours = {*(parameter.name for parameter in parameters), *fixed}
    groups = [{name, other} for name, other in ACTS_ONLY_WITH.items()]
    groups += [*constraints.groups(), *BUILT_IN.groups()]
    for parameter in parameters:
        if parameter.when and parameter.when.param:
            groups.append({parameter.name, *parameter.when.param})
    wanted = {name for group in groups if group & ours for name in group} - ours
    standing = {name: _standing(name, facts) for name in sorted(wanted)}
    return {name: value for name, value in standing.items() if value is not None}


def _with_baseline(resolved: ResolvedSpace) -> ResolvedSpace:
    """With the baseline in its canonical form, once it is known to break no rule."""
    baseline = canonical(resolved.baseline, resolved)
    if broken := violation(baseline, resolved):
        option = "--fix: " if resolved.fixed else ""
        raise UsageError(f"{option}the baseline breaks a rule: {broken}")
    return replace(resolved, baseline=baseline)


def _with_presets(resolved: ResolvedSpace, presets: tuple[Preset, ...]) -> ResolvedSpace:
    """With the presets that are legal here, add to the baseline and do not repeat each other."""
    searched = {parameter.name: parameter for parameter in resolved.parameters}
    seen = {key(resolved.baseline)}
    kept: list[Preset] = []
    for preset in presets:
        values = {name: value for name, value in preset.values.items() if name in searched}
        if not all(searched[name].legal(value) for name, value in values.items()):
            continue
        configuration = canonical(values, resolved)
        if key(configuration) in seen or violation(configuration, resolved):
            continue
        seen.add(key(configuration))
        kept.append(preset.model_copy(update={"values": values}))
    return replace(resolved, presets=tuple(kept))
