"""A study over time: its generations and checks, what changed between them, how fast each was."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nccltune.errors import NccltuneError
from nccltune.machine.fingerprint import Difference, differences
from nccltune.study.fingerprinting import DIGEST, without_digest
from nccltune.study.folder import StudyPaths
from nccltune.study.generations import FIRST, Event, current, read_history
from nccltune.study.outcomes import launches_behind, verdict_line
from nccltune.study.summary import Summary

_DROP = 0.05  # of the defaults' samples/s, where a study does not know its noise


@dataclass(frozen=True)
class Entry:
    """One search or check. Speeds are samples/s, medians of its launches; `changed` is what differs
    from the entry before; `slower` the fraction that the defaults lost since then, None where that
    is not more than noise.
    """

    date: str
    what: str
    generation: int
    defaults: float | None
    best: float | None
    ratio: float | None
    low: float | None
    high: float | None
    sentence: str
    fingerprint: Mapping[str, Any]
    changed: tuple[Difference, ...] = ()
    slower: float | None = None
    holds: bool = False

    def to_dict(self) -> dict[str, Any]:
        plain = {
            name: getattr(self, name)
            for name in (
                *("date", "what", "generation", "defaults", "best", "ratio", "low", "high"),
                *("sentence", "slower", "holds"),
            )
        }
        digest = self.fingerprint.get(DIGEST)
        return {**plain, "fingerprint": digest, "changed": [d.to_dict() for d in self.changed]}


def history_of(paths: StudyPaths) -> list[Entry]:
    """Oldest first. Raises NccltuneError where records are damaged."""
    events = read_history(paths)
    holds = current(events)
    entries = [_searched(paths, FIRST, holds, None)]
    for event in events:
        entries.append(_checked(event))
        if event.made is not None:
            entries.append(_searched(paths, event.made, holds, event))
    return list(_compared([entry for entry in entries if entry is not None]))


def _searched(paths: StudyPaths, number: int, holds: int, event: Event | None) -> Entry | None:
    """A generation; None where its folder is gone."""
    made = paths.generation(number)
    try:
        summary = Summary.read(made)
        summary.check()
    except NccltuneError:
        if number == FIRST:
            raise
        return None if event is None else _gone(number, holds, event)
    base, best = _speeds(summary)
    found = summary.own.verdict if summary.own is not None else None
    kept = "" if event is None else f"; {event.reason}"
    return Entry(
        date=str(summary.definition["created"]) if event is None else event.date,
        what="search",
        generation=number,
        defaults=base,
        best=best,
        ratio=None if found is None else found.ratio,
        low=None if found is None else found.low,
        high=None if found is None else found.high,
        sentence=f"{verdict_line(summary)}{kept}",
        fingerprint=summary.definition.get("fingerprint") or {},
        holds=number == holds,
    )


def _gone(number: int, holds: int, event: Event) -> Entry:
    text = f"its folder cannot be read; {event.reason}"
    nothing = (None, None, None, None, None)
    return Entry(
        event.date, "search", number, *nothing, text, event.fingerprint, holds=number == holds
    )


def _checked(event: Event) -> Entry:
    return Entry(
        date=event.date,
        what="check",
        generation=event.generation,
        defaults=event.defaults,
        best=event.best,
        ratio=event.ratio,
        low=event.low,
        high=event.high,
        sentence=event.sentence,
        fingerprint=event.fingerprint,
    )


def _speeds(summary: Summary) -> tuple[float | None, float | None]:
    """Of the defaults, and of what was confirmed to be faster, in the launches that confirm it."""
    own = summary.own
    if own is None or not own.faster:
        return (statistics.median(summary.noise) if summary.noise else None), None
    blocks = launches_behind(summary, own)
    if not blocks:
        return None, None
    defaults, best = zip(*blocks, strict=True)
    return statistics.median(defaults), statistics.median(best)


def _compared(entries: Sequence[Entry]) -> Iterator[Entry]:
    """With what differs from the one before."""
    before: Entry | None = None
    for entry in entries:
        if before is None:
            yield entry
        else:
            changed = differences(
                without_digest(before.fingerprint), without_digest(entry.fingerprint)
            )
            yield replace(entry, changed=tuple(changed), slower=_lost(before, entry))
        if before is not None and entry.defaults is None:  # not timed: the speed before stands
            entry = replace(entry, defaults=before.defaults)
        before = entry


def _lost(before: Entry, entry: Entry) -> float | None:
    if not before.defaults or entry.defaults is None:
        return None
    lost = 1 - entry.defaults / before.defaults
    return lost if lost > _DROP else None
