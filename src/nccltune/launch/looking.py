"""A short task that asks every node what it is and ends what is left there."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nccltune.errors import StudyError, UsageError
from nccltune.launch.cluster import Cluster, Command, Task
from nccltune.launch.connection import Listener, Peer, ProtocolError
from nccltune.launch.fields import integer, pids, words
from nccltune.launch.leftovers import TAG, new_tag, temporary_folder
from nccltune.launch.plan import python_variables
from nccltune.launch.stopping import StopFlag
from nccltune.worker import look
from nccltune.worker.node import ADDRESS, TOKEN

_SECONDS = 120.0  # a Python's start from a cold network disk; ranks of a broken node take 10 to end
_POLL_SECONDS = 0.02
_END_SECONDS = 5.0
_MOST_GPUS = 1000


def look_at_nodes(
    cluster: Cluster,
    python: str,
    worker_path: Path,
    base: Mapping[str, str],
    stop: StopFlag,
    *,
    paths: Sequence[str] = (),
    tags: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """What each node is (`worker.look.facts`), in their order. Processes with one of `tags`
    are ended everywhere, and what dead tuners have left on such nodes.

    Raises:
        StudyError: naming the nodes that do not answer, or hold what cannot be ended.
        UsageError: a node does not see one of `paths`.
        Interrupted: the user asked to stop meanwhile.
    """
    with temporary_folder() as folder:
        question = {"paths": list(paths), "tags": list(tags)}
        asked = _Look(cluster, python, worker_path, base, folder / "look.log")
        try:
            found = asked.answers(question, stop)
        finally:
            asked.end()
        silent = [at for at in range(len(cluster.nodes)) if at not in found]
        if silent:
            names = [cluster.nodes[at].name for at in silent]
            raise StudyError(_silent(names, asked.last_words(silent), len(cluster.nodes)))
    for at, node in enumerate(cluster.nodes):
        if left := found[at]["left"]:
            listed = ", ".join(map(str, left))
            raise StudyError(f"node {node.name}: processes cannot be ended: {listed}; look at them")
        if missing := found[at]["missing"]:
            how = (
                "put it on a file system that the nodes share (--studies-dir, --data)"
                if cluster.shares_files
                else "copy it there (rsync), or give --data synthetic"
            )
            raise UsageError(
                f"node {node.name} does not see {missing[0]}: every node has to, under the same "
                f"path; {how}"
            )
    return [dict(found[at]["facts"]) for at in range(len(cluster.nodes))]


class _Look:
    """The task under way. It is told to end when all have answered, or cannot."""

    def __init__(
        self, cluster: Cluster, python: str, worker_path: Path, base: Mapping[str, str], log: Path
    ) -> None:
        token = secrets.token_hex(16)
        self._listener = Listener(token, "", cluster.own_address)
        self._indices = range(len(cluster.nodes))
        env = {
            **base,
            **python_variables(cluster.worker_there(worker_path), base),
            ADDRESS: self._listener.address,
            TOKEN: token,
            TAG: new_tag(),
        }
        name = f"nccltune-look-{secrets.token_hex(4)}"  # of the job
        command = Command(name, python, ("-m", look.__name__), env, worker_path)
        self._task: Task = cluster.start(command, log)
        self._peers: dict[int, Peer] = {}
        self._found: dict[int, dict[str, Any]] = {}

    def answers(self, question: Mapping[str, Any], stop: StopFlag) -> dict[int, dict[str, Any]]:
        """By node, as far as there are any. Raises Interrupted."""
        deadline = time.monotonic() + _SECONDS
        while self._missing() and time.monotonic() < deadline:
            stop.check()
            # before what they have said is looked for
            over = all(self._task.ended(at) for at in self._missing())
            if (
                came := self._listener.accept(0.0 if over else _POLL_SECONDS, "a node")
            ) is not None:
                self._ask(*came, question)
                continue
            self._hear()
            if over:
                break
        return self._found

    def _ask(self, peer: Peer, hello: Mapping[str, Any], question: Mapping[str, Any]) -> None:
        try:
            self._peers[integer(hello, "node", len(self._indices) - 1)] = peer
            peer.send({"type": "look", **question})
        except ProtocolError:
            peer.close()

    def _missing(self) -> list[int]:
        return [at for at in self._indices if at not in self._found]

    def _hear(self) -> None:
        for at, peer in self._peers.items():
            with contextlib.suppress(ProtocolError):
                if at not in self._found and (message := peer.receive(0.0)) is not None:
                    self._found[at] = _seen(message)

    def last_words(self, places: Sequence[int]) -> str:
        return self._task.last_words(places)

    def end(self) -> None:
        for peer in self._peers.values():
            peer.close()
        self._listener.close()
        if self._missing():
            self._task.cancel()
        else:
            self._task.wait(_END_SECONDS)
        self._task.end()


def _seen(message: Mapping[str, Any]) -> dict[str, Any]:
    """A node's answer. Raises ProtocolError where it is none."""
    facts = message.get("facts")
    if not isinstance(facts, dict) or not all(map(_is_fact, facts.values())):
        raise ProtocolError("facts are none")
    words(facts, "gpus")
    if facts.get("usable_gpus") is not None:
        integer(facts, "usable_gpus", _MOST_GPUS)
    return {"facts": facts, "left": pids(message, "left"), "missing": words(message, "missing")}


def _is_fact(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(each, str) for each in value)
    return value is None or isinstance(value, str | int)


def _silent(names: Sequence[str], said: str, of: int) -> str:
    which = f"node {names[0]} does" if len(names) == 1 else f"nodes {', '.join(names)} do"
    rest = (
        ""
        if len(names) == of
        else "; for the rest, in an allocation without it, give the study's name (--study) and "
        "--accept-machine"
    )
    return (
        f"{which} not answer: {said}\nwhat was measured is saved; when it is back the same command "
        f"goes on{rest}"
    )
