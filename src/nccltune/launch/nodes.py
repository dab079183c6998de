"""The launcher for several nodes, plain: for every worker group a torchrun is started on each."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nccltune.launch.cluster import Cluster, task_name
from nccltune.launch.diagnosis import read_end
from nccltune.launch.environment import launch_environment
from nccltune.launch.group import GroupFolder, RankGroup
from nccltune.launch.leftovers import TAG, new_tag
from nccltune.launch.looking import look_at_nodes
from nccltune.launch.plan import LaunchPlan, LaunchSettings, python_variables
from nccltune.launch.step import Step, agent_command
from nccltune.launch.stopping import StopFlag
from nccltune.launch.torchrun import OWN_LOGS

# torch's elastic agent of each node lists the ranks that failed there, by their place in all.
_LISTED = re.compile(
    r"rank\s*: (?P<rank>\d+) \(local_rank: \d+\)\s*\n\s*exitcode\s*: (?P<code>-?\d+)"
)

_NODE = re.compile(r"[0-9]{1,7}")


def torchrun_on_nodes(
    python: str, nodes: int, nproc_per_node: int, head: str, name: str, module: str, logs: Path
) -> tuple[str, ...]:
    """torchrun as each node starts it; the words in braces are filled in there. The head node has
    the store at which the others meet.
    """
    return (
        python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={nodes}",
        f"--nproc-per-node={nproc_per_node}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={head}:{{port}}",
        f"--rdzv-id={name}",
        "--rdzv-conf=is_host={is_host}",
        "--local-addr={address}",
        "--max-restarts=0",
        "--monitor-interval=0.1",
        f"--log-dir={logs}",
        "-m",
        module,
    )


def clean_up(
    cluster: Cluster, settings: LaunchSettings, stop: StopFlag, unclean: list[str]
) -> None:
    """After launches that did not end on every node: end there what has their tags.

    Raises: StudyError naming a node that does not answer, or what cannot be ended; Interrupted.
    """
    if unclean:
        python, worker_path = settings.python, settings.worker_path
        look_at_nodes(cluster, python, worker_path, settings.base, stop, tags=unclean)
        unclean.clear()


@dataclass
class NodesLauncher:
    """Starts ranks on all nodes."""

    settings: LaunchSettings
    stop: StopFlag
    cluster: Cluster
    name: str = field(init=False)
    warnings: list[str] = field(default_factory=list)
    unclean: list[str] = field(default_factory=list)
    """Tags of launches of which something may be left on a node."""

    def __post_init__(self) -> None:
        self.name = f"{self.cluster.kind}-torchrun"

    def plan(
        self,
        process_env: Mapping[str, str],
        log_dir: Path,
        address: str,
        token: str,
        *,
        tag: str,
        probe: bool = False,
    ) -> LaunchPlan:
        """The torchrun command of a node, and what is added to its environment."""
        settings, cluster = self.settings, self.cluster
        added = {
            **settings.rank_variables(process_env, log_dir, address, token, probe),
            **python_variables(cluster.worker_there(settings.worker_path), settings.base),
            TAG: tag,
        }
        argv = torchrun_on_nodes(
            settings.python,
            len(cluster.nodes),
            settings.nproc_per_node,
            cluster.head.address,
            task_name(tag),
            "nccltune.worker",
            log_dir / OWN_LOGS,
        )
        return LaunchPlan(argv, added)

    def whole_plan(self, plan: LaunchPlan) -> LaunchPlan:
        """With what brings it to the nodes, as the tuner starts it."""
        command = agent_command(
            self.settings.python,
            self.settings.worker_path,
            plan.added[TAG],
            plan.argv,
            plan.added,
        )
        return self.cluster.shown(command)

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
        settings = self.settings
        folder = GroupFolder(log_dir, self.cluster.own_address)
        tag, logs = new_tag(), self.cluster.logs_there(folder.path, folder.number)
        address = folder.connection.address
        plan = self.plan(process_env, logs, address, folder.token, tag=tag, probe=probe)
        env = launch_environment(settings.base, settings.site, plan.added)
        log = folder.path / "launcher.log"
        where = (settings.python, settings.worker_path)
        step = Step(self.cluster, *where, plan.argv, env, log, tag)
        step.receive(folder.number, folder.path)
        return RankGroup(
            StepProcesses(step, folder.path, tag, self.unclean),
            folder,
            gpus=settings.gpus,
            watch_memory=settings.watch_memory,
            stop=self.stop,
            warn=self.warnings.append,
        )

    def close(self) -> None: ...


class NodeRanks:
    """Ranks of several machines: the agent of each node watches those that are there."""

    def __init__(self, step: Step, folder: Path) -> None:
        self._step, self._folder = step, folder
        self._nodes: dict[int, int] = {}

    def gather(self) -> None:
        if late := self._step.gather():
            with contextlib.suppress(OSError), (self._folder / "launcher.log").open("a") as log:
                log.write(f"nodes that did not send all their logs in time: {', '.join(late)}\n")

    def _learn(self, pids: Mapping[int, int]) -> None:
        """On which node each of these ranks is, as it has written down itself."""
        found: dict[int, list[int]] = {}
        for rank in pids.keys() - self._nodes.keys():
            words = read_end(self._folder / f"rank{rank}.pid").split()
            if len(words) > 1 and _NODE.fullmatch(words[1]):
                self._nodes[rank] = int(words[1])
                found.setdefault(int(words[1]), []).append(pids[rank])
        for at, watched in found.items():
            self._step.watch(at, watched)

    def lost(self, pids: Mapping[int, int]) -> list[int]:
        self._learn(pids)
        self._step.advance()
        return [
            rank
            for rank, pid in pids.items()
            if rank in self._nodes and self._step.has_ended(self._nodes[rank], pid)
        ]

    def signal(self, pids: Mapping[int, int], number: int) -> list[int]:
        there = [rank for rank in pids if rank not in self.lost(pids)]
        by_node: dict[int, list[int]] = {}
        for rank in there:
            if rank in self._nodes:
                by_node.setdefault(self._nodes[rank], []).append(pids[rank])
        for at, found in by_node.items():
            self._step.signal(at, found, number)
        return there


class StepProcesses(NodeRanks):
    """The torchruns of one step."""

    ready = True

    def __init__(self, step: Step, folder: Path, tag: str, unclean: list[str]) -> None:
        super().__init__(step, folder)
        self._tag, self._unclean = tag, unclean

    def running(self) -> bool:
        self._step.advance()
        return self._step.intact

    @property
    def over(self) -> bool:
        self._step.advance()
        return self._step.over

    @property
    def trouble(self) -> str | None:
        return self._step.trouble()

    @property
    def host_lost(self) -> bool:
        """A node, or the step, and not what its ranks did."""
        return self._step.trouble() is not None

    def exit_codes(self) -> dict[int, int]:
        return exit_codes(self._step.output())

    def exit_code(self) -> int | None:
        return self._step.exit_code()

    def end(self) -> None:
        if not self._step.end():
            self._unclean.append(self._tag)
        shutil.rmtree(self._folder / OWN_LOGS, ignore_errors=True)


def exit_codes(log: str) -> dict[int, int]:
    """Exit codes of ranks from the output of several torchruns. One that was ended for another's
    end is no news of its own.
    """
    found = {int(m["rank"]): int(m["code"]) for m in _LISTED.finditer(log)}
    return dict(sorted(found.items(), key=lambda each: each[1] == -signal.SIGTERM))
