"""What is left of one parameter here: whether it can act at all, and which of its values."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nccltune.nccl import site, values
from nccltune.space.facts import Facts, Selection
from nccltune.space.fixing import multicast_refusal
from nccltune.space.model import Parameter, Range
from nccltune.space.resolved import Action, Note
from nccltune.space.scalars import Value, contains, is_whole, show

Narrowed = tuple[Parameter | None, tuple[Note, ...]]
"""What is left of a parameter (None: it is dropped), and what is to be said of it."""


def drop_reason(parameter: Parameter, facts: Facts, selection: Selection) -> str | None:
    """Why nothing of this parameter is tried here, or None."""
    reasons: tuple[Callable[[], str | None], ...] = (
        lambda: _not_selected(parameter, selection),
        lambda: _cannot_communicate(parameter, facts),
        lambda: None if parameter.when is None else parameter.when.unmet(facts),
        lambda: _not_taken_by_job(parameter, facts),
        lambda: _too_risky(parameter, selection),
    )
    return next((reason for find in reasons if (reason := find())), None)


def narrow(parameter: Parameter, facts: Facts, selection: Selection) -> Narrowed:
    """The parameter with the values that can be tried here."""
    if parameter.choices_from is not None:
        left, notes = _of_interfaces(parameter, facts)
    elif parameter.target == "env":
        left, notes = _narrow_variable(parameter, facts, selection)
    elif parameter.name == "num_workers":
        left, notes = _narrow_workers(parameter, facts)
    elif parameter.name == "batch_size":
        left, notes = _narrow_batch(parameter, facts)
    else:
        left, notes = parameter, ()
    if left is not None and (only := _single(left)):
        reason = f"only one value is left here ({show(only[0])})"
        return None, (*notes, Note(left.name, "dropped", reason))
    return left, notes


def guarded(parameter: Parameter, selection: Selection) -> Note | None:
    """The offer to search it, where the user has not taken the risk; else None."""
    if parameter.effective_risk() != "guarded" or selection.allow_guarded:
        return None
    why = f" ({parameter.caution})" if parameter.caution else ""
    return Note(parameter.name, "guarded", f"could be tried with --allow-guarded{why}")


def _not_selected(parameter: Parameter, selection: Selection) -> str | None:
    labels = {parameter.name, parameter.target}
    if selection.only and labels.isdisjoint(selection.only):
        return "not named in --only"
    return None if labels.isdisjoint(selection.exclude) else "named in --exclude"


def _cannot_communicate(parameter: Parameter, facts: Facts) -> str | None:
    # Other variables (OMP_NUM_THREADS, say) act with any backend and on any number of ranks.
    if parameter.target != "env" or not parameter.name.startswith(site.SITE_PREFIXES):
        return None
    if facts.backend == "gloo" and not parameter.name.startswith("GLOO_"):
        return "NCCL variables cannot act with the gloo backend"
    return "a single rank does not communicate" if facts.world_size == 1 else None


def _not_taken_by_job(parameter: Parameter, facts: Facts) -> str | None:
    if reason := facts.no_place.get(parameter.name):
        return reason
    names = facts.ddp_arguments
    if parameter.target == "ddp" and names is not None and parameter.name not in names:
        return "DDP of the job's torch does not take it"
    if parameter.target == "loader" and facts.data == "synthetic":
        return "synthetic data uses no loader"
    return None


def _too_risky(parameter: Parameter, selection: Selection) -> str | None:
    # Guarded ones are no matter of dropping: whoever may want them is told (see `guarded`).
    if parameter.effective_risk() == "unsafe" and not selection.allow_unsafe:
        return "risk unsafe: needs --allow-unsafe"
    return None


def _of_interfaces(parameter: Parameter, facts: Facts) -> Narrowed:
    """With the machine's interfaces as choices, where there are several."""
    here = facts.interfaces
    if len(here) < 2:
        only = f"{here[0]} is the only one" if here else "there is none"
        reason = f"needs two interfaces or more that could carry sockets, {only} here"
        return None, _notes(parameter, "dropped", [reason])
    made = {"choices": (None, *(f"={name}" for name in here)), "choices_from": None}
    reason = f"each interface up here as a choice: {', '.join(here)}"
    return parameter.model_copy(update=made), _notes(parameter, "added", [reason])


def _narrow_variable(parameter: Parameter, facts: Facts, selection: Selection) -> Narrowed:
    def refusal(value: Value) -> str | None:
        unsafe = selection.allow_unsafe
        reason = values.refusal(parameter.name, value, facts.nccl, allow_unsafe=unsafe)
        return reason or multicast_refusal(parameter.name, value, facts)

    if parameter.range is not None:
        bounds = (parameter.range.low, parameter.range.high)
        refused = [reason for bound in bounds if (reason := refusal(bound))]
        return (None, _notes(parameter, "dropped", refused[:1])) if refused else (parameter, ())
    choices = parameter.choices or ()
    reasons = [reason for value in choices if (reason := refusal(value))]
    left = tuple(value for value in choices if not refusal(value))
    if not reasons:
        return parameter, ()
    if all(value is None for value in left) or not contains(left, parameter.default):
        return None, _notes(parameter, "dropped", ["; ".join(reasons)])
    narrowed = parameter.model_copy(update={"choices": left})
    return narrowed, _notes(parameter, "narrowed", reasons)


def _narrow_workers(parameter: Parameter, facts: Facts) -> Narrowed:
    own = facts.num_workers
    limit = max(facts.cpus_per_rank, own)
    reason = f"at most {limit}: a rank has {facts.cpus_per_rank} CPU cores"
    if own > facts.cpus_per_rank:
        reason = f"at most {limit}, the user's own, above the {facts.cpus_per_rank} cores a rank"
    listed = _whole_numbers(parameter)
    span = parameter.range
    if span is not None and span.step is None:
        # Logarithms have no 0, which the user's own may be.
        log = span.log and own >= 1
        high = max(min(int(span.high), limit), own)
        low = min(int(span.low), own)
        update = {"range": Range(low=low, high=high, log=log), "default": own}
        cut = span.high > high
    else:
        kept = sorted({value for value in listed if value <= limit} | {own})
        update = {"choices": tuple(kept), "range": None, "default": own}
        cut = any(value > limit for value in listed)
    notes = _notes(parameter, "narrowed", [reason] if cut else [])
    return parameter.model_copy(update=update), (*notes, *_added(parameter, own))


def _narrow_batch(parameter: Parameter, facts: Facts) -> Narrowed:
    own = facts.batch_size
    span = parameter.range
    reason = f"only batches above the user's {own} are tried"
    if span is not None and span.step is None:
        if span.high <= own:
            return None, _notes(parameter, "dropped", [reason])
        update = {"range": Range(low=own, high=span.high, log=span.log), "default": own}
        cut = span.low < own
    else:
        listed = _whole_numbers(parameter)
        kept = [own, *sorted(value for value in listed if value > own)]
        update = {"choices": tuple(kept), "range": None, "default": own}
        cut = any(value < own for value in listed)
    notes = _notes(parameter, "narrowed", [reason] if cut else [])
    return parameter.model_copy(update=update), (*notes, *_added(parameter, own))


def _whole_numbers(parameter: Parameter) -> list[int]:
    """The choices that are numbers, or the steps of the range."""
    span = parameter.range
    if span is not None:
        return list(range(int(span.low), int(span.high) + 1, int(span.step or 1)))
    choices = parameter.choices or ()
    return [value for value in choices if isinstance(value, int) and is_whole(value)]


def _added(parameter: Parameter, own: int) -> tuple[Note, ...]:
    legal = parameter.legal(own) or contains(parameter.choices or (), None)
    return () if legal else _notes(parameter, "added", [f"{own}, the user's own value"])


def _single(parameter: Parameter) -> tuple[Value, ...]:
    """The only value that is left, as a tuple of one; else an empty tuple."""
    span = parameter.range
    if span is not None:
        return (span.low,) if span.low == span.high else ()
    choices = parameter.choices or ()
    return choices if len(choices) == 1 else ()


def _notes(parameter: Parameter, action: Action, reasons: Iterable[str]) -> tuple[Note, ...]:
    return tuple(Note(parameter.name, action, reason) for reason in reasons)
