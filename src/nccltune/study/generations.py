"""The generations of a study: the first search, and those that `retune` made after a change. Each
is a study by itself; the files in the study's own folder are those of one of them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nccltune.errors import StudyError, UsageError
from nccltune.machine.fingerprint import malformed
from nccltune.study.folder import StudyPaths, read_definition, write_text

if TYPE_CHECKING:
    from nccltune.study.verifying import Status

FIRST = 1


@dataclass(frozen=True)
class Event:
    """What `retune` found or did; one line of history.jsonl.

    `generation` is the one that was checked, and `made` the one that was then searched, None where
    none was needed. `adopted`: its files are the study's from then on. `defaults` and `best` are
    samples/s of the check, medians of its launches; `ratio`, `low` and `high` its verdict.
    """

    date: str
    generation: int
    status: Status
    sentence: str
    fingerprint: Mapping[str, Any]
    differences: Sequence[Mapping[str, Any]] = field(default_factory=list)
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    defaults: float | None = None
    best: float | None = None
    made: int | None = None
    adopted: bool = False
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "differences": [dict(each) for each in self.differences]}


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def read_history(paths: StudyPaths) -> list[Event]:
    """Oldest first. What a newer version adds to a line is passed over. Raises StudyError for what
    nobody writes.
    """
    try:
        if paths.history.exists() and not paths.history.is_file():
            raise StudyError(f"{paths.history}: is no file")
        text = paths.history.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{paths.history}: cannot be read: {error}") from error
    events = []
    whole = text[: text.rfind("\n") + 1]  # what follows was cut while it was written
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            events.append(_event(json.loads(line)))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StudyError(f"{paths.history}: line {number}: damaged ({error})") from error
    return events


_NUMBERS = frozenset({"ratio", "low", "high", "defaults", "best"})
_TEXTS = frozenset({"date", "status", "sentence", "reason"})


def _event(found: Any) -> Event:
    """Raises ValueError, TypeError or KeyError for what is none."""
    if not isinstance(found, dict):
        raise ValueError("no mapping")
    event = Event(**{f.name: found[f.name] for f in fields(Event) if f.name in found})
    for name in _TEXTS:
        if not isinstance(getattr(event, name), str):
            raise ValueError(f"{name} is no text")
    for name in _NUMBERS:
        value = getattr(event, name)
        number = isinstance(value, (int, float)) and math.isfinite(value)
        if value is not None and not number:
            raise ValueError(f"{name} is no number")
    for name, value in (("generation", event.generation), ("made", event.made or FIRST)):
        if not isinstance(value, int) or value < FIRST:
            raise ValueError(f"{name} is no generation")
    if not isinstance(event.fingerprint, dict) or (part := malformed(event.fingerprint)):
        raise ValueError(f"fingerprint{'' if not event.fingerprint else '.' + str(part)}")
    if not isinstance(event.differences, list):
        raise ValueError("differences is no list")
    return event


def append(paths: StudyPaths, event: Event) -> None:
    """On disk when it returns. Only under the lock. Raises StudyError."""
    try:
        with paths.history.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event.to_dict()) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StudyError(f"cannot write {paths.history}: {error.strerror}") from error


def current(events: Sequence[Event]) -> int:
    """The generation whose files are the study's."""
    adopted = [event.made for event in events if event.adopted and event.made is not None]
    return adopted[-1] if adopted else FIRST


def examined(paths: StudyPaths, events: Sequence[Event]) -> Mapping[str, Any]:
    """The fingerprint of the last search that came to its end: what has changed since then, nobody
    has looked at.
    """
    finished = [event for event in events if event.made is not None]
    if finished:
        return finished[-1].fingerprint
    found: Mapping[str, Any] = read_definition(paths).get("fingerprint") or {}
    return found


def next_number(paths: StudyPaths, events: Sequence[Event]) -> int:
    """Of the generation to search: one that was begun and not ended, else a new one."""
    ended = max([FIRST, *(event.made for event in events if event.made is not None)])
    begun = paths.generations()[-1]
    return begun if begun > ended else ended + 1


def adopt(paths: StudyPaths, number: int) -> None:
    """The generation's files become the study's, each in one rename; best.env, which jobs source,
    is the last. Doing it again changes nothing.
    """
    made = paths.generation(number)
    pairs = (
        (made.best_yaml, paths.best_yaml),
        (made.best_batch_yaml, paths.best_batch_yaml),
        (made.best_env, paths.best_env),
    )
    for source, target in pairs:
        try:
            text = source.read_text(encoding="utf-8")
        except FileNotFoundError:
            if source == made.best_batch_yaml:
                target.unlink(missing_ok=True)
                continue
            raise StudyError(f"{source}: is gone, so it cannot take effect") from None
        except (OSError, UnicodeDecodeError) as error:
            raise StudyError(f"{source}: cannot be read: {error}") from error
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            write_text(target, text)


def finish_adoption(paths: StudyPaths, events: Sequence[Event]) -> None:
    """After a kill between the record and the files."""
    number = current(events)
    gone = not paths.generation(number).best_yaml.exists() and paths.best_env.exists()
    if number != FIRST and not gone:
        adopt(paths, number)


def refuse_retuned(paths: StudyPaths) -> None:
    """A search must not put its files in place of a later generation's. Raises UsageError."""
    number = current(read_history(paths))
    if number != FIRST:
        raise UsageError(
            f"{paths.folder}: was retuned, and its files are those of generation {number}; "
            f"`nccltune retune {paths.name}` goes on from there, --new starts anew (the old folder "
            "is renamed and kept)"
        )
