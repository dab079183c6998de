"""What the command that a study has recorded asked for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from nccltune.cli.search import options_of, search

if TYPE_CHECKING:
    from nccltune.study.options import SearchOptions


def options_again(command: str) -> SearchOptions:
    """What a command that a study has recorded asked for. Raises UsageError."""
    from nccltune.errors import UsageError

    try:
        words = shlex.split(command)
        if words[1:2] != ["search"]:
            raise UsageError(f"not a search: {command[:200]!r}")
        with search.make_context(
            "search", words[2:], help_option_names=["-h", "--help"]
        ) as context:
            # What comes of it is this machine's own, whoever searched with it.
            left_out = ("dry_run", "as_json", "storage", "split", "accept_machine")
            given = {n: v for n, v in context.params.items() if n not in left_out}
            return options_of(context, given, tuple(words))
    except (ValueError, click.ClickException, click.exceptions.Exit) as error:
        told = "it searches nothing"
        if not isinstance(error, click.exceptions.Exit):
            told = error.format_message() if isinstance(error, click.ClickException) else str(error)
        raise UsageError(
            f"the recorded command cannot be read again ({told}): {command[:200]!r}"
        ) from None


def command_with(
    command: Sequence[str], changed: Mapping[str, Any], only: Sequence[str]
) -> tuple[str, ...]:
    """A recorded command with other values of options that may stand once, and another --only."""
    words = list(command)
    end = words.index("--") if "--" in words else len(words)
    own, rest = words[:end], words[end:]
    kept = []
    following = iter(own)
    for word in following:
        if word == "--only":
            next(following, None)
        elif not word.startswith("--only="):
            kept.append(word)
    for name, value in changed.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            kept.append(option)
        elif value is not None and value is not False:
            kept += [option, str(value)]
    kept += [word for name in only for word in ("--only", name)]
    return (*kept, *rest)
