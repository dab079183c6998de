"""Files of other nodes: they come as they are, and nothing else can be written."""

from __future__ import annotations

import base64
import contextlib
import math
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from nccltune.launch.connection import Peer
from nccltune.launch.inbox import Inbox
from nccltune.worker import log_sender
from nccltune.worker.channel import Channel
from nccltune.worker.log_sender import LogSender

LONG = 3 * log_sender._PIECE + 17


class Wire:
    """A node's sender, and the tuner's inbox for it."""

    def __init__(self, folder: Path) -> None:
        ours, theirs = socket.socketpair()
        self.peer, self.inbox = Peer(ours, "a node"), Inbox()
        self.there, self.here = folder / "logs/7/launch-0001", folder / "here"
        self.there.mkdir(parents=True)
        self.here.mkdir()
        self.inbox.expect(7, self.here)
        self.now, self._channel = 0.0, Channel(theirs)
        self.sender = LogSender(folder, self._channel, lambda: self.now)

    def look(self, *, whole: bool = True) -> int:
        """How many pieces came."""
        looking = threading.Thread(target=self._look_there, args=(whole,))
        looking.start()
        count = 0
        while (message := self.peer.receive(60.0)) is not None and message["type"] == "file":
            self.inbox.take(1, message)
            count += 1
        looking.join()
        assert message is not None, "it has looked to the end"
        return count

    def _look_there(self, whole: bool) -> None:
        with contextlib.suppress(OSError):
            self.sender.look(whole=whole)
            self._channel.send("gathered")

    def came(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in self.here.iterdir()}


@pytest.fixture
def wire(tmp_path: Path) -> Wire:
    return Wire(tmp_path)


def test_files_arrive_as_they_grow(wire: Wire) -> None:
    (wire.there / "rank0.pid").write_text("17 1")
    log, text = wire.there / "rank0.log", b""
    for piece in (b"a" * 10, b"b" * LONG, b"", b"c" * 5):
        text += piece
        log.write_bytes(text)
        wire.look()
        assert wire.came() == {"rank0.pid": b"17 1", "rank0.log": text}
    assert wire.look() == 0, "what has not changed is not sent again"


def test_a_small_file_that_is_written_anew_is_the_new_one(wire: Wire) -> None:
    status = wire.there / "rank0.status"
    for text in ("start|0|", "measure|5|backward", "idle|5|"):
        status.write_text(text)
        wire.look()
        assert wire.came() == {"rank0.status": text.encode()}


def test_files_that_are_not_ready_and_what_is_no_file_stay(wire: Wire, tmp_path: Path) -> None:
    (wire.there / "rank0.error.tmp").write_text("{")
    (wire.there / "torchrun").mkdir()
    (wire.there / "link.log").symlink_to(tmp_path)
    (wire.there / "secret.log").symlink_to("/etc/passwd")
    assert wire.look() == 0 and wire.came() == {}


def test_changes_are_sent_seldom_while_ranks_are_timed(wire: Wire) -> None:
    log = wire.there / "rank0.log"
    log.write_bytes(b"a")
    assert wire.look(whole=False) == 1
    for number in range(9):
        wire.now += 0.1
        log.write_bytes(b"b" * number)
        assert wire.look(whole=False) == 0
    wire.now += 0.2
    assert wire.look(whole=False) == 1
    assert wire.came() == {"rank0.log": b"b" * 8}


def test_a_long_log_takes_nothing_from_short_files(wire: Wire) -> None:
    """Not even where it has used up what may be sent in a look."""
    log, status = wire.there / "nccl.a.1.log", wire.there / "rank0.status"
    log.write_bytes(b"a" * 12 * log_sender._PIECE)
    for step in range(3):
        status.write_text(f"measure|{step}|")
        assert wire.look(whole=False) <= log_sender._AT_ONCE // log_sender._PIECE + 1
        assert wire.came()["rank0.status"] == status.read_bytes()
        wire.now += 1.5
    came = wire.came()["nccl.a.1.log"]
    assert came == b"a" * len(came) and 0 < len(came) <= 3 * log_sender._AT_ONCE
    wire.look()
    assert wire.came() == {"nccl.a.1.log": log.read_bytes(), "rank0.status": status.read_bytes()}


def test_more_short_files_than_may_be_sent_in_a_look_come_whole(wire: Wire) -> None:
    texts = {f"rank{at}.log": bytes([at]) * (log_sender._WHOLE - 5) for at in range(9)}
    for name, text in texts.items():
        (wire.there / name).write_bytes(text)
    for _ in range(4):
        wire.look(whole=False)
        assert all(texts[name] == text for name, text in wire.came().items())
        wire.now += 0.3
    assert wire.came() == texts


def test_a_file_that_cannot_be_read_does_not_keep_the_others(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def failing(path: Path, *rest: int) -> int:
        if path == wire.there / "rank0.log":  # root, as in containers, may read all there is
            raise PermissionError(13, "Permission denied")
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", failing)
    for rank in (0, 1):
        (wire.there / f"rank{rank}.log").write_text("text")
    wire.look()
    assert wire.came() == {"rank1.log": b"text"}


def test_of_a_file_that_is_too_long_begin_and_end_come(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sender, "_MOST_BYTES", LONG)
    log = wire.there / "rank0.log"
    log.write_bytes(b"a" * 2 * LONG + b"the end")
    wire.look()
    came = wire.came()["rank0.log"]
    assert came.startswith(b"a" * LONG) and came.endswith(b"the end")
    assert b"bytes stayed on the node]" in came and len(came) < 2 * LONG
    log.write_bytes(b"b" * 3 * LONG)
    assert wire.look() == 0


def test_a_launch_that_is_over_is_gone_on_both_sides(wire: Wire) -> None:
    (wire.there / "rank0.log").write_bytes(b"a")
    wire.look()
    wire.sender.forget(7)
    assert not wire.there.exists()
    assert wire.inbox.forget(7) and not wire.inbox.forget(7)
    wire.inbox.take(1, piece(name="rank1.log"))
    assert set(wire.came()) == {"rank0.log"}


def piece(**changed: Any) -> dict[str, Any]:
    data = base64.b64encode(b"text").decode()
    return {"type": "file", "number": 7, "name": "rank0.log", "offset": 0, "data": data, **changed}


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "../rank0.log"},
        {"name": "/tmp/rank0.log"},
        {"name": ".."},
        {"name": ".hidden"},
        {"name": "a\nb"},
        {"name": "a" * 300},
        {"name": None},
        {"number": 8},
        {"number": [7]},
        {"offset": 5},
        {"offset": -1},
        {"offset": "x"},
        {"offset": math.inf},
        {"offset": math.nan},
        {"offset": 0.0},
        {"offset": False},
        {"offset": 1 << 70},
        {"offset": None},
        {"number": math.inf},
        {"number": {}},
        {"name": ["a"]},
        {"data": ["a"]},
        {"data": "ä"},
        {"data": "no base64!"},
        {"data": 7},
    ],
)
def test_what_a_node_must_not_send_is_dropped(wire: Wire, changed: dict[str, Any]) -> None:
    wire.inbox.take(1, piece(**changed))
    assert [file for file in wire.here.parent.rglob("*") if file.is_file()] == []
    message = piece(**changed)
    for name in ("number", "name", "offset", "data"):
        wire.inbox.take(1, {key: value for key, value in message.items() if key != name})
    assert [file for file in wire.here.parent.rglob("*") if file.is_file()] == []


def test_a_link_of_ours_is_not_followed(wire: Wire, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (wire.here / "rank0.log").symlink_to(victim)
    wire.inbox.take(1, piece(offset=4))
    wire.inbox.take(1, piece())
    assert victim.read_text() == "mine"


def test_no_node_writes_another_nodes_files(wire: Wire) -> None:
    wire.inbox.take(0, piece())
    wire.inbox.take(1, piece(data=base64.b64encode(b"other").decode()))
    assert wire.came() == {"rank0.log": b"text"}
    for node in (0, 1):  # the one file of all of them
        wire.inbox.take(node, piece(name="launcher.log"))
    assert wire.came()["launcher.log"] == b"texttext"
