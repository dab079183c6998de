"""What `nccltune show STUDY --history` prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.text import Text

from nccltune.cli.speaking import tell
from nccltune.cli.tables import console_on, table_of
from nccltune.machine.fingerprint import Difference
from nccltune.output import verdicts, words
from nccltune.output.fingerprints import difference_lines, shown
from nccltune.study.history import Entry


def print_history(name: str, entries: Sequence[Entry]) -> None:
    """A table of searches and checks, then what changed between them."""
    table = table_of(
        ("date", "left"),
        ("what", "left"),
        ("defaults", "right"),
        ("best", "right"),
        ("gain", "right"),
        ("result", "left"),
    )
    for entry in entries:
        mark = " (holds)" if entry.holds else ""
        table.add_row(
            entry.date[:16].replace("T", " "),
            f"{entry.what} of generation {entry.generation}{mark}"
            if entry.what == "check"
            else f"generation {entry.generation}{mark}",
            words.samples(entry.defaults),
            words.samples(entry.best),
            _gain(entry),
            Text(entry.sentence),
        )
    tell(f"{name}: samples/s of the defaults and of the best settings, each time")
    console_on(sys.stdout).print(table)
    for entry in entries:
        for line in _changes(entry):
            tell(line)


def _gain(entry: Entry) -> str:
    return "-" if entry.ratio is None else f"{100 * (entry.ratio - 1):+.1f}%"


def _changes(entry: Entry) -> list[str]:
    at = entry.date[:16].replace("T", " ")
    lines = [f"{at}: {line}" for line in difference_lines(entry.changed, "before", "then")]
    if entry.slower is None:
        return lines
    what = f", with {_named(entry.changed)}" if entry.changed else ", with nothing known changed"
    return [
        *lines,
        f"{at}: the defaults themselves are {verdicts.percent(entry.slower)} slower than the time "
        f"before{what}",
    ]


def _named(changed: Sequence[Difference]) -> str:
    return ", ".join(
        f"{d.name.removeprefix('site.')} {shown(d.name, d.was)} -> {shown(d.name, d.now)}"
        for d in changed
    )
