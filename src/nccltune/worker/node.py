"""One node's part of a job step, so that nothing of a launch outlives it there or its tuner.

`python -m nccltune.worker.node -- COMMAND ...`, standard library only. It tells the tuner that it
is there and waits for `start`, which comes when all nodes are; `{port}`, `{is_host}` and
`{address}` in the command get their values from it. It ends the command with every descendant when
the tuner closes its side or is gone, and on SIGTERM, and says how the command ended. Asked to stop,
it passes that on to the command alone, as SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from nccltune.worker.channel import Channel
from nccltune.worker.owners import mark_as_ours
from nccltune.worker.status import NODE
from nccltune.worker.supervisor import adopt_orphans, descendants, end_descendants

ADDRESS, TOKEN = "NCCLTUNE_STEP_ADDRESS", "NCCLTUNE_STEP_TOKEN"
CANCELLED = -int(signal.SIGTERM)

FOLDER = "NCCLTUNE_HOST_FOLDER"
# A signal's handler puts into it whatever it interrupts: queue.Queue would wait for its own lock.
News: TypeAlias = "queue.SimpleQueue[dict[str, Any]]"

_LONGEST = 50
_POLL_SECONDS = 0.02
_END_SECONDS = 10.0


def main() -> int:
    command = sys.argv[sys.argv.index("--") + 1 :]
    adopt_orphans()
    number = os.environ.get("SLURM_NODEID", "0")
    os.environ[NODE] = number
    channel = greet(number)
    news = _listening(channel)
    for each in (signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _number, _frame: news.put({"type": "cancelled"}))
    os.environ[FOLDER] = folder = _own_folder()  # not before there is anybody who has it removed
    process, code = _started(command, news), None
    watched: set[int] = set()
    while process is not None and (code := process.poll()) is None:
        message = _next(news)
        kind = None if message is None else message["type"]
        if kind in ("gone", "cancelled"):
            code = CANCELLED if kind == "cancelled" else None
            break
        if message is not None and kind == "signal":
            _signal(message["pids"], int(message["number"]))
        elif kind == "stop":
            process.terminate()
        elif message is not None and kind == "watch":
            watched |= set(message["pids"])
        # Not by a look through all of /proc: ranks are being timed meanwhile.
        if gone := {pid for pid in watched if not _lives(pid)}:
            watched -= gone
            with contextlib.suppress(OSError):
                channel.send("gone", pids=sorted(gone))
    left = end_descendants(seconds=_END_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # the tuner may be gone
        channel.send("ended", code=code, left=left)
    return 0


def _own_folder() -> str:
    """A temporary folder that says whose it is, and is gone at the end. Sockets are made in it,
    whose paths have 107 characters at most.
    """
    place = "/tmp" if len(tempfile.gettempdir()) > _LONGEST else None
    folder = tempfile.mkdtemp(prefix="nccltune-", dir=place)
    mark_as_ours(Path(folder))
    return folder


def greet(number: str) -> Channel:
    """Connect to the tuner, and say which node this is."""
    channel = Channel.connect(os.environ[ADDRESS])
    channel.keep_alive()
    channel.send(
        "hello",
        token=os.environ[TOKEN],
        node=int(number),
        step=os.environ.get("SLURM_STEP_ID", ""),
        port=free_port(),
    )
    return channel


def _listening(channel: Channel) -> News:
    """What the tuner says from here on; at last `gone`."""
    news: News = queue.SimpleQueue()

    def listen() -> None:
        try:
            while True:
                news.put(channel.receive())
        except (OSError, ValueError):
            news.put({"type": "gone"})

    threading.Thread(target=listen, daemon=True).start()
    return news


def _next(news: News) -> dict[str, Any] | None:
    try:
        return news.get(timeout=_POLL_SECONDS)
    except queue.Empty:
        return None


def _started(command: Sequence[str], news: News) -> subprocess.Popen[bytes] | None:
    """The command, once it is to start; None where it is not to any more."""
    message = news.get()
    if message["type"] != "start":
        return None
    words = [filled(word, message["values"]) for word in command]
    try:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, preexec_fn=_default_signals)
    except OSError as error:
        print(f"cannot start {words[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return None


def filled(word: str, values: Mapping[str, Any]) -> str:
    """With values in place of the names in braces."""
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", str(value))
    return word


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _lives(pid: int) -> bool:
    """Whether it is there and no zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[:1] not in ([], ["Z"])


def _signal(pids: Sequence[int], number: int) -> None:
    """To those that are ours: ids are the tuner's to name, and may have come again since."""
    for pid in set(pids) & set(descendants(os.getpid())):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def free_port() -> int:
    """One that was free a moment ago, for the ranks to meet at."""
    with socket.socket() as found:
        found.bind(("", 0))
        port: int = found.getsockname()[1]
    return port


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
