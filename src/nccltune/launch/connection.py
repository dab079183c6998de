"""The tuner's end of the conversation with rank 0: JSON, one message a line, over TCP."""

from __future__ import annotations

import contextlib
import hmac
import json
import select
import socket
import time
from collections.abc import Mapping
from typing import Any

from nccltune.worker.channel import keep_alive
from nccltune.worker.spec import PROTOCOL_VERSION

_LONGEST_LINE = 16 << 20
_HELLO_SECONDS = 5.0
_SEND_SECONDS = 30
_BACKLOG = 1024  # the nodes of a step connect at the same moment


class ProtocolError(Exception):
    """The other end does not keep to the protocol, or is gone."""


class Peer:
    """The other end of one connection; `name` is what messages call it."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        self._socket, self._name = connection, name
        self._received = b""

    def send(self, message: Mapping[str, Any]) -> None:
        """Raises ProtocolError when the other end is gone."""
        try:
            self._socket.sendall(json.dumps({"v": PROTOCOL_VERSION, **message}).encode() + b"\n")
        except OSError as error:
            raise ProtocolError(f"{self._name} is gone: {error}") from error

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """The next message, or None when none came within `seconds`.

        Raises: ProtocolError for a closed connection, a line that is not JSON, another version.
        """
        until = time.monotonic() + seconds  # also for one who says a letter at a time
        while b"\n" not in self._received:
            left = max(0.0, until - time.monotonic())
            if not select.select([self._socket], [], [], left)[0]:
                return None
            try:
                data = self._socket.recv(1 << 16)
            except OSError as error:
                raise ProtocolError(f"{self._name} is gone: {error}") from error
            if not data:
                raise ProtocolError(f"{self._name} closed the connection")
            self._received += data
            if len(self._received) > _LONGEST_LINE:
                raise ProtocolError("a message is too long")
        line, _, self._received = self._received.partition(b"\n")
        return _message(line)

    def finish(self) -> None:
        """Nothing more comes from here; what the other end still says is heard."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


class Listener:
    """Lets those in that know the token. `host`: the interface to listen on, which peers reach as
    `reached_as`.
    """

    def __init__(self, token: str, host: str = "127.0.0.1", reached_as: str | None = None) -> None:
        self._token, self._reached_as = token, reached_as
        self._socket = socket.create_server((host, 0), backlog=_BACKLOG)

    @property
    def address(self) -> str:
        """HOST:PORT for peers."""
        host, port = self._socket.getsockname()[:2]
        return f"{self._reached_as or host}:{port}"

    def accept(self, seconds: float, name: str) -> tuple[Peer, dict[str, Any]] | None:
        """The next peer and its first message; None where none came within `seconds`. Strangers (no
        or wrong token) are turned away.
        """
        if not select.select([self._socket], [], [], seconds)[0]:
            return None
        connection, _ = self._socket.accept()
        connection.settimeout(_HELLO_SECONDS)
        keep_alive(connection)
        peer = Peer(connection, name)
        try:
            hello = peer.receive(_HELLO_SECONDS)
            told = str((hello or {}).get("token", ""))
            if hello is None or not hmac.compare_digest(
                told.encode(errors="replace"), self._token.encode()
            ):
                raise ProtocolError("no valid token")
        except (ProtocolError, OSError):
            peer.close()
            return None
        connection.settimeout(_SEND_SECONDS)
        return peer, hello

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


class Connection:
    """Listens for the one rank that knows the token, then exchanges messages with it."""

    def __init__(self, token: str, host: str = "127.0.0.1", reached_as: str | None = None) -> None:
        self._listener = Listener(token, host, reached_as)
        self._peer: Peer | None = None
        self.hello: dict[str, Any] = {}

    @property
    def address(self) -> str:
        return self._listener.address

    @property
    def connected(self) -> bool:
        return self._peer is not None

    def accept(self, seconds: float) -> bool:
        """Wait for rank 0 up to `seconds`. Strangers are turned away."""
        found = self._listener.accept(seconds, "rank 0")
        if found is None:
            return False
        self._peer, self.hello = found
        return True

    def send(self, message: Mapping[str, Any]) -> None:
        """Raises ProtocolError when the rank is gone."""
        assert self._peer is not None
        self._peer.send(message)

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """As `Peer.receive`."""
        assert self._peer is not None
        return self._peer.receive(seconds)

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
        self._listener.close()


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a message: {line[:80]!r}") from error
    known = isinstance(message, dict) and message.get("v") == PROTOCOL_VERSION
    if not known or not isinstance(message.get("type"), str):
        raise ProtocolError(f"not a message of protocol {PROTOCOL_VERSION}: {line[:80]!r}")
    return dict(message)
