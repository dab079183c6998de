"""Keeps mistakes of ours from the script that is watched."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Note = Callable[..., None]
Guarded = Callable[[Note], Note]


def unguarded(note: Note) -> Note:
    """For a trial, in which a mistake is a finding."""
    return note


class Guard:
    """Wraps what is called in the script's own course. The first exception in any of it is told,
    and from then on none of it is called again.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.over = False

    def __call__(self, note: Note) -> Note:
        @functools.wraps(note)
        def call(*args: Any, **kwargs: Any) -> None:
            if self.over:
                return
            try:
                note(*args, **kwargs)
            except Exception as error:
                self.over = True
                what = f"{type(error).__name__}: {error}"
                self._tell(f"watching has ended, the job goes on: {' '.join(what.split())}")

        return call
