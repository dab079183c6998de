"""`--when-idle`: never beside a job that somebody else runs on the GPUs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from nccltune.cli.speaking import say
from nccltune.errors import Busy
from nccltune.launch.stopping import StopFlag
from nccltune.machine.gpus import Gpu, GpuProcess, processes
from nccltune.machine.health import strangers

_LOOK = 10.0  # seconds between two looks while waiting
_LOOK_AGAIN = 3.0  # while ranks of ours are at work; a look takes milliseconds


def wait_for_idle(gpus: Sequence[Gpu], seconds: float) -> None:
    """Return when nobody uses these GPUs. Raises Busy after so many seconds."""
    if not gpus:
        say("--when-idle: there are no GPUs that somebody could use")
    end, told = time.monotonic() + seconds, False
    while found := processes(gpus):
        left = end - time.monotonic()
        if left <= 0:
            raise Busy(f"{_listed(found)}; nothing was started, try again later")
        if not told:
            say(f"{_listed(found)}: waiting until they are free, at most {seconds:.0f} s")
            told = True
        time.sleep(min(_LOOK, left))


class IdleFlag(StopFlag):
    """A stop flag that is also set by others on these GPUs."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        super().__init__()
        self._gpus = gpus
        self._next = 0.0

    def check(self) -> None:
        """Raises Interrupted, and Busy when another process uses one of the GPUs."""
        super().check()
        if not self._gpus or time.monotonic() < self._next:
            return
        self.check_now()

    def check_now(self) -> None:
        self._next = time.monotonic() + _LOOK_AGAIN
        found = strangers(self._gpus)
        if found:
            raise Busy(f"{_listed(found)}: stopped, so as not to be in its way")


def _listed(found: Sequence[GpuProcess]) -> str:
    return "; ".join(
        f"GPU {p.gpu} is in use by process {p.pid}{f' ({p.name})' if p.name else ''}"
        for p in found[:8]
    )
