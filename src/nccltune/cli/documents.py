"""What `search` and `show` print with --json: a study in plain values."""

from __future__ import annotations

from typing import Any

from nccltune.cli.result_lines import kept_elsewhere, written_files
from nccltune.space import changes
from nccltune.study.importance import importance
from nccltune.study.outcomes import (
    Outcome,
    larger_outcome,
    own_outcome,
    verdict_dict,
    verdict_line,
)
from nccltune.study.records import STAGES, Trial
from nccltune.study.summary import Summary
from nccltune.study.together import confirmed_elsewhere


def as_json(
    summary: Summary, *, with_trials: bool = False, with_ranking: bool = True
) -> dict[str, Any]:
    baseline, winner = summary.baseline, summary.winner
    outcome, with_larger = own_outcome(summary), larger_outcome(summary)
    document: dict[str, Any] = {
        "study": summary.paths.name,
        "folder": str(summary.paths.folder),
        "created": summary.definition["created"],
        "trials": len(summary.trials),
        "failures": summary.failures(),
        "baseline": None
        if baseline is None
        else {"trial": 0, "samples_per_second": baseline.value},
        "best": None if outcome is None else _written_json(summary, outcome),
        "best_with_larger_batch": None
        if with_larger is None
        else _written_json(summary, with_larger),
        "fastest_in_search": None if winner is None else _short_json(summary, winner),
        "verdict": None if outcome is None else verdict_dict(summary, outcome),
        "verdict_line": verdict_line(summary),
        "verdict_with_larger_batch": None
        if with_larger is None
        else verdict_dict(summary, with_larger),
        "seconds": {name: round(s, 3) for name, s in summary.time_spent().items()},
        "files": written_files(summary),
    }
    elsewhere = confirmed_elsewhere(summary.paths, len(summary.trials))
    if elsewhere is not None:
        document["confirmed_elsewhere"] = elsewhere
    if with_ranking:
        document["ranking"] = _ranking_json(summary)
    if with_trials:
        found = importance(summary.trials, summary.space)
        document["importance"] = found and {name: round(s, 4) for name, s in found.items()}
        document["all_trials"] = [trial.to_dict() for trial in summary.trials]
    return document


def _ranking_json(summary: Summary) -> list[dict[str, Any]]:
    """The configurations of the table, fastest first: the values that the choice goes by."""
    elsewhere = kept_elsewhere(summary)
    outcomes = [] if elsewhere else [own_outcome(summary), larger_outcome(summary)]
    chosen = [outcome.trial.number for outcome in outcomes if outcome is not None]
    return [
        {
            "trial": row.trial.number,
            "trials": list(row.trials),
            "stage": stage,
            "samples_per_second": row.value,
            "measured": row.measured,
            "changes": summary.changes(row.trial),
            "chosen": any(number in row.trials for number in chosen),
        }
        for stage in STAGES
        for row in summary.ranking(stage)
    ]


def _written_json(summary: Summary, outcome: Outcome) -> dict[str, Any]:
    """What the best files hold; `samples_per_second` is the trial's search value."""
    return {
        "trial": outcome.trial.number,
        "samples_per_second": outcome.trial.value,
        "changes": changes(outcome.configuration, summary.space.baseline),
        **summary.given_to(outcome.configuration).effective,
    }


def _short_json(summary: Summary, trial: Trial) -> dict[str, Any]:
    given = summary.measurement(trial).effective
    return {
        "trial": trial.number,
        "samples_per_second": trial.value,
        "changes": summary.changes(trial),
        **given,
    }


def trial_json(summary: Summary, trial: Trial) -> dict[str, Any]:
    return {**trial.to_dict(), "measurement": summary.measurement(trial).to_dict()}
