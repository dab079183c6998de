"""Who of the tuners on a study is alive, told by counters that go on. No clocks are compared."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from nccltune.errors import StudyError
from nccltune.study.shared_storage import Shared

BEAT_SECONDS = 10.0
LOST_SECONDS = 60.0
"""So long, by the clock of whoever watches, a counter may stand still."""
_NAME = "tuner "


class Watch:
    """Remembers when a tuner's counter was last seen to change."""

    def __init__(self, lost_after: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lost_after, self._clock = lost_after, clock
        self._seen: dict[str, tuple[Any, float]] = {}

    def lost(self, tuner: str, state: Mapping[str, Any] | None) -> bool:
        """Whether that tuner has ended, or its counter has stood still for too long. `state` is
        what it last told of itself; None where it has told nothing.
        """
        if state is not None and state.get("ended"):
            return True
        beat, now = None if state is None else state.get("beat"), self._clock()
        before = self._seen.get(tuner)
        if before is None or before[0] != beat:
            self._seen[tuner] = (beat, now)
            return False
        return now - before[1] > self._lost_after


class Heartbeat:
    """This tuner's counter: one attribute of the study, which a thread of its own counts up."""

    def __init__(
        self, shared: Shared, study: int, tuner: str, folder: str, watch: Watch, every: float
    ) -> None:
        """`folder` is the name of its study folder, for messages of other tuners."""
        self._shared, self._study, self._tuner, self._folder = shared, study, tuner, folder
        self._watch, self._every = watch, every
        self._beat = int((states(shared, study).get(tuner) or {}).get("beat", 0))
        self._searching = True
        self._turn = threading.Lock()
        self._over = threading.Event()
        self._tell(ended=False)
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._every):
            # A storage that is away for a moment is no reason to stop; the search will say it.
            with contextlib.suppress(StudyError):
                self._tell(ended=False)
                for tuner, state in states(self._shared, self._study, patience=0.0).items():
                    self._watch.lost(tuner, state)

    def _tell(self, *, ended: bool, patience: float | None = 0.0) -> None:
        tell = self._shared.storage.set_study_user_attr
        with self._turn:
            self._beat += 1
            state = {
                "beat": self._beat,
                "ended": ended,
                "searching": self._searching and not ended,
                "folder": self._folder,
            }
            self._shared.ask(lambda: tell(self._study, _NAME + self._tuner, state), patience)

    def at_work(self, searching: bool) -> None:
        """Say whether this tuner still searches; at once, where that changes. Raises StudyError."""
        if searching != self._searching:
            self._searching = searching
            self._tell(ended=False, patience=None)

    def stop(self) -> None:
        """The others need not wait for this tuner any more."""
        self._over.set()
        self._thread.join()
        self._tell(ended=True)


def states(
    shared: Shared, study: int, *, patience: float | None = None
) -> dict[str, Mapping[str, Any]]:
    """What each tuner last told of itself."""
    found = shared.ask(lambda: shared.storage.get_study_user_attrs(study), patience)
    return {name.removeprefix(_NAME): v for name, v in found.items() if name.startswith(_NAME)}
