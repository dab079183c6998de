"""What runs in place of the job's own Python: `python main.py [-m] SCRIPT ARGUMENTS`.

In a trial the attachment measures and the tuner decides. Under `nccltune run` it passes what a
result says, watches the job where that was asked for, and nothing else shows that it is there.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nccltune.worker.attach.applied import Applied


def main() -> None:
    folder = _enter()
    # Imported once our own folder is off the path: its modules have names that scripts use too.
    from nccltune.worker.attach import APPLY, TRIAL
    from nccltune.worker.attach.script import run_as_main

    arguments = sys.argv[1:]
    if sys.argv[0] in sys.orig_argv:  # from which some scripts start themselves anew
        sys.orig_argv.remove(sys.argv[0])
    # What the script imports is found as without us; ours is loaded already.
    sys.path.remove(folder)
    sys.path.append(folder)
    if os.environ.get(TRIAL):
        from nccltune.worker.attach.trial import run_trial
        from nccltune.worker.rank import leave

        run_trial(arguments)
        leave(0)  # the rest of a tear-down takes seconds
    if APPLY in os.environ:
        from nccltune.worker.attach.applied import take_settings

        applied = take_settings(os.environ, arguments, _tell)
        atexit.register(_tell_left, applied, os.getpid())
    run_as_main(arguments)


def _tell_left(applied: Applied, pid: int) -> None:
    """By one rank, as the others would say the same; not by what forks from it."""
    from nccltune.worker.attach.process import is_first

    if os.getpid() == pid and is_first(os.environ):
        for line in applied.left():
            _tell(f"note: {line}")


def _tell(line: str) -> None:
    """When nobody can read it the job goes on all the same."""
    with contextlib.suppress(Exception):  # it may have put anything in the place of stderr
        print(f"nccltune: {line}", file=sys.stderr, flush=True)


def _enter() -> str:
    """Put the folder that holds our package on sys.path, in place of the one that this file is in.
    Returns it.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    if sys.path and os.path.realpath(sys.path[0]) == os.path.realpath(here):
        del sys.path[0]  # absent where Python was told not to add it
    folder = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    sys.path.insert(0, folder)
    return folder


if __name__ == "__main__":
    main()
