"""The warm launcher: worker groups from a process that has torch imported once, so that a launch
costs what CUDA and NCCL cost and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nccltune.errors import StudyError
from nccltune.launch.environment import refuse_overrides
from nccltune.launch.group import GroupFolder, RankGroup
from nccltune.launch.host import WarmHost, WarmProcesses
from nccltune.launch.plan import LaunchSettings
from nccltune.launch.processes import Processes
from nccltune.launch.script import ScriptGroup, ScriptRun
from nccltune.launch.stopping import StopFlag

# Read by libraries when a group is made, or by CUDA and NCCL at their first call in a rank. What is
# not known to be read late counts as read when a process starts, by the loader, OpenMP or torch.
_LATE = (
    *("NCCL_", "TORCH_NCCL_", "TORCH_SYMM_MEM_", "NVSHMEM_", "GLOO_", "CUDA_", "CUBLAS_"),
    *("FI_", "OFI_", "UCX_", "NCCLTUNE_"),
)
_HOSTS = 2  # kept at most: what is compared may differ in what a host is started with


def early_variables(
    process_env: Mapping[str, str], base: Mapping[str, str], nproc_per_node: int
) -> dict[str, str]:
    """Those that a process reads when it starts, so that a host must be started with them.
    OMP_NUM_THREADS is set as torchrun would.
    """
    early = {n: v for n, v in process_env.items() if not n.startswith(_LATE)}
    if nproc_per_node > 1 and "OMP_NUM_THREADS" not in base:
        early.setdefault("OMP_NUM_THREADS", "1")
    return early


class Host(Protocol):
    """A warm host, or one on each node. `early` are the variables that it was started with; `busy`
    is for whoever has a group in it.
    """

    early: dict[str, str]
    busy: bool

    @property
    def alive(self) -> bool: ...
    @property
    def ready(self) -> bool: ...
    def last_words(self) -> str: ...
    def end(self) -> None: ...


@dataclass
class WarmLauncher:
    """Keeps warm hosts; each has one worker group at a time, two where groups take turns."""

    name = "warm"

    settings: LaunchSettings
    stop: StopFlag
    hosts: list[Host] = field(default_factory=list)
    script: ScriptRun | None = None
    """The user's own script, run in ranks that have torch imported already."""
    warnings: list[str] = field(default_factory=list)
    _fruitless: int = 0

    def open(
        self,
        process_env: Mapping[str, str],
        log_dir: Path,
        *,
        probe: bool = False,
        placed: Mapping[str, str] | None = None,
    ) -> RankGroup:
        settings = self.settings
        refuse_overrides(settings.site, process_env)
        early = early_variables(process_env, settings.base, settings.nproc_per_node)
        plain = early_variables({}, settings.base, settings.nproc_per_node)
        own = {name: value for name, value in early.items() if plain.get(name) != value}
        host = self._host(early)
        folder = GroupFolder(log_dir, self._reached_as)
        late = {name: value for name, value in process_env.items() if name not in early}
        logs = self._logs_there(folder)
        order: dict[str, Any] = {
            "type": "open",
            "nproc_per_node": settings.nproc_per_node,
            "log_dir": str(logs),
            "environment": settings.rank_variables(
                late, logs, folder.connection.address, folder.token, probe
            ),
        }
        given: dict[str, Any] = {
            "gpus": settings.gpus,
            "watch_memory": settings.watch_memory,
            "stop": self.stop,
            "warn": self.warnings.append,
        }
        if self.script is None:
            return RankGroup(self._processes(host, order, own, folder), folder, **given)
        workdir, cwd = self.script.place(folder.path)
        order["environment"] |= self.script.variables(settings.base, folder.path)
        order["script"] = {
            "arguments": list(self.script.command.filled(placed or {})),
            "python_path": settings.base.get("PYTHONPATH"),
            "cwd": None if cwd is None else str(cwd),
        }
        processes = self._processes(host, order, own, folder)
        return ScriptGroup(folder, workdir, processes=processes, **given)

    @property
    def _reached_as(self) -> str | None:
        """By which address ranks reach this machine from others; None: all of them are here."""
        return None

    def _logs_there(self, folder: GroupFolder) -> Path:
        """Where ranks write what is to be in that folder."""
        return folder.path

    def _start(self, early: Mapping[str, str]) -> Host:
        settings = self.settings
        return WarmHost(settings.python, settings.worker_path, settings.base, settings.site, early)

    def _processes(
        self, host: Host, order: Mapping[str, Any], own: Mapping[str, str], folder: GroupFolder
    ) -> Processes:
        assert isinstance(host, WarmHost)
        return WarmProcesses(host, order, own)

    def _host(self, early: Mapping[str, str]) -> Host:
        """An idle host that was started with these variables: one that is there, or a new one, for
        which the one that was not used for longest may have to go.

        Raises: StudyError when hosts do not come up any more.
        """
        plain = early_variables({}, self.settings.base, self.settings.nproc_per_node)
        idle = [host for host in self.hosts if not host.busy]
        for host in idle:
            if host.alive and host.early == early:
                self.hosts.append(self.hosts.pop(self.hosts.index(host)))
                return host
        living = [host for host in idle if host.alive]
        too_many = max(0, len(living) + len(self.hosts) - len(idle) + 1 - _HOSTS)
        for host in [*(host for host in idle if host not in living), *living[:too_many]]:
            host.end()
            self.hosts.remove(host)
            if host.early == plain:  # with others it may be the variables that do not work
                self._fruitless = 0 if host.ready else self._fruitless + 1
            if self._fruitless > 1:
                raise StudyError(f"the warm host does not start any more: {host.last_words()}")
        host = self._start(early)
        self.hosts.append(host)
        return host

    def close(self) -> None:
        for host in self.hosts:
            host.end()
        self.hosts.clear()
