"""`nccltune run --watch`: what the job is handed, and what is refused before it is started."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_cli_run import BEST, ENV_ONLY, SHOW, Runs, sh

from nccltune.cli.watching import Watching, check_watch
from nccltune.launch.commands import read_command
from nccltune.output.best import Best

SPEEDS = {"without": [50.0] * 6, "with": [100.0] * 6}
CONFIRMED = replace(
    BEST,
    workload={"model": "train.py", "data": "script", "nproc_per_node": 2},
    verdict={"word": "FASTER", "threshold": 0.01, "speeds": SPEEDS, "files": None},
    provenance={"study": "one"},
)
ASKED = ("sh", "-c", 'printf %s "$NCCLTUNE_APPLY"')


@pytest.fixture
def job(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def handed(job: Runs, best: Best | str, *options: str) -> tuple[Mapping[str, Any], str]:
    """What rank 0 is to watch, and what was said."""
    done = job.run(best, *options, "--", *ASKED)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["watch"], done.stderr


def test_metrics_into_a_folder_that_is_not_there_are_told(tmp_path: Path) -> None:
    job = read_command(["torchrun", "train.py"], {})
    there = Watching(metrics=str(tmp_path / "job.prom"))
    assert check_watch(there, job) == []
    [note] = check_watch(replace(there, metrics=str(tmp_path / "x" / "job.prom")), job)
    assert "no folder" in note


def test_rank_0_is_handed_what_the_file_promises(job: Runs) -> None:
    seen, said = handed(job, CONFIRMED, "--watch")
    assert seen.pop("promise") == pytest.approx({"speed": 100, "low": 100 / 1.03, "high": 103})
    assert seen.pop("next_step").startswith("`nccltune verify best.yaml` measures whether")
    assert seen == {
        "every": 100, "metrics": None, "labels": {"study": "one", "model": "train.py"},
        "script": "train.py", "ranks": 2, "batch_size": 8, "optimizer": None,
        "samples_per_step": None,
    }  # fmt: skip
    assert "nccltune: note: --watch reaches only ranks that torchrun starts below sh\n" in said
    assert "promises" not in said


def test_what_the_user_told_the_study_counts_here_too(job: Runs) -> None:
    told = {"optimizer": 1, "samples_per_step": 12, "batch_size": 4, "script": ["train.py"]}
    best = replace(CONFIRMED, workload={**CONFIRMED.workload, **told})
    seen, _ = handed(job, best, "--watch")
    assert (seen["optimizer"], seen["samples_per_step"]) == (1, 24)  # twice the usual batch


@pytest.mark.parametrize("option", [["--watch-every", "20"], ["--metrics", "out/job.prom"]])
def test_what_only_makes_sense_with_watch_implies_it(job: Runs, option: list[str]) -> None:
    seen, _ = handed(job, CONFIRMED, *option)
    metrics = None if "--watch-every" in option else str(job.folder / "out/job.prom")
    assert (seen["every"], seen["metrics"]) == (20 if metrics is None else 100, metrics)


@pytest.mark.parametrize(
    ("best", "options", "why"),
    [
        (replace(CONFIRMED, verdict=None), [], "nothing in it is confirmed"),
        (BEST, [], "nothing in it is confirmed"),
        (CONFIRMED, ["--env-only"], "the job does not get all that it was measured with"),
        (replace(CONFIRMED, workload={"model": "resnet50", "data": "synthetic"}), [],
         "it was measured with resnet50 in a loop of nccltune's own; `nccltune search -- SCRIPT` "
         "measures a script"),
    ],
)  # fmt: skip
def test_where_nothing_is_promised_that_is_told(
    job: Runs, best: Best, options: list[str], why: str
) -> None:
    seen, said = handed(job, best, "--watch", *options)
    assert "promise" not in seen
    told = f"nccltune: note: --watch: best.yaml promises no samples/s: {why}; speeds are told alone"
    assert told in said.splitlines()


def test_an_env_file_and_the_defaults_can_be_watched(job: Runs) -> None:
    job.write("best.env", "export NCCL_ALGO=Ring\n")
    for file in ("best.env", "defaults"):
        seen, said = handed(job, file, "--watch")
        assert "promise" not in seen and "doctor" in seen["next_step"]
        assert f"{file} promises no samples/s: it is no best.yaml" in said
        assert seen["labels"] == {}


def test_hostile_names_are_no_commands_of_a_terminal(job: Runs) -> None:
    best = replace(CONFIRMED, workload={**CONFIRMED.workload, "model": "\x1b[2Jtrain.py"})
    seen, _ = handed(job, best, "--watch")
    assert seen["script"] == "\\x1b[2Jtrain.py"


@pytest.mark.parametrize(
    ("options", "command", "message"),
    [
        (["--watch"], ["torchrun", "--no-python", "./job"],
         "--watch: --no-python starts no Python that could be watched; take that option out"),
        (["--metrics", "."], ["touch", "started"], "--metrics .: is a folder; give a file in it"),
        (["--watch-every", "1"], ["touch", "started"], "--watch-every"),
        (["--watch-every", "soon"], ["touch", "started"], "--watch-every"),
    ],
)  # fmt: skip
def test_what_cannot_be_watched_is_refused(
    job: Runs, options: list[str], command: list[str], message: str
) -> None:
    done = job.run(CONFIRMED, *options, "--", *command)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and not (job.folder / "started").exists()


@pytest.mark.parametrize("command", ["torchrun", "python"])
def test_a_script_sees_nothing_of_it(job: Runs, command: str) -> None:
    job.write("show.py", SHOW)
    expected = job.run(ENV_ONLY, "--", command, "show.py", "a b", stdin="in\n")
    done = job.run(ENV_ONLY, "--watch", "--", command, "show.py", "a b", stdin="in\n")
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout)
    assert done.stderr.splitlines()[-1] == (
        "nccltune: note: --watch: nothing was seen of the training: this process has not imported "
        "torch"
    )


def test_the_first_of_all_ranks_speaks_alone(job: Runs) -> None:
    job.write("show.py", "")
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        for number, said in (("0", True), ("1", False)):
            job.env[name] = number
            done = job.run(ENV_ONLY, "--watch", "--", "torchrun", "show.py")
            assert ("nothing was seen" in done.stderr) is said, name
        del job.env[name]


def test_without_watch_nothing_is_loaded_into_the_ranks(job: Runs) -> None:
    done = job.run(ENV_ONLY, *sh('printf %s "[$NCCLTUNE_APPLY$PYTHON_EXEC]"'))
    assert done.stdout == "[]" and not (job.folder / "cache").exists()
