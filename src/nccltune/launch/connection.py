"""The tuner's end of the conversation with rank 0: JSON, one message a line, over TCP."""

from __future__ import annotations

import contextlib
import hmac
import json
import select
import socket
from collections.abc import Mapping
from typing import Any

from nccltune.worker.spec import PROTOCOL_VERSION

_LONGEST_LINE = 16 << 20
_HELLO_SECONDS = 5.0


class ProtocolError(Exception):
    """The other end does not keep to the protocol, or is gone."""


class Connection:
    """Listens for the one rank that knows the token, then exchanges messages with it."""

    def __init__(self, token: str, host: str = "127.0.0.1") -> None:
        self._token = token
        self._listener = socket.create_server((host, 0))
        self._peer: socket.socket | None = None
        self._received = b""
        self.hello: dict[str, Any] = {}

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"{host}:{port}"

    @property
    def connected(self) -> bool:
        return self._peer is not None

    def accept(self, seconds: float) -> bool:
        """Wait for rank 0 up to `seconds`. Strangers (no or wrong token) are turned away."""
        if not select.select([self._listener], [], [], seconds)[0]:
            return False
        peer, _ = self._listener.accept()
        peer.settimeout(_HELLO_SECONDS)
        try:
            self._peer, self._received = peer, b""
            hello = self.receive(_HELLO_SECONDS)
            told = str((hello or {}).get("token", ""))
            if hello is None or not hmac.compare_digest(
                told.encode(errors="replace"), self._token.encode()
            ):
                raise ProtocolError("no valid token")
        except (ProtocolError, OSError):
            self._peer = None
            peer.close()
            return False
        self.hello = hello
        peer.settimeout(30)
        return True

    def send(self, message: Mapping[str, Any]) -> None:
        """Raises ProtocolError when the rank is gone."""
        assert self._peer is not None
        try:
            self._peer.sendall(json.dumps({"v": PROTOCOL_VERSION, **message}).encode() + b"\n")
        except OSError as error:
            raise ProtocolError(f"rank 0 is gone: {error}") from error

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """The next message, or None when none came within `seconds`.

        Raises: ProtocolError for a closed connection, a line that is not JSON, another version.
        """
        assert self._peer is not None
        while b"\n" not in self._received:
            if not select.select([self._peer], [], [], seconds)[0]:
                return None
            try:
                data = self._peer.recv(1 << 16)
            except OSError as error:
                raise ProtocolError(f"rank 0 is gone: {error}") from error
            if not data:
                raise ProtocolError("rank 0 closed the connection")
            self._received += data
            if len(self._received) > _LONGEST_LINE:
                raise ProtocolError("a message is too long")
        line, _, self._received = self._received.partition(b"\n")
        return _message(line)

    def close(self) -> None:
        for end in (self._peer, self._listener):
            if end is not None:
                with contextlib.suppress(OSError):
                    end.close()


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a message: {line[:80]!r}") from error
    known = isinstance(message, dict) and message.get("v") == PROTOCOL_VERSION
    if not known or not isinstance(message.get("type"), str):
        raise ProtocolError(f"not a message of protocol {PROTOCOL_VERSION}: {line[:80]!r}")
    return dict(message)
