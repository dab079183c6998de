"""`nccltune verify`, and the options that it shares with `retune`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from nccltune.cli.search import search

_AS_FOR_SEARCH = ("model", "data", "python", "nproc_per_node", "launcher", "allow_busy")

emulate_hosts = click.option(
    "--emulate-hosts",
    type=click.IntRange(1),
    metavar="N",
    help="For testing: as in `search`; 1 lets ranks talk as they do on this machine.",
)
studies_dir = click.option(
    "--studies-dir",
    type=click.Path(path_type=Path),
    default=Path("studies"),
    show_default=True,
    metavar="DIR",
)
script = click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT ARGS...]")


def of_the_job(command: click.Command) -> click.Command:
    """With the options for what is another than in the study's own command."""
    wanted = [p for p in search.params if p.name in _AS_FOR_SEARCH]
    command.params[1:1] = wanted
    return command


def typed(context: click.Context) -> dict[str, Any]:
    """What the user has given of those options."""
    names = (*_AS_FOR_SEARCH, "emulate_hosts", "script")
    return {
        name: context.params[name]
        for name in names
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def when_idle() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option of verbs that run by themselves now and then."""
    return click.option(
        "--when-idle",
        metavar="TIME",
        help="Start only when no other process uses the GPUs, wait for that so long (0s: not at "
        "all), and stop when one begins to; the exit code is 75 then.",
    )


@click.command()
@click.argument("target", metavar="FILE|STUDY")
@click.option(
    "--time-budget",
    default="3m",
    show_default=True,
    metavar="TIME",
    help="Begin no launch that would end later.",
)
@emulate_hosts
@when_idle()
@studies_dir
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@script
@click.pass_context
def verify(context: click.Context, /, **given: Any) -> int:
    """Check whether a result still holds here: a best.yaml, or a study's name or folder.

    First, what differs from the machine that was measured, and which of its settings cannot act
    here. Then fresh launches with the result and without it, in turn. The exit code is 0 when it is
    still faster than the defaults, or keeps them, and 3 when it is not, does harm, or cannot be
    told. Nothing is written.

    The job is that of the study, started from the same folder; what differs is given by options.
    A file from elsewhere that names a script needs the script here too: `-- train.py ARGS`.
    """
    from nccltune.cli.verifying import run_verify
    from nccltune.study.options import parse_duration

    return run_verify(
        given["target"],
        given["studies_dir"],
        typed(context),
        parse_duration(given["time_budget"]),
        given["when_idle"],
        as_json=given["as_json"],
    )


of_the_job(verify)
