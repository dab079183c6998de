"""From records to best.env, best.yaml, and what is said of them."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from study_jobs import (
    PRESETS,
    Asked,
    definition,
    favours_buckets,
    measurement,
    run_study,
    space_of,
)

import nccltune
from nccltune.launch.protocol import Failure
from nccltune.stats.step import diagnosis_of
from nccltune.study.folder import StudyPaths
from nccltune.study.outcomes import verdict_line
from nccltune.study.records import Measurement, Trial, best_of
from nccltune.study.results import read_all, write_results
from nccltune.study.store import Store
from nccltune.study.summary import Summary

SPACE = space_of()


def recorded(folder: Path, *measurements: Measurement, space: Any = SPACE) -> Summary:
    """A study with these records, as it is read back."""
    paths = StudyPaths(folder)
    paths.folder.mkdir()
    definition(space).write(paths)
    store = Store(paths)
    for one in measurements:
        store.add(one)
    return Summary.read(paths)


def settings(**changes: Any) -> dict[str, Any]:
    """The configuration and what ranks got for it."""
    env = {n: str(v) for n, v in changes.items() if n.isupper()}
    ddp = {n: v for n, v in changes.items() if n == "bucket_cap_mb"}
    return {
        "configuration": {**SPACE.baseline, **changes},
        "effective": {
            "env": env,
            "ddp": ddp,
            "loader": {"num_workers": changes.get("num_workers", 2), "pin_memory": True},
            "batch_size": changes.get("batch_size", 64),
        },
        "stage": "batch" if "batch_size" in changes else "search",
    }


BASELINE = measurement(0, 100.0, **settings())
SLOWER = measurement(1, 90.0, **settings(NCCL_BUFFSIZE=8388608))
FASTER = measurement(2, 130.0, **settings(NCCL_BUFFSIZE=1048576, bucket_cap_mb=50, num_workers=4))
LARGER = measurement(3, 200.0, **settings(bucket_cap_mb=50, batch_size=256))
FAILED = measurement(4, None, **settings(NCCL_ALGO="Tree"))


def test_the_winner_is_written_and_read_back(tmp_path: Path) -> None:
    summary = recorded(tmp_path / "s", BASELINE, SLOWER, FASTER)
    assert write_results(summary) == ["best.env", "best.yaml"]
    best = nccltune.load(summary.paths.best_yaml)
    assert best.env == {"NCCL_BUFFSIZE": "1048576"}
    assert best.ddp_kwargs == {"bucket_cap_mb": 50}
    assert best.loader_kwargs == {"num_workers": 4, "pin_memory": True}
    assert best.batch_size == 64
    assert best.verdict is None  # nothing is confirmed yet
    assert best.workload == {**summary.definition["workload"], "launcher": "formula"}
    assert best.machine == summary.definition["machine"]
    facts = best.provenance
    assert (facts["study"], facts["trial"], facts["trials"]) == ("s", 2, 3)
    assert (facts["search_value"], facts["baseline_value"]) == (130.0, 100.0)
    assert (facts["nccltune"], facts["nccl"]) == (nccltune.__version__, "2.28.9")
    assert facts["command"] == "nccltune search --trials 12"
    assert yaml.safe_load(best.to_yaml()) == yaml.safe_load(summary.paths.best_yaml.read_text())


def test_the_environment_file_sets_what_won(tmp_path: Path) -> None:
    summary = recorded(tmp_path / "s", BASELINE, FASTER)
    write_results(summary)
    lines = summary.paths.best_env.read_text().splitlines()
    assert lines[-1] == "export NCCL_BUFFSIZE=1048576"
    assert all(line.startswith("# ") for line in lines[:-1])
    head = "\n".join(lines[:-1])
    for part in ("study s, trial 2 of 2", "2x NVIDIA H200", "driver 570.1", "NCCL 2.28.9",
                 "torch 2.9.0", "command: nccltune search --trials 12",
                 "verdict: not confirmed: "):  # fmt: skip
        assert part in head
    done = subprocess.run(
        ["sh", "-c", '. "$1" && echo "$NCCL_BUFFSIZE"', "sh", str(summary.paths.best_env)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("1048576\n", "")


def test_where_nothing_beats_the_baseline_the_file_is_its_header_alone(tmp_path: Path) -> None:
    summary = recorded(tmp_path / "s", BASELINE, SLOWER, FAILED)
    assert summary.winner == summary.baseline
    write_results(summary)
    text = summary.paths.best_env.read_text()
    assert all(line.startswith("#") for line in text.splitlines())
    assert "verdict: no setting measured faster than the baseline; keep the defaults" in text
    assert "no variable to set" in text
    best = nccltune.load(summary.paths.best_yaml)
    assert (best.env, best.ddp_kwargs, best.batch_size) == ({}, {}, 64)


def test_the_header_of_kept_defaults_names_no_trial_as_theirs(tmp_path: Path) -> None:
    summary = recorded(tmp_path / "s", BASELINE, SLOWER, FAILED)
    write_results(summary)
    first = summary.paths.best_env.read_text().splitlines()[0]
    assert first.endswith("study s, the defaults, after 3 trials")


def test_what_was_unpinned_is_told_in_the_file(tmp_path: Path) -> None:
    summary = recorded(tmp_path / "s", BASELINE, SLOWER)
    told = "measured without NCCL_ALGO NCCL_X: take that out of the job's environment"
    for unpinned in ([], ["NCCL_ALGO", "NCCL_X"]):
        given = {**summary.definition, "unpinned": unpinned}
        write_results(replace(summary, definition=given))
        assert (told in summary.paths.best_env.read_text()) is bool(unpinned)


def test_a_winner_by_other_settings_has_no_variable_either(tmp_path: Path) -> None:
    summary = recorded(
        tmp_path / "s", BASELINE, measurement(1, 120.0, **settings(bucket_cap_mb=50))
    )
    write_results(summary)
    text = summary.paths.best_env.read_text()
    assert "export" not in text
    assert "no variable to set" in text
    assert "is in best.yaml" in text
    assert "verdict: not confirmed: " in text


def test_a_tie_goes_to_the_baseline(tmp_path: Path) -> None:
    summary = recorded(
        tmp_path / "s", BASELINE, measurement(1, 100.0, **settings(bucket_cap_mb=50))
    )
    assert summary.winner == summary.baseline
    assert verdict_line(summary).endswith("keep the defaults")


def test_a_larger_batch_is_written_apart_and_only_where_it_is_faster(tmp_path: Path) -> None:
    summary = recorded(tmp_path / "s", BASELINE, FASTER, LARGER)
    assert write_results(summary) == ["best.env", "best.yaml", "best-batch.yaml"]
    assert nccltune.load(summary.paths.best_yaml).batch_size == 64
    larger = nccltune.load(summary.paths.best_batch_yaml)
    assert (larger.batch_size, larger.ddp_kwargs) == (256, {"bucket_cap_mb": 50})

    store = Store(summary.paths)
    store.add(measurement(5, 250.0, **settings(bucket_cap_mb=100)))
    now = Summary.read(summary.paths)
    assert now.larger is None
    assert write_results(now) == ["best.env", "best.yaml"]
    assert not now.paths.best_batch_yaml.exists()
    assert nccltune.load(now.paths.best_yaml).ddp_kwargs == {"bucket_cap_mb": 100}


def test_before_the_baseline_there_is_nothing_to_write(tmp_path: Path) -> None:
    summary = recorded(tmp_path / "s")
    assert (summary.baseline, summary.winner, summary.larger) == (None, None, None)
    assert write_results(summary) == []
    assert not summary.paths.best_env.exists()
    assert summary.ranking("search") == summary.ranking("batch") == []


def test_failed_and_cut_trials_win_nothing() -> None:
    trials = [
        Trial.of(BASELINE),
        replace(Trial.of(FASTER), state="pruned", value=900.0),
        replace(Trial.of(SLOWER), state="failed", value=None),
    ]
    assert best_of(trials, "search") == trials[0]
    assert best_of(trials, "batch") is None


def test_the_ranking_is_by_speed_with_each_configuration_once(tmp_path: Path) -> None:
    again = replace(FASTER, id="m0005", launch=5, trial=5, value=80.0)
    summary = recorded(tmp_path / "s", BASELINE, SLOWER, FASTER, LARGER, FAILED, again)
    assert [(r.trial.number, r.value, r.trials, r.measured) for r in summary.ranking("search")] == [
        (2, 105.0, (2, 5), 2), (0, 100.0, (0,), 1), (1, 90.0, (1,), 1),
    ]  # fmt: skip
    assert [(r.trial.number, r.value) for r in summary.ranking("batch")] == [(3, 200.0)]


def test_changes_are_told_against_the_baseline(tmp_path: Path) -> None:
    summary = recorded(tmp_path / "s", BASELINE, FASTER)
    assert summary.changes(summary.trials[0]) == {}
    assert summary.changes(summary.trials[1]) == {
        "NCCL_BUFFSIZE": 1048576, "bucket_cap_mb": 50, "num_workers": 4,
    }  # fmt: skip


def test_failures_are_counted_and_time_is_accounted_for(tmp_path: Path) -> None:
    spent = {"start": 8.0, "close": 2.0, "build": 1.0, "first_step": 2.0, "warmup": 3.0,
             "measure": 4.0, "check": 0.5, "verify": 0.25, "other": 0.25}  # fmt: skip
    crashed = replace(SLOWER, state="failed", value=None, failure={"kind": "crashed"})
    summary = recorded(
        tmp_path / "s", replace(BASELINE, seconds=spent), replace(FAILED, seconds={"start": 1.0}),
        replace(crashed, seconds={"measure": 1.0}),
    )  # fmt: skip
    assert summary.failures() == {"out_of_memory": 1, "crashed": 1}
    assert summary.time_spent() == {
        "launching": 11.0, "warming up": 6.0, "measuring": 5.0, "checking": 0.75, "other": 0.25,
    }  # fmt: skip


def test_a_study_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    recorded(tmp_path / "good", BASELINE)
    recorded(tmp_path / "cut", BASELINE, SLOWER)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "study.yaml").write_text("version: 7\n")
    damaged = tmp_path / "cut" / "measurements.jsonl"
    damaged.write_text("{\n" + damaged.read_text())
    summaries, unreadable = read_all(tmp_path)
    assert [s.paths.name for s in summaries] == ["good"]
    assert sorted(unreadable) == [
        f"{tmp_path / 'bad' / 'study.yaml'}: not a study of version 1",
        f"{damaged}: line 1 is damaged; restore the file, or start anew with --new (the old folder "
        "is kept)",
    ]


def test_reading_a_study_changes_nothing(tmp_path: Path) -> None:
    summary = recorded(tmp_path / "s", BASELINE, FASTER)
    paths = summary.paths
    lines = paths.trials.read_bytes().splitlines(keepends=True)
    paths.trials.write_bytes(lines[0])  # killed between the two writes
    with paths.measurements.open("ab") as file:
        file.write(b'{"id": "m00')  # and one that is being written right now
    before = {f.name: f.read_bytes() for f in paths.folder.iterdir()}
    assert [t.number for t in Summary.read(paths).trials] == [0, 2]
    assert {f.name: f.read_bytes() for f in paths.folder.iterdir()} == before


def test_a_whole_search_ends_in_its_best(tmp_path: Path) -> None:
    def speed(asked: Asked) -> float | Failure:
        if "tree" in asked.env.get("NCCL_ALGO", "").rpartition(":")[2]:
            return Failure("crashed", "rank 0 was ended by SIGSEGV", 0)
        return favours_buckets(asked)

    preset = {"name": "50", "source": "a/b#3", "values": {"bucket_cap_mb": 50, "NCCL_ALGO": "Ring"}}
    paths = run_study(tmp_path / "s", speed, space_of(presets=[*PRESETS, preset]), 12)
    summary = Summary.read(paths)
    assert write_results(summary) == ["best.env", "best.yaml", "best-batch.yaml"]
    best = nccltune.load(paths.best_yaml)
    assert summary.winner is not None and summary.winner.value == 130.0
    assert best.env["NCCL_ALGO"] == "ring,tree;allreduce:ring"
    assert best.ddp_kwargs == {"bucket_cap_mb": 50}
    # 130 x sqrt(512 / 64) is the most that the ladder found.
    assert summary.larger is not None
    assert summary.larger.value == pytest.approx(130 * 8**0.5)
    assert nccltune.load(paths.best_batch_yaml).batch_size == 512


@pytest.mark.parametrize(("spread", "nothing"), [(0.2, True), (0.0, False)])
def test_where_no_setting_can_win_what_noise_hides_the_defaults_are_kept(
    tmp_path: Path, spread: float, nothing: bool
) -> None:
    """Communication is 2 % of a step, and no loader is waited for."""
    parts = {name: [[0.1, 0.1]] for name in ("whole", "synthetic")}
    parts |= {name: [[0.098, 0.098]] for name in ("unsynced", "compute")}
    parts |= {"loader": [[0.01, 0.01]], "alone": [[0.098]]}
    looked = {
        "world_size": 2,
        "batch_size": 64,
        "workers": 2,
        "parts": parts,
        "steady": True,
        "data_wait": [[0.0, 0.0]],
        "host": [],
        "busy": [],
        "seconds": {},
    }
    summary = recorded(tmp_path / "s", BASELINE)
    assert verdict_line(summary) == "no candidate was measured"
    more = [
        measurement(n, 100.0 * (1 + spread * (n % 2)), trial=0, purpose="noise")
        for n in range(1, 6)
    ]
    found = diagnosis_of(looked, ()).to_dict()
    more.append(replace(measurement(6, trial=None, purpose="diagnose"), result=found))
    whole = replace(summary, measurements={m.id: m for m in (BASELINE, *more)})
    line = verdict_line(whole)
    assert line.endswith("can be shown here; keep the defaults") is nothing
    assert (line == "no candidate was measured") is not nothing
