"""What looks after a node's part of a launch, over a real connection."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from nccltune.launch.connection import Listener, Peer
from nccltune.worker.channel import Channel
from nccltune.worker.interfaces import interface_of
from nccltune.worker.node import ADDRESS_HERE, prepare
from nccltune.worker.status import LOG_DIR

TOKEN = "0123456789abcdef"
COMMAND = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print(os.getpid(), flush=True)
time.sleep(600)
"""


class Agent:
    """An agent with a command that waits; its temporary folders are made in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.listener = Listener(TOKEN)
        self.process = self._start(folder, self.listener.address)
        came = self.listener.accept(60, "a node")
        assert came is not None
        self.peer: Peer = came[0]

    @staticmethod
    def _start(folder: Path, address: str) -> subprocess.Popen[str]:
        own = {"NCCLTUNE_STEP_ADDRESS": address, "NCCLTUNE_STEP_TOKEN": TOKEN}
        return subprocess.Popen(
            [sys.executable, "-m", "nccltune.worker.node", "--", sys.executable, "-c", COMMAND],
            env={**os.environ, **own, "TMPDIR": str(folder), "NCCLTUNE_TAG": "a/1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def begin(self) -> int:
        """The process id of the command."""
        self.peer.send({"type": "start", "values": {}})
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def hear(self, kind: str) -> dict[str, Any]:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            message = self.peer.receive(1.0)
            if message is not None and message["type"] == kind:
                return message
        raise AssertionError(f"nothing is told of {kind}")

    def close(self) -> None:
        self.peer.close()
        self.listener.close()
        self.process.communicate(timeout=60)  # it ends its command when nobody is there


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: an agent makes its sockets elsewhere where it is long."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def agent(folder: Path) -> Iterator[Agent]:
    found = Agent(folder)
    yield found
    found.close()


def test_how_the_command_ended_is_told(agent: Agent) -> None:
    pid = agent.begin()
    agent.peer.send({"type": "watch", "pids": [pid]})
    os.kill(pid, signal.SIGKILL)
    told = agent.hear("ended")
    assert (told["code"], told["left"]) == (-signal.SIGKILL, [])


def test_of_watched_processes_those_that_end_are_told(agent: Agent) -> None:
    agent.begin()
    gone = subprocess.Popen(["true"])
    gone.wait()
    agent.peer.send({"type": "watch", "pids": [gone.pid, os.getpid()]})
    assert agent.hear("gone")["pids"] == [gone.pid]


def test_a_cancelled_step_says_so_and_leaves_no_folder(agent: Agent, folder: Path) -> None:
    pid = agent.begin()
    assert len(list(folder.iterdir())) == 1
    agent.process.terminate()
    assert agent.hear("ended")["code"] == -signal.SIGTERM
    assert agent.process.wait(60) == 0 and list(folder.iterdir()) == []
    assert not Path(f"/proc/{pid}").exists()


def test_asked_to_stop_it_passes_that_on(agent: Agent) -> None:
    agent.begin()
    agent.peer.send({"type": "stop"})
    # As the command's own end, and not as a step that somebody has cancelled.
    assert agent.hear("ended")["code"] == 7


def test_one_that_reaches_nobody_leaves_no_folder(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nobody listens there
        process = Agent._start(folder, f"127.0.0.1:{free.getsockname()[1]}")
        process.communicate(timeout=60)
    assert process.returncode != 0 and list(folder.iterdir()) == []


def test_signals_do_not_wait_for_what_they_interrupt() -> None:
    """A handler puts news into the queue while the same thread takes some out."""
    program = """
import signal, socket, sys
from nccltune.worker.channel import Channel
from nccltune.worker.interfaces import interface_of
from nccltune.worker.node import ADDRESS_HERE, prepare
from nccltune.worker.status import LOG_DIR
from nccltune.worker.node import _listening, _next

ours, theirs = socket.socketpair()
news = _listening(Channel(ours))
signal.signal(signal.SIGALRM, lambda *_: news.put({"type": "cancelled"}))
signal.setitimer(signal.ITIMER_REAL, 0.00005, 0.00005)
for _ in range(20000):
    assert _next(news) is not None
signal.setitimer(signal.ITIMER_REAL, 0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_tuner_without_power_is_noticed() -> None:
    """Also where something that was sent to it is on its way; and so is a node's."""
    listener = Listener(TOKEN)
    channel = Channel.connect(listener.address)
    channel.keep_alive()
    channel.send("hello", token=TOKEN)
    came = listener.accept(60, "a node")
    assert came is not None
    for end in (channel._socket, came[0]._socket):
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
        end.close()
    listener.close()


def test_gloo_is_told_the_interface_of_the_address_by_which_others_reach_us(folder: Path) -> None:
    logs = folder / "logs/1/launch-0001"
    told = {ADDRESS_HERE: "127.0.0.9", LOG_DIR: str(logs)}
    prepare(told)
    assert told["GLOO_SOCKET_IFNAME"] == "lo" and logs.is_dir()
    own = {ADDRESS_HERE: "127.0.0.9", "GLOO_SOCKET_IFNAME": "eth7"}
    prepare(own)
    assert own["GLOO_SOCKET_IFNAME"] == "eth7", "the user's own word counts"
    for nobodys in ("192.0.2.1", "a name"):
        elsewhere = {ADDRESS_HERE: nobodys}
        prepare(elsewhere)
        assert set(elsewhere) == {ADDRESS_HERE}


def test_every_interface_is_found_by_its_address() -> None:
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family is socket.AF_INET:
                assert interface_of(each.address) == name.partition(":")[0]
