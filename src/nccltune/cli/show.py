"""`nccltune show`."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("study", required=False)
@click.option("--trial", type=click.IntRange(0), metavar="N", help="One trial in full.")
@click.option(
    "--studies-dir",
    type=click.Path(path_type=Path),
    default=Path("studies"),
    show_default=True,
    metavar="DIR",
)
@click.option(
    "--history", is_flag=True, help="Its generations and checks, and what changed between them."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def show(
    study: str | None, trial: int | None, studies_dir: Path, history: bool, as_json: bool
) -> None:
    """Show a study (its name below --studies-dir, or its folder); without one, list all."""
    from nccltune.study.sampling.linear_algebra import on_one_thread

    on_one_thread()
    from nccltune.cli import documents, tables
    from nccltune.errors import UsageError
    from nccltune.study.folder import find_study
    from nccltune.study.results import read_all
    from nccltune.study.store import no_collecting
    from nccltune.study.summary import Summary

    click.get_current_context().with_resource(no_collecting())
    if study is None:
        if trial is not None or history:
            option = "--history" if history else "--trial"
            raise UsageError(f"{option} needs the name of a study")
        summaries, unreadable = read_all(studies_dir)
        for reason in unreadable:
            click.echo(f"nccltune: {reason}", err=True)
        if as_json:
            click.echo(
                json.dumps([documents.as_json(s, with_ranking=False) for s in summaries], indent=2)
            )
        else:
            tables.print_studies(summaries, studies_dir)
        return
    if history:
        from nccltune.cli.history import print_history
        from nccltune.study.history import history_of

        paths = find_study(study, studies_dir)
        entries = history_of(paths)
        if as_json:
            click.echo(json.dumps([entry.to_dict() for entry in entries], indent=2))
        else:
            print_history(paths.name, entries)
        return
    summary = Summary.read(find_study(study, studies_dir))
    summary.check()
    if trial is None:
        if as_json:
            click.echo(json.dumps(documents.as_json(summary, with_trials=True), indent=2))
        else:
            tables.print_summary(summary)
        return
    found = next((each for each in summary.trials if each.number == trial), None)
    if found is None:
        numbers = [each.number for each in summary.trials]
        raise UsageError(f"--trial {trial}: {summary.paths.name} has {_trials(numbers)}")
    if as_json:
        click.echo(json.dumps(documents.trial_json(summary, found), indent=2))
    else:
        tables.print_trial(summary, found)


def _trials(numbers: list[int]) -> str:
    """Trials of several tuners may lack numbers in between."""
    if not numbers:
        return "no trials yet"
    last = max(numbers)
    lacking = sorted(set(range(last)) - set(numbers))
    without = f" without {', '.join(map(str, lacking))}" if lacking else ""
    return f"trials 0 to {last}{without}"
