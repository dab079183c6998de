"""A short job step that asks every node of an allocation what it is and ends what is left there."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nccltune.errors import StudyError, UsageError
from nccltune.launch.connection import Listener, Peer, ProtocolError
from nccltune.launch.leftovers import temporary_folder
from nccltune.launch.plan import python_variables
from nccltune.launch.slurm import Allocation, cancel_steps, srun_argv, step_environment
from nccltune.launch.step import last_words
from nccltune.launch.stopping import StopFlag
from nccltune.launch.supervised import Supervised
from nccltune.worker import look
from nccltune.worker.node import ADDRESS, TOKEN

_SECONDS = 120.0  # a Python's start from a cold network disk; ranks of a broken node take 10 to end
_POLL_SECONDS = 0.02


def look_at_nodes(
    allocation: Allocation,
    python: str,
    worker_path: Path,
    base: Mapping[str, str],
    stop: StopFlag,
    *,
    paths: Sequence[str] = (),
    tags: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """What each node is (`worker.look.facts`), in the allocation's order. Processes with one of
    `tags` are ended everywhere, and what dead tuners have left in this job.

    Raises:
        StudyError: naming the nodes that do not answer, or hold what cannot be ended.
        UsageError: a node does not see one of `paths`.
        Interrupted: the user asked to stop meanwhile.
    """
    with temporary_folder() as folder:
        found, said = _ask(
            allocation,
            python,
            worker_path,
            base,
            stop,
            folder / "srun.log",
            {
                "paths": list(paths),
                "tags": list(tags),
            },
        )
    silent = [node.name for at, node in enumerate(allocation.nodes) if at not in found]
    if silent:
        raise StudyError(_silent(silent, said, len(allocation.nodes)))
    for at, node in enumerate(allocation.nodes):
        if left := found[at]["left"]:
            listed = ", ".join(map(str, left))
            raise StudyError(f"node {node.name}: processes cannot be ended: {listed}; look at them")
        if missing := found[at]["missing"]:
            raise UsageError(
                f"node {node.name} does not see {missing[0]}: every node has to, under the same "
                "path; put it on a file system that the nodes share (--studies-dir, --data)"
            )
    return [dict(found[at]["facts"]) for at in range(len(allocation.nodes))]


def _ask(
    allocation: Allocation,
    python: str,
    worker_path: Path,
    base: Mapping[str, str],
    stop: StopFlag,
    log: Path,
    question: Mapping[str, Any],
) -> tuple[dict[int, dict[str, Any]], str]:
    """The answers by node, as far as there are any, and what srun said last."""
    token, name = secrets.token_hex(16), f"nccltune-look-{secrets.token_hex(4)}"  # of the job
    listener = Listener(token, "", allocation.nodes[allocation.here].address)
    env = {
        **step_environment(base),
        **python_variables(worker_path, base),
        ADDRESS: listener.address,
        TOKEN: token,
    }
    argv = srun_argv(allocation, name, (python, "-m", look.__name__))
    srun = Supervised(argv, env, log)
    peers: dict[int, Peer] = {}
    found: dict[int, dict[str, Any]] = {}
    deadline = time.monotonic() + _SECONDS
    try:
        while len(found) < len(allocation.nodes) and time.monotonic() < deadline:
            stop.check()
            over = srun.poll() is not None
            if (came := listener.accept(0.0 if over else _POLL_SECONDS, "a node")) is not None:
                at = int(came[1]["node"])
                peers[at] = came[0]
                with contextlib.suppress(ProtocolError):
                    peers[at].send({"type": "look", **question})
                continue
            _hear(peers, found)
            if over:
                break
    finally:
        for peer in peers.values():
            peer.close()
        listener.close()
        if len(found) < len(allocation.nodes):
            with contextlib.suppress(StudyError):
                cancel_steps(allocation, name, env)
        else:
            srun.wait(5.0)
        srun.end()
    return found, last_words(log)


def _hear(peers: Mapping[int, Peer], found: dict[int, dict[str, Any]]) -> None:
    for at, peer in peers.items():
        with contextlib.suppress(ProtocolError):
            if at not in found and (message := peer.receive(0.0)) is not None:
                found[at] = message


def _silent(names: Sequence[str], said: str, of: int) -> str:
    which = f"node {names[0]} does" if len(names) == 1 else f"nodes {', '.join(names)} do"
    rest = (
        ""
        if len(names) == of
        else "; for the rest, in an allocation without it, give the study's name (--study) and "
        "--accept-machine"
    )
    return (
        f"{which} not start job steps any more: {said}\nwhat was measured is saved; when it is "
        f"back the same command goes on{rest}"
    )
