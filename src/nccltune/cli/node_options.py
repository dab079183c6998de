"""The options of `search` that say on which machines ranks are, and how they are started there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_OPTIONS = (
    click.option(
        "--launcher",
        type=click.Choice(
            ["auto", "warm", "torchrun", "slurm", "slurm-torchrun", "ssh", "ssh-torchrun"]
        ),
        default="auto",
        show_default=True,
        help="How ranks are started: warm, from a process that has torch imported, or by a plain "
        "torchrun command each time. auto: warm where it works. slurm: on all nodes of the "
        "allocation that the command runs in, warm; slurm-torchrun: there, by srun and torchrun "
        "each time. ssh, ssh-torchrun: the same on the --hosts.",
    ),
    click.option(
        "--hosts",
        metavar="A,B,...|FILE",
        help="For --launcher ssh: this machine and others, or a file with one on each line.",
    ),
    click.option(
        "--ssh",
        default="ssh",
        show_default=True,
        metavar="COMMAND",
        help="What reaches them, with options of yours: 'ssh -F FILE'.",
    ),
    click.option(
        "--split",
        type=click.IntRange(2),
        metavar="K",
        help="With --launcher slurm and --storage: divide the nodes of the allocation into K equal "
        "parts, with a tuner on each, all on one study.",
    ),
)


def node_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
