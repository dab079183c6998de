"""Tracebacks as they are without us: frames that only lead to the user's code are left out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import TracebackType

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_IMPORTING = "<frozen importlib"


def hide_own_frames() -> None:
    """An exception that is on its way out of this process is shown without our frames, by whatever
    sys.excepthook the script has chosen.
    """
    shown = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = shown
        cut_own_frames(error)
        sys.last_traceback = error.__traceback__
        shown(kind, error, error.__traceback__)

    sys.excepthook = show


def cut_own_frames(error: BaseException) -> None:
    """Take our frames out of the tracebacks that the exception is shown with."""
    for each in _chain(error):
        # A script that cannot be compiled has no frame: the error arises in ours.
        found = isinstance(each, SyntaxError)
        each.__traceback__ = without_own(each.__traceback__, innermost=found)


def without_own(trace: TracebackType | None, *, innermost: bool = False) -> TracebackType | None:
    """The traceback without our frames. Those in which the error itself arose stay, or go with
    `innermost`.
    """
    frames = list(_links(trace))
    end = len(frames)
    while end > 0 and not innermost and _is_ours(frames[end - 1]):
        end -= 1
    kept: list[TracebackType] = []
    for frame in frames[:end]:
        if not _is_ours(frame):
            kept.append(frame)
            continue
        # The import system hides its own frames where it leads to a module at once.
        while kept and kept[-1].tb_frame.f_code.co_filename.startswith(_IMPORTING):
            kept.pop()
    kept += frames[end:]
    for at, frame in enumerate(kept):
        frame.tb_next = kept[at + 1] if at + 1 < len(kept) else None
    return kept[0] if kept else None


def _links(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_ours(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_OURS)


def _chain(error: BaseException) -> list[BaseException]:
    """The exception and all that it is shown with."""
    found: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and not any(each is known for known in found):
            found.append(each)
            left += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
    return found
