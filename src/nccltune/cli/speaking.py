"""Words on stdout and stderr. Every text that may hold what others wrote passes here."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from nccltune.nccl.findings import printable


def say(text: str) -> None:
    """A line for the person who watches. When nobody can read it the work goes on all the same."""
    try:
        print(printable(text, lines=True), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return


def tell(text: str) -> None:
    """A result, on stdout: without what a terminal would act on, and what its encoding lacks. A
    reader who has gone ends neither the work nor changes how it ends.
    """
    encoding = sys.stdout.encoding or "utf-8"
    clean = printable(text, lines=True).encode(encoding, "backslashreplace").decode(encoding)
    with readers_may_leave():
        print(clean)


@contextlib.contextmanager
def readers_may_leave() -> Iterator[None]:
    """A reader of stdout that has gone, as with `| head`, is no error, and changes no exit code."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        let_go_of_stdout()


def let_go_of_stdout() -> None:
    """Nothing more can be written; the interpreter shall not try again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
