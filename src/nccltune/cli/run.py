"""`nccltune run`."""

from __future__ import annotations

import click


@click.command()
@click.argument("file", metavar="FILE")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option(
    "--env-only",
    is_flag=True,
    help="Set the variables alone; DDP and the DataLoader are left as the script makes them.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Start nothing where this machine is not the one that was measured.",
)
@click.option(
    "--loader-match",
    metavar="TEXT",
    help="Which DataLoader is the training loader, where it is taken for another.",
)
def run(
    file: str, command: tuple[str, ...], env_only: bool, strict: bool, loader_match: str | None
) -> None:
    """Start a job with the settings of a result: best.yaml, or an env file.

    COMMAND is what would be typed without nccltune: `-- torchrun --nproc-per-node 8 train.py`. It
    takes the place of this process, so input, output, signals and exit code are its own. Variables
    that are set already keep their values. Arguments for DDP and for the training DataLoader reach
    the ranks that torchrun starts, and those for the DataLoader the script of a plain `python
    train.py`. What the script itself passes to DDP stays, its DataLoader settings are replaced, and
    its batch size is never changed.

    What keeps a setting from being used, and what differs from the machine that was measured, is
    told on stderr. The exit code is 2 where that stops it, and 126 or 127, as a shell's, where the
    command cannot be started.
    """
    from nccltune.cli.running import run_job

    run_job(file, command, env_only=env_only, strict=strict, loader_match=loader_match)
