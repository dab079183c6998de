"""What is started, as one value: the dry run prints it, the launcher runs it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class LaunchPlan:
    """A command and what it adds to the tuner's environment."""

    argv: tuple[str, ...]
    added: Mapping[str, str]

    def lines(self) -> list[str]:
        """As one would type it: one variable a line, then the command."""
        variables = [f"{name}={shlex.quote(value)} \\" for name, value in self.added.items()]
        return [*variables, shlex.join(self.argv)]


def torchrun_argv(python: str, nproc_per_node: int, module: str) -> tuple[str, ...]:
    """torchrun on one machine, by the job's own Python."""
    return (
        python,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nnodes=1",
        f"--nproc-per-node={nproc_per_node}",
        "--max-restarts=0",
        "--monitor-interval=0.1",
        "-m",
        module,
    )
