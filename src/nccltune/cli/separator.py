"""Verbs that take somebody else's command line after `--`, and what is wrong without it."""

from __future__ import annotations

from collections.abc import Sequence

import click

from nccltune.errors import UsageError

_GIVEN = "nccltune.given"
_DASHES = "--"


class TakesCommand(click.Command):
    """click takes the `--` away, and the options that stand before it wherever they do: what was
    typed is kept for `check_dashes`.
    """

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        context.meta[_GIVEN] = tuple(args)
        try:
            return super().parse_args(context, args)
        except click.UsageError:
            check_dashes(context)  # may know a better reason
            raise


def check_dashes(context: click.Context) -> None:
    """Raises UsageError where `--` is missing before a command that has options of its own, or
    stands after its first words.
    """
    given: tuple[str, ...] = context.meta[_GIVEN]
    own = sum(isinstance(p, click.Argument) and p.nargs == 1 for p in context.command.params)
    before = given[: given.index(_DASHES)] if _DASHES in given else given
    words = _words(context.command, before)
    at = words[own] if len(words) > own else None
    if at is not None and (len(before) < len(given) or _has_options(before[at:])):
        word = before[at]
        raise UsageError(
            f"put -- before {word}, as in: {context.command_path} ... -- {word} ...; options of "
            "nccltune stand before it, all that follows is left as it is"
        )


def nothing_follows(context: click.Context) -> bool:
    """Whether `--` was given and no command after it."""
    given: tuple[str, ...] = context.meta[_GIVEN]
    return _DASHES in given and not any(given[given.index(_DASHES) + 1 :][:1])


def _has_options(words: Sequence[str]) -> bool:
    return any(word.startswith("-") for word in words)


def _words(command: click.Command, given: Sequence[str]) -> list[int]:
    """Where in `given` the words stand that are neither options nor their values. None where an
    option that is not known comes first: what follows may be its value.
    """
    takes = {
        name: not (option.is_flag or option.count)
        for option in command.params
        if isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts)
    }
    found, at = [], 0
    while at < len(given):
        name, equals, _ = given[at].partition("=")
        if not name.startswith("-") or name == "-":
            found.append(at)
        elif name not in (*takes, "-h", "--help") and not found:
            break
        elif takes.get(name) and not equals:
            at += 1
        at += 1
    return found
