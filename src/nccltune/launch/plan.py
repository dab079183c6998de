"""What is started, as values: what all launches of a study share, and one launch as a command."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nccltune.launch.emulation import emulation
from nccltune.launch.environment import nccl_log_variables
from nccltune.machine.gpus import Gpu
from nccltune.nccl.site import SiteVariable


@dataclass(frozen=True)
class LaunchSettings:
    """What all launches of a study have in common. `python` is the job's own, `base` the tuner's
    environment at its start.
    """

    python: str
    nproc_per_node: int
    backend: str
    worker_path: Path
    base: Mapping[str, str]
    site: Mapping[str, SiteVariable]
    gpus: Sequence[Gpu] = ()
    watch_memory: bool = True
    """False where others use the GPUs too, so that nothing can be told from memory in use."""
    nodes: int = 1
    """Machines with so many ranks each."""

    def rank_variables(
        self, process_env: Mapping[str, str], log_dir: Path, address: str, token: str, probe: bool
    ) -> dict[str, str]:
        """What ranks get beside the interpreter's own variables."""
        added = {
            "NCCLTUNE_ADDRESS": address,
            "NCCLTUNE_TOKEN": token,
            "NCCLTUNE_LOG_DIR": str(log_dir),
        }
        if self.gpus and "CUDA_DEVICE_ORDER" not in self.base:
            added["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # NVML's order: watched is what is used
        if self.backend == "nccl":
            added |= nccl_log_variables(str(log_dir), probe=probe, several=self.nodes > 1)
        # They are in `base` already; said again, they are in a plan as it would be typed.
        return {**process_env, **added, **emulation(self.base)}


def python_variables(worker_path: Path, base: Mapping[str, str]) -> dict[str, str]:
    """What the job's interpreter needs to find the worker, before what the user has there."""
    path = [str(worker_path), base.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
        "PYTHONUNBUFFERED": "1",
    }


@dataclass(frozen=True)
class LaunchPlan:
    """A command and what it adds to the tuner's environment."""

    argv: tuple[str, ...]
    added: Mapping[str, str]
    carriers: tuple[tuple[str, ...], ...] = ()
    """Commands that are started here and read it all, where it is run on other machines."""

    def document(self) -> dict[str, Any]:
        """In plain values."""
        found: dict[str, Any] = {"argv": list(self.argv), "environment": dict(self.added)}
        if self.carriers:
            found["carriers"] = [list(each) for each in self.carriers]
        return found

    def lines(self) -> list[str]:
        """As one would type it: one variable a line, then the command."""
        variables = [f"{name}={shlex.quote(value)} \\" for name, value in self.added.items()]
        return [*map(shlex.join, self.carriers), *variables, shlex.join(self.argv)]


def torchrun_argv(python: str, nproc_per_node: int, module: str, logs: Path) -> tuple[str, ...]:
    """torchrun on one machine, by the job's own Python. `logs`: where it makes folders that it
    would else leave in /tmp.
    """
    return (
        python,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nnodes=1",
        f"--nproc-per-node={nproc_per_node}",
        "--max-restarts=0",
        "--monitor-interval=0.1",
        f"--log-dir={logs}",
        "-m",
        module,
    )
