"""Sends the tuner what ranks write into the folders of their launches, on a node that shares no
files with it. Standard library only.

The agent looks at those folders (`logs/NUMBER/NAME` in its own) a few times a second; it sends new
files at once and what was added to others at most once a second, a little at a time, since ranks
are being timed; all that is left goes when the tuner asks, and at the end.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
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

    def __init__(self, folder: Path, channel: Channel) -> None:
        self._folder, self._channel = folder / LOGS, channel
        self._sent: dict[Path, _Sent] = {}
        self._looked = float("-inf")

    def look(self, *, whole: bool = False) -> None:
        """Send what is due; `whole`: all that there is. Raises OSError when the tuner is gone."""
        now = time.monotonic()
        if not whole and now < self._looked + _LOOK_SECONDS:
            return
        self._looked, left = now, (1 << 40) if whole else _AT_ONCE
        for file in self._files():
            with contextlib.suppress(FileNotFoundError):
                left -= self._send(file, now, left, whole=whole)

    def forget(self, number: int) -> None:
        """That launch is over."""
        gone = self._folder / str(int(number))
        self._sent = {file: sent for file, sent in self._sent.items() if gone not in file.parents}
        shutil.rmtree(gone, ignore_errors=True)

    def _files(self) -> Iterator[Path]:
        for folder in self._folder.glob("[0-9]*/*"):
            yield from sorted(folder.iterdir())[:_MOST_FILES]

    def _send(self, file: Path, now: float, most: int, *, whole: bool) -> int:
        """Returns how many bytes of it went."""
        state = file.lstat()
        sent = self._sent.setdefault(file, _Sent())
        if not stat.S_ISREG(state.st_mode) or file.suffix == ".tmp" or sent.cut:
            return 0
        if (state.st_size, state.st_mtime_ns) == (sent.bytes, sent.changed):
            return 0
        if not whole and now < sent.when + _AGAIN_SECONDS:
            return 0
        anew = state.st_size <= _WHOLE or state.st_size < sent.bytes
        begin = 0 if anew else sent.bytes
        size = max(0, min(state.st_size, _MOST_BYTES) - begin)
        if size > most:
            size = most // _PIECE * _PIECE
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as opened:
            opened.seek(begin)
            self._pieces(file, begin, opened.read(size))
            sent.bytes, sent.when = begin + size, now
            if sent.bytes == state.st_size:
                sent.changed = state.st_mtime_ns
            elif whole:  # it is too long: its end is what is looked at
                sent.cut = True
                begin = max(sent.bytes, state.st_size - _END_BYTES)
                opened.seek(begin)
                mark = f"\n[nccltune: {begin - sent.bytes} bytes stayed on the node]\n".encode()
                self._pieces(file, sent.bytes, mark + opened.read(_END_BYTES))
        return size

    def _pieces(self, file: Path, offset: int, data: bytes) -> None:
        number = int(file.relative_to(self._folder).parts[0])
        for at in range(0, max(1, len(data)), _PIECE):
            text = base64.b64encode(data[at : at + _PIECE]).decode()
            self._channel.send("file", number=number, name=file.name, offset=offset + at, data=text)
