"""What the ranks of a trial, and processes that they fork, tell each other about files."""

from __future__ import annotations

import json
import mmap
import os

from nccltune.worker.attach.paths import REAL

NAMES = frozenset({".journal", ".journal-size"})

_WORD = 8  # bytes of the size


class Journal:
    """Notes of a kind about a key, in the order in which they were made, for all that have it.

    Whether there are new ones is asked at each use of a file. So it must cost next to nothing: the
    size of the journal lies in memory that all share. Where that cannot be had, the file is asked.
    """

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        self._file = os.path.join(folder, ".journal")
        self._read = 0
        self._word = _shared(os.path.join(folder, ".journal-size"))
        self._seen = bytes(_WORD)

    def write(self, kind: str, key: str) -> None:
        line = json.dumps([kind, key]).encode() + b"\n"
        descriptor = REAL.os_open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(descriptor, line)  # in one piece
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        word = size.to_bytes(_WORD, "little")
        if self._word is not None:
            self._word[:_WORD] = word
        if size == self._read + len(line):  # no one else has written since the last look
            self._read, self._seen = size, word

    def news(self) -> list[tuple[str, str]]:
        """Notes since the last look; some of one's own may be among them."""
        if self._word is None:
            return self._rest()
        size = self._word[:_WORD]
        if size == self._seen:
            return []
        self._seen = size  # before reading: what comes meanwhile is read now or at the next look
        return self._rest()

    def _rest(self) -> list[tuple[str, str]]:
        start = self._read
        try:
            if REAL.stat(self._file).st_size == start:
                return []
            with REAL.open(self._file, "rb") as file:
                file.seek(start)
                lines, end, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._read = start + len(lines + end)
        return [tuple(json.loads(line)) for line in lines.splitlines()]


def _shared(path: str) -> mmap.mmap | None:
    """Memory that all processes share that open this file."""
    try:
        descriptor = REAL.os_open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            os.ftruncate(descriptor, _WORD)
            return mmap.mmap(descriptor, _WORD)
        finally:
            os.close(descriptor)
    except (OSError, ValueError):  # a file system that has none
        return None
