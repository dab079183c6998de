"""Sends the tuner what ranks write into the folders of their launches, on a node that shares no
files with it. Standard library only.

The agent looks at those folders (`logs/NUMBER/NAME` in its own) a few times a second; it sends new
files at once and what was added to others at most once a second, a little at a time, since ranks
are being timed, and short files first; all that is left goes when the tuner asks, and at the end.
A file that cannot be read does not keep the others.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nccltune.worker.channel import Channel

LOGS = "logs"
_LOOK_SECONDS, _AGAIN_SECONDS = 0.2, 1.0
_PIECE = 1 << 16
_AT_ONCE = 1 << 18  # bytes in one look while ranks may be timed
_WHOLE = _PIECE  # what is smaller may be written anew, and is sent as a whole; the rest grows
_MOST_BYTES, _MOST_FILES = 1 << 24, 500  # of a file, of a launch
_END_BYTES = 1 << 16


@dataclass
class _Sent:
    """What the tuner has of a file."""

    bytes: int = 0
    changed: int = -1
    when: float = float("-inf")
    cut: bool = False
    """It was too long; no more of it goes."""


class LogSender:
    """Knows what of each file the tuner has."""

    def __init__(
        self, folder: Path, channel: Channel, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._channel, self._clock = folder / LOGS, channel, clock
        self._sent: dict[Path, _Sent] = {}
        self._looked = float("-inf")

    def look(self, *, whole: bool = False) -> None:
        """Send what is due; `whole`: all that there is. Raises OSError when the tuner is gone."""
        now = self._clock()
        if not whole and now < self._looked + _LOOK_SECONDS:
            return
        self._looked, left = now, (1 << 40) if whole else _AT_ONCE
        for file, state in self._files():
            pieces: list[tuple[int, bytes]] = []
            with contextlib.suppress(OSError):  # of this file; not of the connection
                pieces = self._due(file, state, now, left, whole=whole)
            for offset, data in pieces:
                self._send(file, offset, data)
                left -= len(data)

    def forget(self, number: int) -> None:
        """That launch is over."""
        gone = self._folder / str(int(number))
        self._sent = {file: sent for file, sent in self._sent.items() if gone not in file.parents}
        shutil.rmtree(gone, ignore_errors=True)

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """Those that are sent in one piece first: long ones would use up what may go in a look."""
        found: list[tuple[Path, os.stat_result]] = []
        for folder in self._folder.glob("[0-9]*/*"):
            files: list[Path] = []
            with contextlib.suppress(OSError):
                files = sorted(folder.iterdir())[:_MOST_FILES]
            for file in files:
                with contextlib.suppress(OSError):
                    found.append((file, file.lstat()))
        return sorted(found, key=lambda each: each[1].st_size > _WHOLE)

    def _due(
        self, file: Path, state: os.stat_result, now: float, most: int, *, whole: bool
    ) -> list[tuple[int, bytes]]:
        """What is to go of it, by offset: at most that many bytes, where it is not `whole`."""
        sent = self._sent.setdefault(file, _Sent())
        if not stat.S_ISREG(state.st_mode) or file.suffix == ".tmp" or sent.cut:
            return []
        if (state.st_size, state.st_mtime_ns) == (sent.bytes, sent.changed):
            return []
        if not whole and now < sent.when + _AGAIN_SECONDS:
            return []
        anew = state.st_size <= _WHOLE or state.st_size < sent.bytes
        begin = 0 if anew else sent.bytes
        size = max(0, min(state.st_size, _MOST_BYTES) - begin)
        if size > most:
            size = most // _PIECE * _PIECE
            if size <= 0:  # an empty piece would make the tuner's file an empty one
                return []
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as opened:
            opened.seek(begin)
            found = [(begin, opened.read(size))]
            end = begin + size
            if end != state.st_size and whole:  # it is too long: its end is what is looked at
                begin = max(end, state.st_size - _END_BYTES)
                opened.seek(begin)
                mark = f"\n[nccltune: {begin - end} bytes stayed on the node]\n".encode()
                found.append((end, mark + opened.read(_END_BYTES)))
        sent.bytes, sent.when, sent.cut = end, now, len(found) > 1
        if end == state.st_size:
            sent.changed = state.st_mtime_ns
        return found

    def _send(self, file: Path, offset: int, data: bytes) -> None:
        number = int(file.relative_to(self._folder).parts[0])
        for at in range(0, max(1, len(data)), _PIECE):
            text = base64.b64encode(data[at : at + _PIECE]).decode()
            self._channel.send("file", number=number, name=file.name, offset=offset + at, data=text)
