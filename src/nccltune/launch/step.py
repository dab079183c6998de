"""A command on all nodes as the tuner sees it: an agent on each that starts it there and ends it
(`nccltune.worker.node` is the other side).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nccltune.launch.cluster import Cluster, Command, task_name
from nccltune.launch.connection import Listener, Peer, ProtocolError
from nccltune.launch.fields import LARGEST_PORT, exit_code, integer, pids
from nccltune.launch.inbox import Inbox
from nccltune.launch.leftovers import end_tagged
from nccltune.worker import node as agent

_END_SECONDS = 15.0  # for agents to end what is theirs, and a moment for the network
_TASK_SECONDS = 5.0
_HEAR_SECONDS = 0.2  # of one agent, until it is the next one's turn
_LAST_QUIET, _LAST_SECONDS = (
    1.0,
    5.0,
)  # for an agent's last words: they take another way than its end
_GATHER_SECONDS = 5.0
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

    gathered: bool = False
    """Whether it has sent all that ranks had written when it was asked to."""

    @property
    def open(self) -> bool:
        return not self.ended and not self.lost


def agent_command(
    python: str, worker_path: Path, tag: str, command: Sequence[str], env: Mapping[str, str]
) -> Command:
    """An agent on each node for this command."""
    words = ("-m", agent.__name__, "--", *command)
    return Command(task_name(tag), python, words, env, worker_path)


class Step:
    """The command on each node; it may have {port}, {is_host} and {address} in its words."""

    def __init__(
        self,
        cluster: Cluster,
        python: str,
        worker_path: Path,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        tag: str,
    ) -> None:
        self._cluster, self._tag = cluster, tag
        self._agents, self._inbox = dict[int, Agent](), Inbox()
        token = secrets.token_hex(16)
        self._listener = Listener(token, "", cluster.own_address)
        told = {**env, agent.ADDRESS: self._listener.address, agent.TOKEN: token}
        self._started = self._over = False
        self._failed_to_end: list[str] = []
        self._cut_off: set[int] = set()
        agents = agent_command(python, worker_path, tag, command, told)
        self._task = cluster.start(agents, log)

    def advance(self) -> None:
        """Hear what there is; start the command once every node is there."""
        if self._over:
            return
        while (found := self._listener.accept(0.0, "a node")) is not None:
            self._welcome(*found)
        if not self._started and len(self._agents) == len(self._cluster.nodes):
            self._started = True
            self._start()
        for at, each in self._agents.items():
            self._hear(at)
            if each.open and at not in self._cut_off and self._task.ended(at):
                self._hear(at, _LAST_QUIET, _LAST_SECONDS)
                if each.open:
                    self._cut_off.add(at)

    def _welcome(self, peer: Peer, hello: Mapping[str, Any]) -> None:
        try:
            at = integer(hello, "node", len(self._cluster.nodes) - 1)
            self._agents[at] = Agent(peer, integer(hello, "port", LARGEST_PORT))
        except ProtocolError:
            peer.close()

    def _start(self) -> None:
        port = self._agents[0].port
        for at, node in enumerate(self._cluster.nodes):
            values = {"port": port, "is_host": int(at == 0), "address": node.address}
            self._tell(at, {"type": "start", "values": values})

    def _tell(self, at: int, message: Mapping[str, Any]) -> None:
        try:
            self._agents[at].peer.send(message)
        except ProtocolError:
            self._agents[at].lost = True

    def _hear(self, at: int, quiet: float = 0.0, most: float = _HEAR_SECONDS) -> None:
        """Until nothing has come for `quiet` seconds, and for `most` where it goes on coming."""
        each, until = self._agents[at], time.monotonic() + most
        try:
            while each.open and (left := until - time.monotonic()) > 0:
                message = each.peer.receive(min(quiet, left))
                if message is None:
                    return
                self._take(at, message)
        except ProtocolError:
            each.lost = True

    def _take(self, at: int, message: Mapping[str, Any]) -> None:
        each = self._agents[at]
        if message["type"] == "ended":
            each.code, each.left = exit_code(message, "code"), pids(message, "left")
            each.ended = True
        elif message["type"] == "gone":
            each.gone |= set(pids(message, "pids"))
        elif message["type"] == "gathered":
            each.gathered = True
        elif message["type"] == "file":
            self._inbox.take(at, message)

    @property
    def intact(self) -> bool:
        """Whether all nodes are connected, and no node's part is over."""
        parts = all(each.open for each in self._agents.values())
        return parts and not any(self._task.ended(at) for at in self._indices())

    @property
    def over(self) -> bool:
        """Whether it has ended on all nodes, so that what they printed is here, or will not begin
        on all of them.
        """
        ended = [self._task.ended(at) for at in self._indices()]
        return all(ended) or (any(ended) and not self._started)

    @property
    def started(self) -> bool:
        """Whether every node has begun with the command."""
        return self._started

    def output(self) -> str:
        """What was printed on all nodes."""
        return self._task.output()

    def there(self, at: int, text: str) -> str:
        """With what only that node has in place of names in braces."""
        return self._task.there(at, text)

    def receive(self, number: int, folder: Path) -> None:
        """Bring what the ranks of that launch write on the nodes to this folder, where nodes share
        no files.
        """
        if not self._cluster.shares_files:
            self._inbox.expect(number, folder)

    def gather(self) -> list[str]:
        """See all in that folder that ranks have written up to now. Returns the nodes that have not
        sent all in time.
        """
        if self._cluster.shares_files or self._over or not self._started:
            return []
        for at, each in self._agents.items():
            each.gathered = False
            if each.open:
                self._tell(at, {"type": "gather"})
        self._hear_all(lambda each: not each.gathered, _GATHER_SECONDS)
        return self._named(at for at, each in self._agents.items() if not each.gathered)

    def forget(self, number: int) -> None:
        """That launch is over: what it has left in files on the nodes can go."""
        if self._inbox.forget(number):
            for at, each in self._agents.items():
                if each.open:
                    self._tell(at, {"type": "forget", "number": number})

    def exit_code(self) -> int | None:
        """The first that is not 0 of the commands, else that of what started them."""
        codes = [each.code for each in self._agents.values() if each.code]
        return codes[0] if codes else self._task.code()

    def has_ended(self, at: int, pid: int) -> bool:
        """Whether that process, watched on that node, or all of the node's part is over."""
        if at not in self._agents:
            return False
        return not self._agents[at].open or pid in self._agents[at].gone

    def watch(self, at: int, watched: Sequence[int]) -> None:
        """Hear when one of these descendants of the command on that node ends."""
        if at in self._agents and self._agents[at].open:
            self._agents[at].gone -= set(watched)  # ids come again
            self._tell(at, {"type": "watch", "pids": list(watched)})

    def signal(self, at: int, wanted: Sequence[int], number: int) -> None:
        """Send a signal to these descendants of the command on that node."""
        if at in self._agents and self._agents[at].open:
            self._tell(at, {"type": "signal", "pids": list(wanted), "number": number})

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the command on every node, and wait for nothing."""
        for at, each in self._agents.items():
            if each.open:
                self._tell(at, {"type": "stop"})

    def lost(self) -> list[str]:
        """The nodes whose agents are gone without a word, or did not end what is theirs."""
        found = {at for at, each in self._agents.items() if each.lost or each.left}
        named = self._named(sorted(found))
        return [*named, *(name for name in self._failed_to_end if name not in named)]

    @property
    def cancelled(self) -> bool:
        """Whether somebody else ended it."""
        return any(each.code == agent.CANCELLED for each in self._agents.values())

    def trouble(self) -> str | None:
        """What happened to it, where it is not the ranks' own doing."""
        gone, said = self.lost(), self._task.last_words(self._indices())
        if gone:
            nodes = f"node {gone[0]} is" if len(gone) == 1 else f"nodes {', '.join(gone)} are"
            return f"{nodes} gone: what was started there ended without a word ({said})"
        if self.cancelled:
            return "the launch was cancelled by somebody else"
        if self._cut_off:
            cut = ", ".join(self._named(sorted(self._cut_off)))
            return f"the connection to {cut}, by which the launch was started, is gone ({said})"
        if not self._started and (self.over or self._over):
            absent = [at for at in self._indices() if at not in self._agents]
            missing = [at for at in absent if self._task.ended(at)] or absent
            said = self._task.last_words(missing)
            return f"nothing began on {', '.join(self._named(missing))}: {said}{_hint(said)}"
        return None

    def _indices(self) -> range:
        return range(len(self._cluster.nodes))

    def _named(self, places: Iterable[int]) -> list[str]:
        return [self._cluster.nodes[at].name for at in places]

    def _hear_all(self, wanted: Callable[[Agent], bool], seconds: float) -> None:
        """Hear all that are there for as long as something is wanted of one of them."""
        deadline = time.monotonic() + seconds
        while any(each.open and wanted(each) for each in self._agents.values()):
            if time.monotonic() > deadline:
                return
            for at in self._agents:
                self._hear(at)
            time.sleep(0.005)

    def end(self) -> bool:
        """End the command with every descendant on every node. False where a node did not confirm
        that, or may be gone: then it has to be looked at.
        """
        if self._over:
            return not self.lost()
        for each in self._agents.values():
            if each.open:
                each.peer.finish()
        self._hear_all(lambda each: True, _END_SECONDS)
        self._failed_to_end = self._named(at for at, each in self._agents.items() if each.open)
        self._over = True
        clean = self._started and not self.lost() and not self._cut_off
        if not clean:
            self._task.cancel()
        self._task.wait(_TASK_SECONDS)
        self._task.end()
        end_tagged(self._tag)
        for each in self._agents.values():
            each.peer.close()
        self._listener.close()
        return clean

    def last_words(self) -> str:
        return self._task.last_words(self._indices())


def _hint(said: str) -> str:
    if _NO_WORKER not in said:
        return ""
    return (
        "; every node has to see the folder of the study and the job's Python under the same path "
        "(--studies-dir, --python)"
    )
