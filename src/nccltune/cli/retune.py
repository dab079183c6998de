"""`nccltune retune`."""

from __future__ import annotations

from typing import Any

import click

from nccltune.cli.verify import emulate_hosts, of_the_job, studies_dir, typed, when_idle


@click.command()
@click.argument("study", metavar="STUDY")
@click.option(
    "--trials",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="Trials of a new search.  [those of the study; half of them where its result still leads]",
)
@click.option("--time-budget", metavar="TIME", help="Of a new search, as in `search`.")
@click.option(
    "--verify-budget",
    default="3m",
    show_default=True,
    metavar="TIME",
    help="For the check of what there is.",
)
@click.option("--check", is_flag=True, help="Say what would be done, and change nothing.")
@emulate_hosts
@when_idle()
@studies_dir
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.pass_context
def retune(context: click.Context, /, **given: Any) -> int:
    """Check a study's result, and search anew where it no longer holds or the machine has changed.

    When the result is still faster than the defaults and nothing that matters for it has changed,
    that is all. Else a new generation is searched beside the old one, beginning with what was good
    before. The study's best.env is replaced, in one rename, when the new settings are confirmed to
    be faster than the defaults and than the old ones, or when the defaults are better now.

    Made for timers: it can be killed at any time and run again, two at once do no harm, and with
    --when-idle it keeps out of the way of jobs. With --check the exit code is 3 where a search is
    due.
    """
    from nccltune.cli.retuning import run_retune
    from nccltune.study.options import parse_duration

    budget = given["time_budget"]
    search = {"trials": given["trials"]}
    search["time_budget"] = None if budget is None else parse_duration(budget)
    return run_retune(
        given["study"],
        given["studies_dir"],
        typed(context),
        {name: value for name, value in search.items() if value is not None},
        parse_duration(given["verify_budget"]),
        given["when_idle"],
        check_only=given["check"],
        as_json=given["as_json"],
    )


of_the_job(retune)
