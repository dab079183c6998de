"""What the tuner makes of agents' messages: nothing that a node sends ends it, or holds it up."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nccltune.errors import StudyError
from nccltune.launch import step as step_module
from nccltune.launch.cluster import Cluster, Command, Node, Task
from nccltune.launch.connection import Peer
from nccltune.launch.leftovers import new_tag
from nccltune.launch.looking import look_at_nodes
from nccltune.launch.node_hosts import NodeHosts, _Host
from nccltune.launch.nodes import NodeRanks
from nccltune.launch.plan import LaunchPlan
from nccltune.launch.step import Step
from nccltune.launch.stopping import StopFlag
from nccltune.worker.node import ADDRESS, TOKEN


@dataclass
class Played(Task):
    """Nothing is started: the test is the agent."""

    over: threading.Event = field(default_factory=threading.Event)

    def ended(self, at: int) -> bool:
        return self.over.is_set()

    def code(self) -> int | None:
        return 0 if self.over.is_set() else None

    def output(self) -> str:
        return ""

    def last_words(self, places: Sequence[int]) -> str:
        return "nothing"

    def wait(self, seconds: float) -> bool:
        return True

    def cancel(self) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True)
class PlayedNodes(Cluster):
    kind = "played"
    shares_files = False

    task: Played = field(default_factory=Played)
    told: dict[str, str] = field(default_factory=dict)
    begun: threading.Event = field(default_factory=threading.Event)

    def start(self, command: Command, log: Path) -> Task:
        self.told.update(command.env)
        self.begun.set()
        return self.task

    def shown(self, command: Command) -> LaunchPlan:
        raise NotImplementedError

    def dial(self, **hello: Any) -> socket.socket:
        host, _, port = self.told[ADDRESS].rpartition(":")
        agent = socket.create_connection((host, int(port)), timeout=30)
        told = {"token": self.told[TOKEN], "node": 0, "port": 5, **hello}
        agent.sendall(line("hello", **told))
        return agent


def line(kind: str, **fields: Any) -> bytes:
    return json.dumps({"v": 1, "type": kind, **fields}).encode() + b"\n"


@pytest.fixture
def nodes() -> PlayedNodes:
    return PlayedNodes((Node("gpu1", "127.0.0.1", "gpu1"),), 0)


@pytest.fixture
def step(nodes: PlayedNodes, tmp_path: Path) -> Iterator[Step]:
    step = Step(nodes, "python", tmp_path, ("true",), {}, tmp_path / "log", new_tag())
    yield step
    step.end()


@pytest.fixture
def agent(nodes: PlayedNodes, step: Step) -> Iterator[socket.socket]:
    with nodes.dial() as agent:
        advance_until(step, lambda: step.started)
        yield agent


def advance_until(step: Step, what: Any) -> None:
    for _ in range(2000):
        step.advance()
        if what():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it does not come")


NO_NUMBERS: tuple[Any, ...] = ("x", None, [], {}, True, 1.0, math.inf, math.nan, -1, 1 << 70)


@pytest.mark.parametrize("value", [*NO_NUMBERS, 1])
def test_who_is_no_node_is_turned_away_and_the_node_comes_in(
    nodes: PlayedNodes, step: Step, value: Any
) -> None:
    strange = [{"node": value}] if value == 1 else [{"node": value}, {"port": value}]
    for hello in strange:
        with nodes.dial(**hello) as stranger:
            assert turned_away(step, stranger)
            assert not step.started
    with nodes.dial():
        advance_until(step, lambda: step.started)


def turned_away(step: Step, stranger: socket.socket) -> bool:
    stranger.settimeout(0.01)
    for _ in range(1000):
        step.advance()
        try:
            return stranger.recv(1) == b""
        except TimeoutError:
            continue
        except ConnectionResetError:
            return True
    return False


LEFT: tuple[Any, ...] = ("x", None, {}, 7, [None], ["7"], [-1])
GONE: tuple[Any, ...] = ("12", None, 7, [[]], [math.inf], [1 << 70], [0])
WRONG = [
    *(line("ended", code=value, left=[]) for value in NO_NUMBERS if value not in (None, -1)),
    *(line("ended", code=0, left=value) for value in LEFT),
    *(line("gone", pids=value) for value in GONE),
    *(line("ended"), line("gone"), b'{"v": 1, "type": "gone", "pids": [1e999]}\n'),
    b'{"v": 1, "type": "ended", "left": [], "code": ' + b"9" * 5000 + b"}\n",
    b'{"v": 1, "type": "gone", "pids": ' + b"[" * 5000 + b"]" * 5000 + b"}\n",
]


@pytest.mark.parametrize("said", WRONG)
def test_a_node_that_says_what_is_none_is_lost(
    step: Step, agent: socket.socket, said: bytes
) -> None:
    agent.sendall(said)
    advance_until(step, lambda: not step.intact)
    assert step.lost() == ["gpu1"]
    assert "node gpu1 is gone" in (step.trouble() or "")


def test_what_is_right_is_taken(step: Step, agent: socket.socket) -> None:
    agent.sendall(line("gone", pids=[17]))
    advance_until(step, lambda: step.has_ended(0, 17))
    step.watch(0, [17])
    assert not step.has_ended(0, 17), "another process has the id by now"
    agent.sendall(line("strange") + line("ended", code=-9, left=[]))
    advance_until(step, lambda: not step.intact)
    assert step.lost() == [] and step.exit_code() == -9


@pytest.mark.parametrize("cut", [False, True])
def test_an_agent_that_goes_on_sending_does_not_hold_up_the_tuner(
    nodes: PlayedNodes,
    step: Step,
    agent: socket.socket,
    cut: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the connection by which it was started is gone."""
    monkeypatch.setattr(step_module, "_LAST_SECONDS", 0.3)
    enough, message = threading.Event(), line("gathered")

    def send() -> None:
        while not enough.is_set():
            agent.sendall(message)

    sending = threading.Thread(target=send)
    sending.start()
    if cut:
        nodes.task.over.set()
    advancing = threading.Thread(target=step.advance, daemon=True)
    advancing.start()
    advancing.join(60)
    held = advancing.is_alive()
    enough.set()
    sending.join()
    assert not held and step.intact is not cut
    assert ("the connection to gpu1" in (step.trouble() or "")) is cut


def test_nodes_that_have_not_sent_all_are_told(
    step: Step, agent: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_module, "_GATHER_SECONDS", 0.1)
    NodeRanks(step, tmp_path).gather()
    said = (tmp_path / "launcher.log").read_text()
    assert said == "nodes that did not send all their logs in time: gpu1\n"
    monkeypatch.setattr(step_module, "_GATHER_SECONDS", 60)
    gathering = threading.Thread(target=NodeRanks(step, tmp_path).gather)
    gathering.start()
    while gathering.is_alive():
        agent.sendall(line("gathered"))
        gathering.join(0.05)
    assert (tmp_path / "launcher.log").read_text() == said


SEEN = {"facts": {"gpus": [], "cores": 2, "driver": None}, "left": [], "missing": []}


@pytest.mark.parametrize(
    "changed",
    [
        *({"left": value} for value in ("7", None, 7, [math.inf], ["7"])),
        *({"missing": value} for value in ("/a", None, [7])),
        *({"facts": value} for value in (None, [], {}, {"gpus": None}, {"gpus": [7]})),
        {"facts": {"gpus": [], "usable_gpus": "8"}},
        {"facts": {"gpus": [], "usable_gpus": -1}},
        {"facts": {"gpus": [], "cores": {"a": 1}}},
        {"facts": {"gpus": [], "cores": math.nan}},
        {},
    ],
)
def test_a_node_that_answers_what_is_none_does_not_answer(
    nodes: PlayedNodes, tmp_path: Path, changed: dict[str, Any]
) -> None:
    def answer() -> None:
        assert nodes.begun.wait(60)
        with nodes.dial(node="x") as stranger, nodes.dial() as agent:
            agent.makefile("rb").readline()
            agent.sendall(line("seen", **{**SEEN, **changed}))
            nodes.task.over.set()
            stranger.recv(1)

    answering = threading.Thread(target=answer)
    answering.start()
    try:
        if changed:
            with pytest.raises(StudyError, match="node gpu1 does not answer"):
                look_at_nodes(nodes, "python", tmp_path, {}, StopFlag())
        else:
            found = look_at_nodes(nodes, "python", tmp_path, {}, StopFlag())
            assert found == [SEEN["facts"]]
    finally:
        answering.join()


@pytest.mark.parametrize(
    ("codes", "left", "lost"),
    [
        ({"0": -9, "11": 1}, [17], False),
        ({"x": 1}, [], True),
        ({"-1": 1}, [], True),
        ({"9" * 5000: 1}, [], True),
        ({"0": "1"}, [], True),
        ({"0": math.inf}, [], True),
        ([1], [], True),
        (None, [], True),
        ({}, 7, True),
    ],
)
def test_a_warm_host_that_says_what_is_none_is_lost(codes: Any, left: Any, lost: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(line("ended", codes=codes, left=left))
        host = _Host(Peer(ours, "a warm host"))
        NodeHosts._hear(host, 10.0)
    assert host.lost is lost
    if not lost:
        assert host.ended is not None
        assert (host.ended.codes, host.ended.left) == ({0: -9, 11: 1}, [17])
