"""`nccltune doctor`."""

from __future__ import annotations

import sys
from typing import Any

import click

from nccltune.cli.search import search

OF_THE_JOB = (
    *("model", "device", "backend", "nproc_per_node", "launcher", "python", "allow_busy"),
    *("batch_size", "num_workers", "image_size", "data"),
    *("precision", "channels_last", "cudnn_benchmark"),
)


@click.command()
@click.option(
    "--no-launch",
    is_flag=True,
    help="Look at the machine and its settings alone, in a second: no ranks, no model.",
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def doctor(**given: Any) -> int:
    """Say what is wrong with this machine, where a training step's time goes, and what settings
    could win at most.

    Links between GPUs, PCIe, network, shared memory, limits, versions and site variables are looked
    at; the job runs for a short while as it is, without its loader, without communication, and on
    one rank alone. Nothing is changed and nothing is written. The exit code is 0 with findings too.
    """
    from nccltune.cli.examining import run_doctor
    from nccltune.study.options import SearchOptions

    as_json, launch = given.pop("as_json"), not given.pop("no_launch")
    options = SearchOptions(**given, command=("nccltune", *sys.argv[1:]))
    return run_doctor(options, as_json=as_json, launch=launch)


# The job is described as for `search`, word for word.
doctor.params[:0] = [p for p in search.params if p.name in OF_THE_JOB]
