"""`nccltune compare`."""

from __future__ import annotations

import sys
from typing import Any

import click

from nccltune.cli.doctor import OF_THE_JOB
from nccltune.cli.search import launches, measure_seconds, search


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--launches",
    "limit",
    type=int,
    callback=launches,
    default=12,
    show_default=True,
    metavar="N",
    help="Most fresh launches of each side, 6 to 12.",
)
@measure_seconds("Time that counts in a launch, in windows of 0.3 s or 5 steps.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def compare(**given: Any) -> int:
    """Compare two settings on the same job: is B faster than A?

    A and B are env files, YAML files such as best.yaml, or the word `defaults`. Fresh launches take
    turns in random order; the answer is one of four: faster, slower, no useful difference, not
    known. Nothing is written.
    """
    from nccltune.cli.comparing import run_compare
    from nccltune.study.options import SearchOptions

    a, b, limit = given.pop("a"), given.pop("b"), given.pop("limit")
    as_json = given.pop("as_json")
    options = SearchOptions(**given, command=("nccltune", *sys.argv[1:]))
    return run_compare(options, a, b, limit, as_json=as_json)


# The job is described as for `search`, word for word.
compare.params[2:2] = [p for p in search.params if p.name in (*OF_THE_JOB, "emulate_hosts")]
