"""`nccltune lint`."""

from __future__ import annotations

from typing import Any

import click

_FORMATS = ["shell", "nccl.conf", "docker"]


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE|-]...")
@click.option(
    "--format",
    "given",
    type=click.Choice(_FORMATS),
    help="How the files are read; by default their names and lines tell.",
)
@click.option(
    "--nccl-version",
    metavar="X.Y.Z",
    help="The settings are for this NCCL on another machine: devices and links here, and the torch "
    "here, are left out of account.",
)
@click.option(
    "--python",
    metavar="PATH",
    help="The job's own interpreter, whose NCCL and torch count. By default nccltune's.",
)
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON on stdout.")
def lint(**options: Any) -> int:
    """Say what is wrong, dangerous or worth knowing about NCCL settings. Nothing is run.

    A FILE is a shell script or env file, a job script, NCCL's nccl.conf, or a file for docker
    --env-file; - reads what is piped in. Without one, the current environment and the nccl.conf
    files behind it are looked at.

    An error does not do what it says, or breaks. A warning is dangerous or slow. A note is good to
    know. The exit code is 1 where there is an error or a warning, 0 where there are notes alone or
    nothing, 2 where a file cannot be read.
    """
    from nccltune.cli.linting import run_lint

    return run_lint(**options)
