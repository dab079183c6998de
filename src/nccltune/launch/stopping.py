"""Ctrl-C asked once: note it, let the code come to a safe point, then stop."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from nccltune.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopFlag:
    """Set by SIGINT, SIGTERM or SIGHUP. Whoever waits calls `check()` between waits, so that no
    record is ever cut in the middle of its writing. A second SIGINT stops at once.
    """

    def __init__(self) -> None:
        self.requested = False

    def check(self) -> None:
        """Raises Interrupted when a stop was asked for."""
        if self.requested:
            raise Interrupted("interrupted")

    def check_now(self) -> None:
        """The same, before ranks are started for the first time."""
        self.check()

    @contextlib.contextmanager
    def installed(self) -> Iterator[StopFlag]:
        # What is ignored stays so: under nohup a hang-up must not stop the search.
        wanted = [n for n in _SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._note) for number in wanted}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.requested = True
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
