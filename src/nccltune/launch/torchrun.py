"""The torchrun launcher: every worker group is one plain `torchrun` command on this machine."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nccltune.launch.diagnosis import read_end
from nccltune.launch.environment import launch_environment
from nccltune.launch.group import GroupFolder, RankGroup
from nccltune.launch.leftovers import TAG, end_tagged, new_tag
from nccltune.launch.plan import LaunchPlan, LaunchSettings, python_variables, torchrun_argv
from nccltune.launch.processes import LocalRanks
from nccltune.launch.stopping import StopFlag
from nccltune.launch.supervised import Supervised

# torch's elastic agent names the first rank that it saw fail while it still runs, and lists every
# one of them when it ends.
_FIRST = re.compile(r"exitcode: (?P<code>-?\d+)\)? local_rank: (?P<rank>\d+)")
_LISTED = re.compile(
    r"rank\s*: (?P<rank>\d+) \(local_rank: \d+\)\s*\n\s*exitcode\s*: (?P<code>-?\d+)"
)

OWN_LOGS = "torchrun"


@dataclass
class TorchrunLauncher:
    """Starts ranks with torchrun."""

    name = "torchrun"

    settings: LaunchSettings
    stop: StopFlag
    warnings: list[str] = field(default_factory=list)

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
        settings = self.settings
        added = {
            **settings.rank_variables(process_env, log_dir, address, token, probe),
            **python_variables(settings.worker_path, settings.base),
            TAG: tag,
        }
        logs = log_dir / OWN_LOGS
        argv = torchrun_argv(settings.python, settings.nproc_per_node, "nccltune.worker", logs)
        return LaunchPlan(argv, added)

    def open(
        self,
        process_env: Mapping[str, str],
        log_dir: Path,
        *,
        probe: bool = False,
        placed: Mapping[str, str] | None = None,
    ) -> RankGroup:
        folder = GroupFolder(log_dir)
        address, tag = folder.connection.address, new_tag()
        plan = self.plan(process_env, folder.path, address, folder.token, tag=tag, probe=probe)
        env = launch_environment(self.settings.base, self.settings.site, plan.added)
        return RankGroup(
            TorchrunProcesses(plan, env, folder.path / "launcher.log", tag),
            folder,
            gpus=self.settings.gpus,
            watch_memory=self.settings.watch_memory,
            stop=self.stop,
            warn=self.warnings.append,
        )

    def close(self) -> None: ...


class TorchrunProcesses(LocalRanks):
    """One torchrun command under a supervisor."""

    ready = True
    host_lost = False
    trouble = None

    def __init__(
        self,
        plan: LaunchPlan,
        env: Mapping[str, str],
        log: Path,
        tag: str,
        cwd: Path | None = None,
    ) -> None:
        self._log, self._tag = log, tag
        self._command = Supervised(plan.argv, env, log, cwd=cwd)

    def running(self) -> bool:
        return self._command.poll() is None

    def exit_codes(self) -> dict[int, int]:
        return exit_codes(read_end(self._log))

    def exit_code(self) -> int | None:
        return self._command.poll()

    def end(self) -> None:
        self._command.end()
        end_tagged(self._tag)
        shutil.rmtree(self._log.with_name(OWN_LOGS), ignore_errors=True)


def exit_codes(log: str) -> dict[int, int]:
    """Exit codes of ranks from torchrun's output, the first to fail first."""
    codes: dict[int, int] = {}
    for match in [*_FIRST.finditer(log), *_LISTED.finditer(log)]:
        codes.setdefault(int(match["rank"]), int(match["code"]))
    return codes
