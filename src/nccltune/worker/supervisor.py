"""Stands between the tuner and a launch, so that nothing of the launch can outlive either.

Run by file path, standard library only:
`supervisor.py [--input FILE] [--remove FOLDER]... -- COMMAND ...`.
It becomes the reaper of every descendant, however many sessions they open (torchrun gives each
rank one of its own, so killing torchrun's process group leaves the ranks alive). It ends all of
them when the command ends, when the tuner closes its end of stdin or dies, or on SIGTERM; in the
last two cases it removes FOLDER, which nobody is there to do after that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection

_PR_SET_CHILD_SUBREAPER = 36
TRACKER, TRACKER_SECONDS = b"multiprocessing.resource_tracker", 2.0


def descendants(root: int) -> list[int]:
    """Every living process below `root`, by the parent links in /proc. What is dead counts as a
    link: a process whose threads are still ending is a zombie that has kept its children.
    """
    children: dict[int, list[int]] = {}
    dead: set[int] = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        children.setdefault(int(parent), []).append(int(entry))
        if state == "Z":
            dead.add(int(entry))
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return [pid for pid in found if pid not in dead]


def _children() -> list[int]:
    """Our own children, in one short read: a chain of forks outruns a look through all of /proc."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return []


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(keep: Collection[int] = (), seconds: float | None = None) -> list[int]:
    """Kill and reap every descendant but those in `keep`. multiprocessing's resource trackers come
    last and get a moment to end by themselves: they remove named semaphores that the others left.

    Returns what could not be ended within `seconds`.
    """
    below = [pid for pid in descendants(os.getpid()) if pid not in keep]
    trackers = [pid for pid in below if TRACKER in command_of(pid)]
    _kill_all([*keep, *trackers], TRACKER_SECONDS if seconds is None else seconds)
    deadline = time.monotonic() + TRACKER_SECONDS
    while set(trackers) & set(descendants(os.getpid())) and time.monotonic() < deadline:
        time.sleep(0.005)
    return _kill_all(keep, seconds)


def _kill_all(keep: Collection[int], seconds: float | None) -> list[int]:
    """Until there is no child left, so no descendant either: orphans become children of the reaper.
    A look at /proc alone can miss a process that forks away while it is read.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        met = [
            pid
            for pid in [*_children(), *descendants(os.getpid()), *_children()]
            if pid not in keep
        ]
        for pid in met:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in met:  # not all at once: those that are kept belong to somebody who waits
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if not met:
            return []
        if deadline is not None and time.monotonic() > deadline:
            return sorted(set(met))
        time.sleep(0.001)


def command_of(pid: int) -> bytes:
    """Its command line, parts ended by NUL; empty where it cannot be read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def main() -> int:
    split = sys.argv.index("--")
    given, command = sys.argv[1:split], sys.argv[split + 1 :]
    options = list(zip(given[::2], given[1::2]))  # noqa: B905
    adopt_orphans()
    asked_to_stop: list[int] = []
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _frame: asked_to_stop.append(number))
    try:
        with open(dict(options).get("--input", os.devnull), "rb") as given_input:
            child = subprocess.Popen(command, stdin=given_input, preexec_fn=_default_signals)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    while (code := child.poll()) is None and not asked_to_stop:
        readable, _, _ = select.select([0], [], [], 0.05)
        if readable and not os.read(0, 4096):
            break  # the tuner is gone, or wants this launch to end
    end_descendants()
    if code is None:
        for name, folder in options:
            if name == "--remove":
                shutil.rmtree(folder, ignore_errors=True)
        return 137
    return 128 - code if code < 0 else code


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
