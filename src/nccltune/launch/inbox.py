"""Files that ranks of other nodes write, as the nodes' agents send them: into the folders of their
launches here. What a node sends is not trusted: it can write nothing else than such files there.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nccltune.launch.connection import ProtocolError
from nccltune.launch.fields import integer

_NAMES = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_OF_ALL = "launcher.log"  # every node's torchrun adds to it
_MOST_FILES = 1000  # of a launch
_MOST_BYTES = 1 << 28  # of a launch, those that are written again counted again
_PIECE = 1 << 17


@dataclass
class _Launch:
    folder: Path
    owners: dict[str, int] = field(default_factory=dict)
    """By which node a file was begun; nobody else goes on with it."""
    received: int = 0


class Inbox:
    """Of one step: several launches, one after another, where hosts are warm."""

    def __init__(self) -> None:
        self._launches: dict[int, _Launch] = {}

    def expect(self, number: int, folder: Path) -> None:
        """What comes of that launch goes to `folder`, which is there."""
        self._launches[number] = _Launch(folder)

    def forget(self, number: int) -> bool:
        """Take nothing more of that launch. Whether it was known."""
        return self._launches.pop(number, None) is not None

    def take(self, node: int, message: Mapping[str, Any]) -> None:
        """One piece: `number`, `name`, `offset` in the file, `data` as base64. Offset 0 begins the
        file anew. What is not right in it is dropped.
        """
        with contextlib.suppress(KeyError, TypeError, ValueError, OSError, ProtocolError):
            launch = self._launches[message["number"]]
            name, offset = message["name"], integer(message, "offset", _MOST_BYTES)
            data = base64.b64decode(message["data"][: 2 * _PIECE], validate=True)
            if self._allowed(launch, node, name, len(data)):
                _write(launch.folder / name, offset, data, append=name == _OF_ALL)

    @staticmethod
    def _allowed(launch: _Launch, node: int, name: str, size: int) -> bool:
        launch.received += size
        if _NAMES.fullmatch(name) is None or launch.received > _MOST_BYTES:
            return False
        if name not in launch.owners and len(launch.owners) >= _MOST_FILES:
            return False
        return name == _OF_ALL or launch.owners.setdefault(name, node) == node


def _write(file: Path, offset: int, data: bytes, *, append: bool) -> None:
    """Whole at once where it begins, so that nobody reads a half of it."""
    if append or offset:
        flags = os.O_WRONLY | os.O_NOFOLLOW | (os.O_APPEND | os.O_CREAT if append else 0)
        with open(os.open(file, flags, 0o600), "wb") as opened:
            if not append:
                if offset != os.fstat(opened.fileno()).st_size:
                    return  # a piece is missing
                opened.seek(offset)
            opened.write(data)
        return
    temporary = file.with_name(f".{file.name}.part")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(data)
    temporary.rename(file)
