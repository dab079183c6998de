"""Warm hosts on all nodes, started once: a launch then costs no start of a process over the network
and no import.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nccltune.launch.cluster import Cluster, task_name
from nccltune.launch.connection import Listener, Peer, ProtocolError
from nccltune.launch.environment import launch_environment
from nccltune.launch.fields import LARGEST_PORT, exit_codes, integer, pids
from nccltune.launch.group import GroupFolder, RankGroup
from nccltune.launch.host import HOST_MODULE
from nccltune.launch.leftovers import TAG, new_tag, own_folder
from nccltune.launch.nodes import NodeRanks, clean_up
from nccltune.launch.plan import LaunchSettings, python_variables
from nccltune.launch.processes import Processes
from nccltune.launch.step import Step
from nccltune.launch.warm import Host, WarmLauncher

_END_SECONDS = 15.0
_PORT_SECONDS = 10.0
_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class _Ended:
    """Exit codes by rank, and what could not be ended."""

    codes: Mapping[int, int]
    left: Sequence[int]


@dataclass
class _Host:
    """The host of one node, and how its part of the group under way has ended."""

    peer: Peer
    ended: _Ended | None = None
    lost: bool = False


class NodeHosts:
    """A warm host on each node. `early` are the variables that a process reads when it starts."""

    def __init__(
        self,
        cluster: Cluster,
        settings: LaunchSettings,
        early: Mapping[str, str],
        unclean: list[str],
    ) -> None:
        """`unclean` gets the step's tag where something of it may be left on a node."""
        self._unclean = unclean
        self.early = dict(early)
        self.busy = False
        self.cluster = cluster
        self._hosts: dict[int, _Host] = {}
        self._folder = own_folder()
        self._words: str | None = None
        self.tag = new_tag()
        token = secrets.token_hex(16)
        self._listener = Listener(token, "", cluster.own_address)
        added = {
            **early,
            **python_variables(cluster.worker_there(settings.worker_path), settings.base),
            "NCCLTUNE_ADDRESS": self._listener.address,
            "NCCLTUNE_TOKEN": token,
            TAG: self.tag,
        }
        env = launch_environment(settings.base, settings.site, added)
        command = (settings.python, "-m", HOST_MODULE)
        where, log = (settings.python, settings.worker_path), self._folder / "step.log"
        self.step = Step(cluster, *where, command, env, log, self.tag)

    @property
    def alive(self) -> bool:
        self.step.advance()
        return (
            self._words is None
            and self.step.intact
            and not any(host.lost for host in self._hosts.values())
        )

    @property
    def ready(self) -> bool:
        """Whether all have come up; stays true after their end."""
        return len(self._hosts) == len(self.cluster.nodes)

    def advance(self) -> None:
        """Notice when a host has come up, and what it says."""
        if self._words is not None:  # after the end
            return
        self.step.advance()
        while not self.ready and (came := self._listener.accept(0.0, "a warm host")) is not None:
            peer, hello = came
            try:
                self._hosts[integer(hello, "node", len(self.cluster.nodes) - 1)] = _Host(peer)
            except ProtocolError:
                peer.close()
        for host in self._hosts.values():
            self._hear(host, 0.0)

    @staticmethod
    def _hear(host: _Host, seconds: float) -> Mapping[str, Any] | None:
        try:
            message = None if host.lost else host.peer.receive(seconds)
            if message is not None and message["type"] == "ended":
                host.ended = _Ended(exit_codes(message, "codes"), pids(message, "left"))
        except ProtocolError:
            host.lost = True
            return None
        return message

    def open(self, order: Mapping[str, Any], name: str) -> None:
        """Have every host start its part of a group. Raises ProtocolError when one is gone."""
        for host in self._hosts.values():
            host.ended = None
        port = self._port()
        nodes = self.cluster.nodes
        for at, node in enumerate(nodes):
            meeting = {
                "nodes": len(nodes),
                "endpoint": f"{nodes[0].address}:{port}",
                "is_host": at == 0,
                "address": node.address,
                "name": name,
            }
            self._hosts[at].peer.send({**self._order_there(at, order), "meeting": meeting})

    def _order_there(self, at: int, order: Mapping[str, Any]) -> dict[str, Any]:
        """With the folder that the node has for the group's logs."""
        filled = {n: self.step.there(at, value) for n, value in order["environment"].items()}
        return {
            **order,
            "environment": filled,
            "log_dir": self.step.there(at, order["log_dir"]),
        }

    def _port(self) -> int:
        """One that is free on the head node."""
        head = self._hosts[0]
        head.peer.send({"type": "port"})
        deadline = time.monotonic() + _PORT_SECONDS
        while time.monotonic() < deadline and not head.lost:
            message = self._hear(head, _POLL_SECONDS)
            if message is not None and message["type"] == "port":
                return integer(message, "port", LARGEST_PORT)
        raise ProtocolError("the warm host of the head node does not answer")

    def end_group(self) -> bool:
        """Have every host end its part. False where one did not, or is gone."""
        for host in self._hosts.values():
            if host.ended is None and not host.lost:
                try:
                    host.peer.send({"type": "end"})
                except ProtocolError:
                    host.lost = True
        deadline = time.monotonic() + _END_SECONDS
        while any(host.ended is None for host in self._hosts.values()) and self.alive:
            if time.monotonic() > deadline:
                return False
            self.advance()
            time.sleep(_POLL_SECONDS)
        ended = [host.ended for host in self._hosts.values()]
        return bool(ended) and all(each is not None and not each.left for each in ended)

    def group_ended(self) -> list[bool]:
        """Whether the group is over on each node, by node; of those that have come up."""
        return [host.ended is not None for host in self._hosts.values()]

    def codes(self) -> dict[int, int]:
        """Exit codes by rank, as far as hosts have told them."""
        found: dict[int, int] = {}
        for host in self._hosts.values():
            if host.ended is not None:
                found |= host.ended.codes
        return found

    def last_words(self) -> str:
        return self._words if self._words is not None else self.step.last_words()

    def end(self) -> None:
        """End the step with all that descends from it. Can be called again."""
        if self._words is not None:
            return
        self._words = self.last_words()
        if not self.step.end():
            self._unclean.append(self.tag)
        for host in self._hosts.values():
            host.peer.close()
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class NodeWarmProcesses(NodeRanks):
    """One worker group of warm hosts on several nodes."""

    def __init__(self, hosts: NodeHosts, order: Mapping[str, Any], folder: GroupFolder) -> None:
        super().__init__(hosts.step, folder.path)
        self._hosts, self._order, self._number = hosts, order, folder.number
        self._name = task_name(new_tag())
        hosts.step.receive(folder.number, folder.path)
        self._sent = self._lost = False
        hosts.busy = True
        self.running()

    @property
    def ready(self) -> bool:
        return self._hosts.ready

    @property
    def host_lost(self) -> bool:
        return self._lost

    @property
    def trouble(self) -> str | None:
        return self._hosts.step.trouble()

    def running(self) -> bool:
        self._advance()
        return not self._lost and not (self._sent and any(self._hosts.group_ended()))

    @property
    def over(self) -> bool:
        self._advance()
        return self._lost or (self._sent and all(self._hosts.group_ended()))

    def _advance(self) -> None:
        if self._lost:
            return
        self._hosts.advance()
        if self._hosts.ready and not self._sent:
            try:
                self._hosts.open(self._order, self._name)
                self._sent = True
            except ProtocolError:
                self._lost = True
        self._lost = self._lost or not self._hosts.alive

    def exit_codes(self) -> dict[int, int]:
        codes = self._hosts.codes()
        return dict(sorted(codes.items(), key=lambda each: each[1] < 0))

    def exit_code(self) -> int | None:
        return None

    def end(self) -> None:
        """Let the hosts end the group. Where they cannot, everything is ended with them."""
        ended = self._sent and not self._lost and self._hosts.end_group()
        self.gather()
        self._hosts.step.forget(self._number)
        if not ended:
            self._hosts.end()
            with contextlib.suppress(OSError), (self._folder / "launcher.log").open("a") as log:
                said = self._hosts.last_words()
                log.write(f"the warm hosts were ended; what started them said last: {said}\n")
        self._hosts.busy = False


@dataclass
class WarmNodesLauncher(WarmLauncher):
    """Starts ranks on all nodes, from hosts that have torch imported."""

    cluster: Cluster = field(kw_only=True)
    unclean: list[str] = field(default_factory=list)
    """Tags of steps of which something may be left on a node."""

    def __post_init__(self) -> None:
        self.name = self.cluster.kind

    def open(
        self,
        process_env: Mapping[str, str],
        log_dir: Path,
        *,
        probe: bool = False,
        placed: Mapping[str, str] | None = None,
    ) -> RankGroup:
        """Raises StudyError, naming it, when a node has gone for good; Interrupted."""
        clean_up(self.cluster, self.settings, self.stop, self.unclean)
        return super().open(process_env, log_dir, probe=probe, placed=placed)

    @property
    def _reached_as(self) -> str:
        return self.cluster.own_address

    def _start(self, early: Mapping[str, str]) -> Host:
        return NodeHosts(self.cluster, self.settings, early, self.unclean)

    def _logs_there(self, folder: GroupFolder) -> Path:
        return self.cluster.logs_there(folder.path, folder.number)

    def _processes(
        self, host: Host, order: Mapping[str, Any], own: Mapping[str, str], folder: GroupFolder
    ) -> Processes:
        assert isinstance(host, NodeHosts)
        return NodeWarmProcesses(host, order, folder)
