"""The tuner's end of the conversation with rank 0, over real sockets."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from nccltune.launch.connection import Connection, ProtocolError
from nccltune.worker.channel import ADDRESS, Channel
from nccltune.worker.channel import TOKEN as TOKEN_NAME

TOKEN = "0123456789abcdef"


@pytest.fixture
def connection() -> Iterator[Connection]:
    connection = Connection(TOKEN)
    yield connection
    connection.close()


def dial(connection: Connection, *lines: bytes) -> socket.socket:
    host, _, port = connection.address.rpartition(":")
    peer = socket.create_connection((host, int(port)), timeout=10)
    for line in lines:
        peer.sendall(line)
    return peer


def hello(token: object = TOKEN, **fields: object) -> bytes:
    return json.dumps({"v": 1, "type": "hello", "token": token, **fields}).encode() + b"\n"


@pytest.fixture
def peer(connection: Connection) -> Iterator[socket.socket]:
    """Rank 0, welcomed."""
    with dial(connection, hello(pids=[1, 2])) as peer:
        assert connection.accept(10)
        yield peer


STRANGERS = {
    "wrong token": hello("wrong"),
    "no token": b'{"v": 1, "type": "hello"}\n',
    "a prefix of the token": hello(TOKEN[:-1]),
    "the token and more": hello(TOKEN + "0"),
    "a number": hello(0),
    "a list": hello([TOKEN]),
    "another protocol": json.dumps({"v": 2, "type": "hello", "token": TOKEN}).encode() + b"\n",
    "no JSON": b"GET / HTTP/1.1\r\n\r\n",
    "no text": b"\xff\xfe\x00\n",
    "no mapping": json.dumps([TOKEN]).encode() + b"\n",
    "half a character": b'{"v": 1, "type": "hello", "token": "\\ud800"}\n',
    "without end": b"[" * 200_000 + b"\n",
}


@pytest.mark.parametrize("said", STRANGERS.values(), ids=STRANGERS.keys())
def test_a_stranger_is_turned_away_and_the_rank_comes_in_after_it(
    connection: Connection, said: bytes
) -> None:
    with dial(connection, said) as stranger:
        assert not connection.accept(10)
        assert not connection.connected
        try:
            assert stranger.recv(100) == b""  # hung up on
        except ConnectionResetError:
            pass
        with dial(connection, hello(pids=[7])):
            assert connection.accept(10)
            assert connection.connected
            assert connection.hello["pids"] == [7]


def test_one_that_hangs_up_without_a_word_is_turned_away(connection: Connection) -> None:
    dial(connection).close()
    assert not connection.accept(10)
    with dial(connection, hello()):
        assert connection.accept(10)


def test_one_that_says_a_letter_at_a_time_is_turned_away_too(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nccltune.launch.connection._HELLO_SECONDS", 0.3)
    stranger, over = dial(connection), threading.Event()

    def drip() -> None:
        while not over.wait(0.05):
            with contextlib.suppress(OSError):
                stranger.sendall(b" ")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    accepting = threading.Thread(target=connection.accept, args=(10,), daemon=True)
    accepting.start()
    accepting.join(30)
    held = accepting.is_alive()
    over.set()
    thread.join()
    stranger.close()
    assert not held and not connection.connected


def test_nobody_there_is_no_connection(connection: Connection) -> None:
    assert not connection.accept(0.01)
    assert not connection.connected


def test_it_listens_on_this_machine_alone(connection: Connection) -> None:
    host, _, port = connection.address.rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


def test_messages_go_both_ways(connection: Connection, peer: socket.socket) -> None:
    connection.send({"type": "measure", "text": "größer\n", "none": None})
    line = peer.makefile("rb").readline()
    assert json.loads(line) == {"v": 1, "type": "measure", "text": "größer\n", "none": None}
    peer.sendall(b'{"v": 1, "type": "phase", "phase": "build"}\n')
    assert connection.receive(10) == {"v": 1, "type": "phase", "phase": "build"}


def test_no_news_is_none(connection: Connection, peer: socket.socket) -> None:
    assert connection.receive(0.01) is None


def test_messages_arrive_whole_however_they_are_cut(
    connection: Connection, peer: socket.socket
) -> None:
    peer.sendall(b'{"v": 1, "type": "a"}\n{"v": 1, "type": "b"}\n{"v": 1, ')
    assert [connection.receive(10), connection.receive(10)] == [
        {"v": 1, "type": "a"}, {"v": 1, "type": "b"},
    ]  # fmt: skip
    assert connection.receive(0.01) is None
    peer.sendall(b'"type": "c"}\n')
    assert connection.receive(10) == {"v": 1, "type": "c"}


def test_a_long_message_arrives(connection: Connection, peer: socket.socket) -> None:
    message = {"v": 1, "type": "result", "windows": ["x" * 100] * 20_000}
    sender = threading.Thread(target=peer.sendall, args=(json.dumps(message).encode() + b"\n",))
    sender.start()
    assert connection.receive(10) == message
    sender.join(10)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"not json\n", "not a message: b'not json'"),
        (b"\n", "not a message: b''"),
        (b'{"v": 1\n', "not a message"),
        (b"[1]\n", "not a message of protocol 1"),
        (b'{"v": 2}\n', "not a message of protocol 1"),
        (b'{"type": "result"}\n', "not a message of protocol 1"),
        (b'{"v": 1}\n', "not a message of protocol 1"),
        (b'{"v": 1, "type": 7}\n', "not a message of protocol 1"),
    ],
)
def test_broken_messages(
    connection: Connection, peer: socket.socket, line: bytes, reason: str
) -> None:
    peer.sendall(line)
    with pytest.raises(ProtocolError) as caught:
        connection.receive(10)
    assert str(caught.value).startswith(reason)


def test_a_message_has_an_end(connection: Connection, peer: socket.socket) -> None:
    def flood() -> None:
        try:
            for _ in range(300):
                peer.sendall(b"x" * (1 << 16))
        except OSError:
            pass  # hung up on

    sender = threading.Thread(target=flood)
    sender.start()
    with pytest.raises(ProtocolError, match="too long"):
        connection.receive(10)
    connection.close()
    sender.join(10)


def test_a_rank_that_is_gone(connection: Connection, peer: socket.socket) -> None:
    peer.close()
    with pytest.raises(ProtocolError, match="rank 0 closed the connection"):
        connection.receive(10)
    with pytest.raises(ProtocolError, match="rank 0 is gone"):
        for _ in range(100):  # the first may still fit into the socket's buffer
            connection.send({"type": "close"})


def test_what_was_sent_before_the_end_is_still_read(
    connection: Connection, peer: socket.socket
) -> None:
    peer.sendall(b'{"v": 1, "type": "result"}\n')
    peer.close()
    assert connection.receive(10) == {"v": 1, "type": "result"}
    with pytest.raises(ProtocolError):
        connection.receive(10)


def test_the_workers_end_and_the_tuners_end_understand_each_other(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS, connection.address)
    monkeypatch.setenv(TOKEN_NAME, TOKEN)
    channel = Channel.connect()
    channel.send("hello", token=TOKEN, pids=[1])
    assert connection.accept(10)
    connection.send({"type": "measure", "id": "m0001"})
    assert channel.receive() == {"v": 1, "type": "measure", "id": "m0001"}
    channel.send("result", result={"samples_per_second": 1.5})
    assert connection.receive(10) == {
        "v": 1, "type": "result", "result": {"samples_per_second": 1.5},
    }  # fmt: skip
    connection.close()
    with pytest.raises(ConnectionError, match="the tuner closed the connection"):
        channel.receive()
