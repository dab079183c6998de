"""The lines that `nccltune search` writes while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from study_jobs import favours_buckets, measurement, run_study, space_of

from nccltune.cli.reporters import PlainReporter, trial_line
from nccltune.study.budget import Budget
from nccltune.study.folder import StudyPaths
from nccltune.study.store import Store

PRESETS = [{"name": "best", "source": "a/b#1", "values": {"bucket_cap_mb": 50}}]


def test_a_line_says_which_trial_it_is_how_many_there_are_and_why_it_was_made(
    tmp_path: Path,
) -> None:
    space = space_of(presets=PRESETS)
    store = Store(run_study(tmp_path / "s", favours_buckets, space, 8))
    configuration = store.trials[1].parameters
    again = measurement(11, 119.0, configuration=configuration, origin="again")
    store.add(again)  # another tuner has had the numbers between
    lines = [trial_line(store, space, Budget(9, None), trial, None) for trial in store.trials]
    assert lines[1].startswith("trial 1 (2/9)    120.0 samples/s  +20.0% vs baseline")
    assert "  (preset best)  " in lines[1]
    assert lines[-1].startswith("trial 11 (9/9)    119.0 samples/s  +19.0% vs baseline")
    assert "  (trial 1 measured again)  " in lines[-1]
    for line, trial in zip(lines[1:-1], store.trials[1:-1], strict=True):
        why = "" if trial.origin == "sampler" else f"({trial.origin})"
        assert why in line and line.count("(") == (2 if why else 1), line
    assert {"sampler", "larger batch"} <= {trial.origin for trial in store.trials}


def test_a_confirmation_that_does_not_fit_is_told_with_a_time_that_would_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    budget = Budget(9, 240.0, lambda: now[0])
    paths = StudyPaths(tmp_path / "s")
    paths.folder.mkdir()
    reporter = PlainReporter(Store(paths), space_of(), budget, 12)
    now[0] = 60.0
    reporter.no_confirmation(540.0)
    told = capsys.readouterr().err
    assert "take about 9 min more here" in told and "--time-budget of 11 min would" in told
