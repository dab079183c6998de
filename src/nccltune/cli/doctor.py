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
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def doctor(**given: Any) -> int:
    """Say where a training step's time goes, and what settings could win at most.

    The job runs for a short while as it is, without its loader, without communication, and on one
    rank alone. Nothing is changed and nothing is written.
    """
    from nccltune.cli.examining import run_doctor
    from nccltune.study.options import SearchOptions

    as_json = given.pop("as_json")
    options = SearchOptions(**given, command=("nccltune", *sys.argv[1:]))
    return run_doctor(options, as_json=as_json)


# The job is described as for `search`, word for word.
doctor.params[:0] = [p for p in search.params if p.name in OF_THE_JOB]
