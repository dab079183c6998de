"""Values that a script was measured with as its own arguments, held against a job's command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nccltune.launch.commands import JobCommand, read_command
from nccltune.launch.script import ScriptCommand
from nccltune.output.best import Best


def placed_notes(best: Best, job: JobCommand) -> Iterator[str]:
    """A line for each value that stood in the arguments of the script that was measured and that
    this command gives otherwise, or not to be seen. None for a command that starts another script.
    """
    placed = best.workload.get("placed")
    if not isinstance(placed, Mapping) or not placed:
        return
    values = {str(name): str(value) for name, value in placed.items()}
    measured, given = _measured(best.workload.get("script")), _target(job)
    if measured and given and _name(measured) != _name(given):
        return
    for name, value in values.items():
        here = _given_for(name, value, measured, given) if measured and given else None
        if here != value:
            then = f"here it is {here}" if here is not None else "give it there"
            yield f"measured with {value} for {{{name}}} in the script's arguments; {then}"


def _measured(words: Any) -> tuple[str, ...]:
    """The script of a result and its arguments, without what started it; empty where the file does
    not say.
    """
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        return ()
    if words[0] in ("", "-m"):
        return tuple(words)
    found = read_command(words, {})
    return _target(found) if found.way == "torchrun" else tuple(words)


def _target(job: JobCommand) -> tuple[str, ...]:
    """What Python is given: SCRIPT ARGS, or -m MODULE ARGS; empty where that is not known."""
    if job.script is None or job.script >= len(job.argv):
        return ()
    options = job.argv[job.options : job.script] if job.way == "torchrun" else ()
    module = any(word in ("-m", "--module") for word in options)
    return (*(("-m",) if module else ()), *job.argv[job.script :])


def _name(target: Sequence[str]) -> str:
    return ScriptCommand(tuple(target)).name if target != ("-m",) else ""


def _given_for(name: str, value: str, measured: Sequence[str], given: Sequence[str]) -> str | None:
    """What the command gives where the measured one had the name in braces."""
    at = next((n for n, word in enumerate(measured) if f"{{{name}}}" in word), None)
    if at is None:
        return None
    place, before = f"{{{name}}}", measured[at - 1] if at else ""
    head, equals, rest = measured[at].partition("=")
    if equals and rest == place:
        return _option(head, given)
    if before.startswith("-") and measured[at] == place:
        return _option(before, given)
    return value if ScriptCommand((measured[at],)).filled({name: value})[0] in given else None


def _option(option: str, given: Sequence[str]) -> str | None:
    """The value of an option, `--name VALUE` or `--name=VALUE`; the last, as parsers take it."""
    found = None
    for at, word in enumerate(given):
        head, equals, rest = word.partition("=")
        if head == option and equals:
            found = rest
        elif word == option and at + 1 < len(given):
            found = given[at + 1]
    return found
