"""Rank 0's end of the conversation with the tuner: JSON, one message a line, over TCP.

The address and the token come from the environment, so that the same contract works when the tuner
is on another host.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from nccltune.worker.spec import PROTOCOL_VERSION

ADDRESS = "NCCLTUNE_ADDRESS"
TOKEN = "NCCLTUNE_TOKEN"


def keep_alive(connection: socket.socket) -> None:
    """A machine that loses its power says nothing: see it within a minute.

    Linux asks nothing of a peer that still owes an answer to what was sent, and sends that again
    for a quarter of an hour: the last option (in milliseconds) limits this, and the asking too.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        *(("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)),
        ("TCP_USER_TIMEOUT", 60_000),
    ):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class Channel:
    """A connection to the tuner. Raises ConnectionError when the tuner is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lines = connection.makefile("rb")

    @classmethod
    def connect(cls, address: str | None = None) -> Channel:
        """To the tuner at `host:port`, by default that of the environment."""
        host, _, port = (address or os.environ[ADDRESS]).rpartition(":")
        connection = socket.create_connection((host, int(port)), timeout=30)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(connection)

    def keep_alive(self) -> None:
        """As `keep_alive`, for the tuner's machine."""
        keep_alive(self._socket)

    def send(self, kind: str, **fields: Any) -> None:
        message = {"v": PROTOCOL_VERSION, "type": kind, **fields}
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise ConnectionError("the tuner closed the connection")
        message: dict[str, Any] = json.loads(line)
        if message.get("v") != PROTOCOL_VERSION:
            raise ConnectionError(
                f"the tuner speaks protocol {message.get('v')!r}, not {PROTOCOL_VERSION}"
            )
        return message
