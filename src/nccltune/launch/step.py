"""A job step over the nodes of an allocation as the tuner sees it: an agent on each node that
starts its command there and ends it (`nccltune.worker.node` is the other side).
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nccltune.errors import StudyError
from nccltune.launch.connection import Listener, Peer, ProtocolError
from nccltune.launch.diagnosis import read_end
from nccltune.launch.leftovers import end_tagged
from nccltune.launch.slurm import Allocation, cancel_steps, srun_argv, step_environment, step_name
from nccltune.launch.supervised import Supervised
from nccltune.worker import node as agent

_END_SECONDS = 15.0  # for agents to end what is theirs, and a moment for the network
_SRUN_SECONDS = 5.0
_LAST_BYTES = 1 << 14
_TELLING = re.compile(r"error|fatal|cannot|no module|killed", re.IGNORECASE)
_NO_WORKER = "No module named"


@dataclass
class Agent:
    """What one node said. `code` is how its command ended, `left` what could not be ended there."""

    peer: Peer
    port: int
    ended: bool = False
    lost: bool = False
    code: int | None = None
    left: list[int] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    """Of the processes that it watches, those that have ended."""

    @property
    def open(self) -> bool:
        return not self.ended and not self.lost


def agent_argv(python: str, command: Sequence[str]) -> tuple[str, ...]:
    return (python, "-m", agent.__name__, "--", *command)


class Step:
    """One task on each node. `command` may have {port}, {is_host} and {address} in its words."""

    def __init__(
        self,
        allocation: Allocation,
        python: str,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        tag: str,
    ) -> None:
        self._allocation, self._log, self._tag = allocation, log, tag
        self._name, self._agents = step_name(tag), dict[int, Agent]()
        token = secrets.token_hex(16)
        self._listener = Listener(token, "", allocation.own_address)
        self._env = {
            **step_environment(env),
            agent.ADDRESS: self._listener.address,
            agent.TOKEN: token,
        }
        self._started = self._over = False
        self._failed_to_end: list[str] = []
        argv = srun_argv(allocation, self._name, agent_argv(python, command))
        self._srun = Supervised(argv, self._env, log)

    def advance(self) -> None:
        """Hear what there is; start the command once every node is there."""
        if self._over:
            return
        while (found := self._listener.accept(0.0, "a node")) is not None:
            peer, hello = found
            self._agents[int(hello["node"])] = Agent(peer, int(hello["port"]))
        if not self._started and len(self._agents) == len(self._allocation.nodes):
            self._started = True
            self._start()
        for each in self._agents.values():
            self._hear(each)

    def _start(self) -> None:
        port = self._agents[0].port
        for at, node in enumerate(self._allocation.nodes):
            values = {"port": port, "is_host": int(at == 0), "address": node.address}
            self._tell(at, {"type": "start", "values": values})

    def _tell(self, at: int, message: Mapping[str, Any]) -> None:
        try:
            self._agents[at].peer.send(message)
        except ProtocolError:
            self._agents[at].lost = True

    @staticmethod
    def _hear(each: Agent) -> None:
        try:
            while each.open and (message := each.peer.receive(0.0)) is not None:
                if message["type"] == "ended":
                    each.ended = True
                    each.code, each.left = message["code"], list(message["left"])
                elif message["type"] == "gone":
                    each.gone |= set(message["pids"])
        except ProtocolError:
            each.lost = True

    @property
    def intact(self) -> bool:
        """Whether srun runs, and no node's part of the step is over."""
        return self._srun.poll() is None and all(each.open for each in self._agents.values())

    @property
    def over(self) -> bool:
        """Whether srun has ended: all that ranks print is in the log then."""
        return self._srun.poll() is not None

    @property
    def started(self) -> bool:
        """Whether every node has begun with the command."""
        return self._started

    def exit_code(self) -> int | None:
        """The first that is not 0 of the commands, else srun's own."""
        codes = [each.code for each in self._agents.values() if each.code]
        return codes[0] if codes else self._srun.poll()

    def has_ended(self, at: int, pid: int) -> bool:
        """Whether that process, watched on that node, or all of the node's part is over."""
        if at not in self._agents:
            return False
        return not self._agents[at].open or pid in self._agents[at].gone

    def watch(self, at: int, pids: Sequence[int]) -> None:
        """Hear when one of these descendants of the command on that node ends."""
        if at in self._agents and self._agents[at].open:
            self._tell(at, {"type": "watch", "pids": list(pids)})

    def signal(self, at: int, pids: Sequence[int], number: int) -> None:
        """Send a signal to these descendants of the command on that node."""
        if at in self._agents and self._agents[at].open:
            self._tell(at, {"type": "signal", "pids": list(pids), "number": number})

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the command on every node, and wait for nothing."""
        for at, each in self._agents.items():
            if each.open:
                self._tell(at, {"type": "stop"})

    def missing(self) -> list[str]:
        """The nodes on which nothing has begun."""
        return self._named(at for at in self._indices() if at not in self._agents)

    def lost(self) -> list[str]:
        """The nodes whose agents are gone without a word, or did not end what is theirs."""
        found = {at for at, each in self._agents.items() if each.lost or each.left}
        named = self._named(sorted(found))
        return [*named, *(name for name in self._failed_to_end if name not in named)]

    @property
    def cancelled(self) -> bool:
        """Whether somebody else ended the step."""
        return any(each.code == agent.CANCELLED for each in self._agents.values())

    def trouble(self) -> str | None:
        """What happened to the step, where it is not the ranks' own doing."""
        gone, said = self.lost(), self.last_words()
        if gone:
            nodes = f"node {gone[0]} is" if len(gone) == 1 else f"nodes {', '.join(gone)} are"
            return f"{nodes} gone: the job step ended there without a word ({said})"
        if self.cancelled:
            return "the job step was cancelled, by somebody else or by Slurm"
        if not self._started and (self.over or self._over):
            missing = ", ".join(self.missing())
            return f"the job step did not begin on {missing}: {said}{_hint(said)}"
        return None

    def last_words(self) -> str:
        """What srun said last that tells something."""
        return last_words(self._log)

    def _indices(self) -> range:
        return range(len(self._allocation.nodes))

    def _named(self, places: Any) -> list[str]:
        return [self._allocation.nodes[at].name for at in places]

    def end(self) -> bool:
        """End the command with every descendant on every node. False where a node did not confirm
        that: then something may be left there.
        """
        if self._over:
            return not self.lost()
        for each in self._agents.values():
            if each.open:
                each.peer.finish()
        deadline = time.monotonic() + _END_SECONDS
        while any(each.open for each in self._agents.values()) and time.monotonic() < deadline:
            for each in self._agents.values():
                self._hear(each)
            time.sleep(0.005)
        self._failed_to_end = self._named(at for at, each in self._agents.items() if each.open)
        self._over = True
        clean = self._started and not self.lost()
        if not clean:
            with contextlib.suppress(StudyError):  # what is left is looked for anyway
                cancel_steps(self._allocation, self._name, self._env)
        self._srun.wait(_SRUN_SECONDS)
        self._srun.end()
        end_tagged(self._tag)
        for each in self._agents.values():
            each.peer.close()
        self._listener.close()
        return clean


def last_words(log: Path) -> str:
    """What srun and its tasks printed last that tells something, on one line."""
    lines = read_end(log, _LAST_BYTES).strip().splitlines()
    telling = [line for line in lines if _TELLING.search(line)] or lines
    return " | ".join(line.strip() for line in telling[-3:])[-400:] or "srun printed nothing"


def _hint(said: str) -> str:
    if _NO_WORKER not in said:
        return ""
    return (
        "; every node has to see the folder of the study and the job's Python under the same path "
        "(--studies-dir, --python)"
    )
