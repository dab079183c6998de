"""One node's part of a launch, so that nothing of a launch outlives it there or its tuner.

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
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from nccltune.worker.channel import Channel
from nccltune.worker.interfaces import interface_of
from nccltune.worker.log_sender import LogSender
from nccltune.worker.owners import mark_as_ours
from nccltune.worker.status import LOG_DIR, NODE
from nccltune.worker.supervisor import adopt_orphans, descendants, end_descendants

ADDRESS, TOKEN = "NCCLTUNE_STEP_ADDRESS", "NCCLTUNE_STEP_TOKEN"
CANCELLED = -int(signal.SIGTERM)

ADDRESS_HERE = "NCCLTUNE_NODE_ADDRESS"
"""This node's, where ranks have to be told by which interface they reach the others."""

FOLDER = "NCCLTUNE_HOST_FOLDER"
"""The agent's own, gone at its end; made by `arrive` where the worker's files are in it."""

# A signal's handler puts into it whatever it interrupts: queue.Queue would wait for its own lock.
News: TypeAlias = "queue.SimpleQueue[dict[str, Any]]"

_LONGEST = 50
_POLL_SECONDS = 0.02
_END_SECONDS = 10.0


def main() -> int:
    command = sys.argv[sys.argv.index("--") + 1 :]
    adopt_orphans()
    os.environ[NODE] = number = node_number(os.environ)
    try:
        channel = greet(number)
        news = _listening(channel)
        for each in (signal.SIGINT, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda _number, _frame: news.put({"type": "cancelled"}))
        if FOLDER not in os.environ:  # not before there is anybody who has it removed
            os.environ[FOLDER] = _own_folder()
        prepare(os.environ)
        logs = LogSender(Path(os.environ[FOLDER]), channel)
        code = _looked_after(command, channel, news, logs)
        left = end_descendants(seconds=_END_SECONDS)
        with contextlib.suppress(OSError):  # the tuner may be gone
            logs.look(whole=True)
            channel.send("ended", code=code, left=left)
    finally:
        shutil.rmtree(os.environ.get(FOLDER, ""), ignore_errors=True)
    return 0


def _looked_after(
    command: Sequence[str], channel: Channel, news: News, logs: LogSender
) -> int | None:
    """The exit code of the command; None where the tuner has it ended, or is gone."""
    process = _started(command, news)
    watched: set[int] = set()
    while process is not None and (code := process.poll()) is None:
        message = _next(news)
        kind = None if message is None else message["type"]
        if kind in ("gone", "cancelled"):
            return CANCELLED if kind == "cancelled" else None
        with contextlib.suppress(OSError):  # then it is gone, which the news will tell
            if message is not None:
                watched |= _follow(message, channel, logs)
                if kind == "stop":
                    process.terminate()
            # Not by a look through all of /proc: ranks are being timed meanwhile.
            if gone := {pid for pid in watched if not _lives(pid)}:
                watched -= gone
                channel.send("gone", pids=sorted(gone))
            logs.look()
    return None if process is None else code


def _follow(message: Mapping[str, Any], channel: Channel, logs: LogSender) -> set[int]:
    """What the tuner wants. Returns processes to watch from now on."""
    kind = message["type"]
    if kind == "signal":
        _signal(message["pids"], int(message["number"]))
    elif kind == "gather":
        logs.look(whole=True)
        channel.send("gathered")
    elif kind == "forget":
        logs.forget(message["number"])
    return set(message["pids"]) if kind == "watch" else set()


def node_number(environ: Mapping[str, str]) -> str:
    """Which node this is, as the tuner has set it, or Slurm."""
    return environ.get(NODE) or environ.get("SLURM_NODEID", "0")


def prepare(environ: MutableMapping[str, str]) -> None:
    """What only this node can know of what ranks here need: a folder for their logs, and the
    interface of the address that the others use. gloo would take what the host's name stands for.
    """
    if LOG_DIR in environ:
        os.makedirs(environ[LOG_DIR], exist_ok=True)
    if ADDRESS_HERE in environ and (name := interface_of(environ[ADDRESS_HERE])) is not None:
        environ.setdefault("GLOO_SOCKET_IFNAME", name)


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
    try:
        channel = Channel.connect(os.environ[ADDRESS])
    except OSError as error:
        sys.exit(f"cannot reach the tuner at {os.environ[ADDRESS]}: {error.strerror or error}")
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
