"""`nccltune show` on recorded studies."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_command import Command
from study_jobs import Asked, definition, favours_buckets, measurement, run_study, space_of

from nccltune.launch.protocol import Failure
from nccltune.study.folder import StudyPaths
from nccltune.study.results import write_results
from nccltune.study.store import Store
from nccltune.study.summary import Summary

PRESETS = [
    {"name": "best", "source": "a/b#1", "values": {"bucket_cap_mb": 50, "NCCL_ALGO": "Ring"}},
    {"name": "tree", "source": "a/b#2", "values": {"NCCL_ALGO": "Tree"}},
    {"name": "small", "source": "a/b#3", "values": {"NCCL_BUFFSIZE": 1048576}},
]


def speed(asked: Asked) -> float | Failure:
    """Tree is refused by NCCL, small buffers are hopeless."""
    if "allreduce:tree" in asked.env.get("NCCL_ALGO", ""):
        tail = ("Traceback", "DistBackendError: NCCL error")
        return Failure("nccl_error", "NCCL error [NCCL: no tree]", 1, None, tail)
    if asked.env.get("NCCL_BUFFSIZE") == "1048576":
        return 30.0
    return favours_buckets(asked)


@pytest.fixture
def study(nccltune_command: Command) -> StudyPaths:
    """Trials: 0 baseline, 1 the winner, 2 failed, 3 cut early, 6 and 7 with larger batches."""
    paths = run_study(Path("studies/first"), speed, space_of(presets=PRESETS), 8)
    write_results(Summary.read(paths))
    return paths


def test_a_study_in_full(nccltune_command: Command, study: StudyPaths) -> None:
    done = nccltune_command("show", "first")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    best = next(line for line in lines if line.startswith("*"))
    assert best.split() == ["*", "1", "1x", "130.0", "+30.0%", "NCCL_ALGO=Ring", "bucket_cap_mb=50"]
    baseline = next(line for line in lines if line.split()[:1] == ["0"])
    assert baseline.split() == ["0", "1x", "100.0", "-", "baseline"]
    assert "* in best.yaml" in lines and "* in best-batch.yaml" in lines
    text = " ".join(done.out.split())
    trials = Store(study).trials
    failed = sum(trial.parameters["NCCL_ALGO"] == "Tree" for trial in trials)
    cut = sum(trial.value == 30.0 for trial in trials)
    assert failed >= 1 and cut >= 1
    assert f"Trials: 8, {failed} failed ({failed} nccl error), {cut} cut early." in text
    assert "Verdict: not confirmed: " in text
    assert "With larger batches (another training: adapt the learning rate):" in text
    # 130 x sqrt(2) with 128 samples a rank; 183.85 against 100.
    assert any(
        line.split()[1:4] == ["1x", "183.8", "+83.8%"] and "batch_size=128" in line
        for line in lines
    )
    assert "Written: studies/first/best.env, studies/first/best.yaml" in text


def test_nothing_that_failed_or_was_cut_is_among_the_best(
    nccltune_command: Command, study: StudyPaths
) -> None:
    out = nccltune_command("show", "first").out
    assert "NCCL_ALGO=Tree" not in out
    assert "NCCL_BUFFSIZE=1048576" not in out


def test_by_its_folder(nccltune_command: Command, study: StudyPaths) -> None:
    by_name = nccltune_command("show", "first").out
    assert nccltune_command("show", "studies/first").out == by_name
    absolute = nccltune_command("show", str(study.folder.absolute()))
    assert absolute.code == 0
    assert "NCCL_ALGO=Ring bucket_cap_mb=50" in absolute.out


def test_from_inside_its_folder(
    nccltune_command: Command, study: StudyPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(study.folder)
    done = nccltune_command("show", ".", "--json")
    assert (done.code, json.loads(done.out)["study"]) == (0, "first")


def test_another_studies_dir(nccltune_command: Command, study: StudyPaths) -> None:
    Path("studies").rename("elsewhere")
    done = nccltune_command("show", "first", "--studies-dir", "elsewhere")
    assert done.code == 0
    assert "elsewhere/first/best.env" in done.out
    assert nccltune_command("show", "first").code == 2


def test_as_json(nccltune_command: Command, study: StudyPaths) -> None:
    done = nccltune_command("show", "first", "--json")
    assert (done.code, done.err) == (0, "")
    found: dict[str, Any] = json.loads(done.out)
    assert (found["study"], found["folder"], found["trials"]) == ("first", "studies/first", 8)
    assert found["baseline"] == {"trial": 0, "samples_per_second": 100.0}
    failed = sum(trial.parameters["NCCL_ALGO"] == "Tree" for trial in Store(study).trials)
    assert found["failures"] == {"nccl_error": failed}
    assert found["verdict"] is None
    best = found["best"]
    assert (best["trial"], best["samples_per_second"]) == (1, 130.0)
    assert best["changes"] == {"NCCL_ALGO": "Ring", "bucket_cap_mb": 50}
    assert best["env"] == {"NCCL_ALGO": "ring,tree;allreduce:ring"}
    assert best["ddp"] == {"bucket_cap_mb": 50}
    assert best["batch_size"] == 64
    assert found["best_with_larger_batch"]["batch_size"] > 64
    assert found["files"] == [
        f"studies/first/{name}" for name in ("best.env", "best.yaml", "best-batch.yaml")
    ]
    assert [t["number"] for t in found["all_trials"]] == list(range(8))
    assert found["all_trials"][2]["state"] == "failed"
    # A failed trial costs 3 s like all others here, and was repeated once in new ranks.
    assert sum(found["seconds"].values()) == pytest.approx(
        27.0, abs=2.0
    )  # one failure was repeated


def test_what_luck_had_crowned_stands_where_its_measurements_put_it(
    nccltune_command: Command,
) -> None:
    """One row a configuration, by the value that the choice goes by, and the chosen one marked."""
    space = space_of(only=("bucket_cap_mb", "NCCL_ALGO"))
    paths = StudyPaths(Path("studies/lucky"))
    paths.folder.mkdir(parents=True)
    replace(definition(space), sampler="guided").write(paths)
    store = Store(paths)
    lucky, sound = {"bucket_cap_mb": 50}, {"NCCL_ALGO": "Ring"}
    measured: list[tuple[dict[str, Any], float]] = [
        ({}, 100.0), (lucky, 130.0), (sound, 115.0), (lucky, 101.0), (lucky, 100.0), (lucky, 102.0),
        (sound, 116.0), (sound, 114.0),
    ]  # fmt: skip
    for number, (changed, value) in enumerate(measured):
        known = any(changed == before for before, _ in measured[:number])
        made = measurement(number, value, configuration={**space.baseline, **changed})
        made = replace(made, origin="again" if known else "sampler", id=store.next_id())
        store.add(replace(made, launch=store.next_launch()))
    for value in (98.0, 102.0, 99.0):
        made = measurement(0, value, configuration=space.baseline, purpose="noise")
        store.add_extra(replace(made, id=store.next_id(), launch=store.next_launch()))
    write_results(Summary.read(paths))
    out = nccltune_command("show", "lucky").out
    table = out[out.index("samples/s") :].partition("\n\n")[0].splitlines()[1:]
    rows = [line.split() for line in table]
    assert [row[:3] for row in rows[:3]] == [
        ["*", "2", "3x"],
        ["1", "4x", rows[1][2]],
        ["0", "4x", "99.50"],
    ]
    assert 105 < float(rows[0][3]) < 116 and 99 < float(rows[1][2]) < 112
    assert rows[0][4] == f"{100 * (float(rows[0][3]) / 99.5 - 1):+.1f}%"
    assert rows[3] == ["*", "in", "best.yaml"]
    told = json.loads(nccltune_command("show", "lucky", "--json").out)
    assert told["best"]["trial"] == 2
    ranking = told["ranking"]
    assert [(r["trial"], r["trials"], r["measured"], r["chosen"]) for r in ranking] == [
        (2, [2, 6, 7], 3, True), (1, [1, 3, 4, 5], 4, False), (0, [0], 4, False),
    ]  # fmt: skip
    assert ranking[0]["changes"] == sound and ranking[0]["stage"] == "search"
    assert f"{ranking[0]['samples_per_second']:.1f}" == rows[0][3]


def test_one_trial(nccltune_command: Command, study: StudyPaths) -> None:
    done = nccltune_command("show", "first", "--trial", "1")
    assert (done.code, done.err) == (0, "")
    text = " ".join(done.out.split())
    for part in (
        "study first",
        "trial 1 (preset best)",
        "state complete",
        "settings NCCL_ALGO=Ring bucket_cap_mb=50",
        "environment NCCL_ALGO=ring,tree;allreduce:ring",
        "DDP bucket_cap_mb=50",
        "batch size 64 a rank",
        "samples/s 130.0 (+30.0% vs baseline), median of 2 windows",
        "memory 3.0 GiB 3.0 GiB (peak of each rank)",
        "buckets 1 MiB 25 MiB",
        "GPU use 90% 80%",
    ):
        assert part in text


def test_a_failed_trial_says_why(nccltune_command: Command, study: StudyPaths) -> None:
    done = nccltune_command("show", "first", "--trial", "2")
    assert done.code == 0
    text = " ".join(done.out.split())
    assert "state failed: nccl_error" in text
    assert "failure NCCL error [NCCL: no tree]" in text
    assert "| DistBackendError: NCCL error" in text
    assert "samples/s" not in text


def test_one_trial_as_json_is_its_record(nccltune_command: Command, study: StudyPaths) -> None:
    found = json.loads(nccltune_command("show", "first", "--trial", "3", "--json").out)
    store = Store(study)
    measured = found.pop("measurement")
    assert found == json.loads(json.dumps(store.trials[3].to_dict()))
    assert measured == json.loads(json.dumps(store.measurement(store.trials[3]).to_dict()))
    assert (found["state"], found["value"]) == ("pruned", 30.0)


def test_all_studies_newest_first(nccltune_command: Command, study: StudyPaths) -> None:
    second = run_study(Path("studies/second"), lambda _asked: 50.0, space_of(), 2)
    os.utime(study.definition, (1_000_000, 1_000_000))
    done = nccltune_command("show")
    assert (done.code, done.err) == (0, "")
    rows = [line.split() for line in done.out.splitlines()]
    assert rows[1][:5] == ["second", "2", "50.00", "50.00", "+0.0%"]
    assert rows[2][:5] == ["first", "8", "100.0", "130.0", "+30.0%"]
    listed = json.loads(nccltune_command("show", "--json").out)
    assert [(s["study"], s["trials"]) for s in listed] == [("second", 2), ("first", 8)]
    assert "all_trials" not in listed[0]
    assert second.definition.exists()


def test_a_study_that_cannot_be_read_is_told_beside_the_others(
    nccltune_command: Command, study: StudyPaths
) -> None:
    broken = Path("studies/broken")
    broken.mkdir()
    (broken / "study.yaml").write_text("version: 3\n")
    done = nccltune_command("show")
    assert done.code == 0
    assert "first" in done.out
    assert done.err == "nccltune: studies/broken/study.yaml: not a study of version 1\n"
    assert nccltune_command("show", "broken").code == 2


def test_an_unknown_study_lists_those_that_are_there(
    nccltune_command: Command, study: StudyPaths
) -> None:
    for name in ("fist", "", "elsewhere/first", "../first"):
        done = nccltune_command("show", name)
        assert (done.code, done.out) == (2, "")
        assert done.err == (
            f"nccltune: error: {name}: no such study in studies; there are: first\n"
        )


def test_where_no_study_is(nccltune_command: Command) -> None:
    done = nccltune_command("show")
    assert (done.code, done.err) == (0, "")
    assert done.out == "no studies in studies; `nccltune search` makes one\n"
    assert json.loads(nccltune_command("show", "--json").out) == []
    done = nccltune_command("show", "x", "--studies-dir", "missing")
    assert (done.code, done.out) == (2, "")
    assert done.err == "nccltune: error: x: no such study in missing; there are: none\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["first", "--trial", "8"], "--trial 8: first has trials 0 to 7"),
        (["--trial", "0"], "--trial needs the name of a study"),
    ],
)
def test_a_trial_that_is_not_there(
    nccltune_command: Command, study: StudyPaths, arguments: list[str], message: str
) -> None:
    done = nccltune_command("show", *arguments)
    assert (done.code, done.out, done.err) == (2, "", f"nccltune: error: {message}\n")


def test_a_negative_trial(nccltune_command: Command, study: StudyPaths) -> None:
    done = nccltune_command("show", "first", "--trial", "-1")
    assert (done.code, done.out) == (2, "")
    assert "'--trial'" in done.err


def test_a_study_without_trials_yet(nccltune_command: Command) -> None:
    paths = StudyPaths(Path("studies/new"))
    paths.folder.mkdir(parents=True)
    definition(space_of()).write(paths)
    done = nccltune_command("show", "new")
    assert (done.code, done.out) == (0, "study studies/new: no trial yet\n")
    assert json.loads(nccltune_command("show", "new", "--json").out)["best"] is None
    listed = nccltune_command("show").out.splitlines()[1]
    assert listed.split()[:5] == ["new", "0", "-", "-", "-"] and "  no trial yet  " in listed
    Store(paths).add(measurement(0, 100.0, configuration=space_of().baseline))
    assert "  unfinished  " in nccltune_command("show").out.splitlines()[1]
    Store(paths).add(measurement(1, 90.0, configuration=space_of().baseline))
    assert "  keep the defaults  " in nccltune_command("show").out.splitlines()[1]
    paths.trials.unlink()
    paths.measurements.unlink()
    done = nccltune_command("show", "new", "--trial", "0")
    assert (done.code, done.err) == (
        2, "nccltune: error: --trial 0: new has no trials yet\n",
    )  # fmt: skip


def test_where_the_defaults_won(nccltune_command: Command) -> None:
    paths = run_study(Path("studies/s"), lambda _asked: 100.0, space_of(), 3)
    write_results(Summary.read(paths))
    done = nccltune_command("show", "s")
    text = " ".join(done.out.split())
    assert "Verdict: no setting measured faster than the baseline; keep the defaults." in text
    assert json.loads(nccltune_command("show", "s", "--json").out)["best"]["trial"] == 0


def test_showing_changes_nothing(nccltune_command: Command, study: StudyPaths) -> None:
    Store(study).add(measurement(8, 90.0, configuration=space_of().baseline))
    lines = study.trials.read_bytes().splitlines(keepends=True)
    study.trials.write_bytes(b"".join(lines[:-1]))
    with study.measurements.open("ab") as file:
        file.write(b'{"id": "m0')
    before = {f: f.read_bytes() for f in study.folder.rglob("*") if f.is_file()}
    for arguments in ([], ["first"], ["first", "--trial", "8"], ["first", "--json"]):
        assert nccltune_command("show", *arguments).code == 0
    assert {f: f.read_bytes() for f in study.folder.rglob("*") if f.is_file()} == before


def test_damaged_records_are_told_with_their_line(
    nccltune_command: Command, study: StudyPaths
) -> None:
    lines = study.measurements.read_bytes().splitlines(keepends=True)
    study.measurements.write_bytes(b"".join([lines[0], b"{]\n", *lines[2:]]))
    done = nccltune_command("show", "first")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(
        "nccltune: error: studies/first/measurements.jsonl: line 2 is damaged"
    )


def test_odd_texts_in_records_are_shown_as_they_are(nccltune_command: Command) -> None:
    # Square brackets mean colours to the library that prints tables.
    paths = StudyPaths(Path("studies/s"))
    paths.folder.mkdir(parents=True)
    definition(space_of(), command=("nccltune", "[red]x[/red]")).write(paths)
    store = Store(paths)
    base = space_of().baseline
    store.add(measurement(0, 100.0, configuration=base))
    failure = {"kind": "crashed", "message": "[bold]no[/bold] [/x]", "log": None, "tail": ["[/y]"]}
    store.add(measurement(1, None, configuration=base, failure=failure))
    done = nccltune_command("show", "s", "--trial", "1")
    assert done.code == 0
    assert "[bold]no[/bold] [/x]" in done.out
    assert "| [/y]" in done.out
