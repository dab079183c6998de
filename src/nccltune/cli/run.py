"""`nccltune run`."""

from __future__ import annotations

import click

from nccltune.cli.separator import TakesCommand, check_dashes


@click.command(cls=TakesCommand)
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
@click.option(
    "--watch",
    is_flag=True,
    help="Tell on stderr how fast the job is and what communication costs it, and warn once where "
    "that stays behind what FILE promises.",
)
@click.option(
    "--watch-every",
    type=click.IntRange(min=2),
    metavar="STEPS",
    help="Steps from one report to the next, 100 where it is not given; implies --watch.",
)
@click.option(
    "--metrics",
    type=click.Path(),
    metavar="FILE.prom",
    help="Write each report there too, for Prometheus' node exporter; implies --watch.",
)
@click.pass_context
def run(
    context: click.Context,
    file: str,
    command: tuple[str, ...],
    env_only: bool,
    strict: bool,
    loader_match: str | None,
    watch: bool,
    watch_every: int | None,
    metrics: str | None,
) -> None:
    """Start a job with the settings of a result: best.yaml, a study (its folder, or its name below
    studies), or an env file.

    COMMAND is what would be typed without nccltune: `-- torchrun --nproc-per-node 8 train.py`. It
    takes the place of this process, so input, output, signals and exit code are its own. Variables
    that are set already keep their values. Arguments for DDP and for the training DataLoader reach
    the ranks that torchrun starts, and those for the DataLoader the script of a plain `python
    train.py`. What the script itself passes to DDP stays, its DataLoader settings are replaced, and
    its batch size is never changed.

    With --watch, rank 0 counts steps and samples. Nothing else is added to a step, and what goes
    wrong in it is told and never stops the job.

    What keeps a setting from being used, and what differs from the machine that was measured, is
    told on stderr. The exit code is 2 where that stops it, and 126 or 127, as a shell's, where the
    command cannot be started.
    """
    from nccltune.cli.running import run_job
    from nccltune.cli.watching import USUAL_EVERY, Watching

    check_dashes(context)
    wanted = watch or watch_every is not None or metrics is not None
    run_job(
        file,
        command,
        env_only=env_only,
        strict=strict,
        loader_match=loader_match,
        watch=Watching(watch_every or USUAL_EVERY, metrics) if wanted else None,
    )
