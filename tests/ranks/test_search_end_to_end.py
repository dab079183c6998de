"""The real command on two gloo ranks, and its result used as a job would use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import yaml
from torch.nn.parallel import DistributedDataParallel

import nccltune

pytestmark = pytest.mark.ranks

SPACE = """
version: 1
parameters:
  bucket_cap_mb: {target: ddp, choices: [null, 1, 25], default: null}
  gradient_as_bucket_view: {target: ddp, choices: [false, true], default: false}
  OMP_NUM_THREADS: {target: env, choices: [null, 1, 2], default: null}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory, cache):  # type: ignore[no-untyped-def]
    from running import Cli

    command = Cli(tmp_path_factory.mktemp("end-to-end"), cache)
    (command.folder / "space.yaml").write_text(SPACE)
    run = command.run(
        *("search", "--model", "smalljobs:tiny", "--device", "cpu", "--trials", "4"),
        *("--confirm-launches", "0"),
        *("--batch-size", "4", "--image-size", "32", "--data", "images", "--num-workers", "1"),
        *("--space", "space.yaml", "--study", "small", "--json"),
    )
    assert run.returncode == 0, run.stderr
    command.assert_nothing_left()
    return command, run


def test_runs_exactly_the_trials_asked_for(finished) -> None:  # type: ignore[no-untyped-def]
    command, run = finished
    trials = command.trials("small")
    assert [t["number"] for t in trials] == [0, 1, 2, 3]
    assert trials[0]["origin"] == "baseline"
    assert all(t["state"] in ("complete", "pruned") and t["value"] > 0 for t in trials)
    keys = {json.dumps(t["parameters"], sort_keys=True) for t in trials}
    assert len(keys) == 4  # nothing is measured twice
    result = json.loads(run.stdout)
    assert result["trials"] == 4
    assert result["verdict"] is None
    assert result["baseline"]["samples_per_second"] == trials[0]["value"]


def test_records_say_what_was_done(finished) -> None:  # type: ignore[no-untyped-def]
    command, _ = finished
    lines = (command.study("small") / "measurements.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) == 4
    for record in records:
        result = record["result"]
        assert result["collectives_checked"] > 10
        assert len(result["peak_memory_bytes"]) == 2
        assert record["effective"]["loader"]["num_workers"] == 1
        counting = [w for w in result["windows"] if w["counts"]]
        assert counting and not any(w["warmup"] for w in counting)
        samples = 4 * 2  # batch times ranks
        rates = sorted(samples * w["steps"] / max(w["rank_seconds"]) for w in counting)
        assert rates[0] <= record["value"] <= rates[-1]
    text = "\n".join(lines)
    assert str(command.folder) not in text
    assert os.uname().nodename not in text


def test_says_that_nccl_cannot_act(finished) -> None:  # type: ignore[no-untyped-def]
    _, run = finished
    gloo = [line for line in run.stderr.splitlines() if "gloo" in line]
    assert len(gloo) == 1 and "NCCL variables cannot act here" in gloo[0]
    assert "baseline" in run.stderr and "trial 3 (4/4)" in run.stderr


@pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
def test_best_env_can_be_sourced(finished, shell: str) -> None:  # type: ignore[no-untyped-def]
    command, _ = finished
    study = command.study("small")
    expected = nccltune.load(study / "best.yaml").env
    script = f'set -eu; set -a; . "{study}/best.env"; set +a; exec "{sys.executable}" -c '
    script += "'import json, os; print(json.dumps(dict(os.environ)))'"
    clean = {"PATH": os.environ["PATH"]}
    out = subprocess.run([shell, "-c", script], env=clean, check=True, capture_output=True)
    environ = json.loads(out.stdout)
    assert {name: environ.get(name) for name in expected} == dict(expected)
    assert ("OMP_NUM_THREADS" in environ) == ("OMP_NUM_THREADS" in expected)


def test_best_yaml_wraps_a_model(finished, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    command, _ = finished
    best = nccltune.load(command.study("small") / "best.yaml")
    assert best.batch_size == 4
    assert best.verdict is None
    assert best.workload["model"] == "smalljobs:tiny"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(torch.nn.Linear(3, 2), **best.ddp_kwargs)
        data = torch.utils.data.TensorDataset(torch.zeros(8, 3))
        loader = torch.utils.data.DataLoader(data, batch_size=best.batch_size, **best.loader_kwargs)
        for (inputs,) in loader:
            model(inputs).sum().backward()
    finally:
        dist.destroy_process_group()


def test_show_answers_from_the_folder(finished) -> None:  # type: ignore[no-untyped-def]
    command, run = finished
    listed = command.run("show")
    assert listed.returncode == 0 and "small" in listed.stdout
    shown = command.run("show", "small", "--json")
    told = json.loads(shown.stdout)
    assert told["best"] == json.loads(run.stdout)["best"]
    assert len(told["all_trials"]) == 4
    one = command.run("show", "small", "--trial", "0")
    assert one.returncode == 0 and "baseline" in one.stdout and "collectives right" in one.stdout


def test_a_finished_study_prints_its_result(finished) -> None:  # type: ignore[no-untyped-def]
    command, run = finished
    again = command.run(
        *("search", "--model", "smalljobs:tiny", "--device", "cpu", "--trials", "4"),
        *("--confirm-launches", "0"),
        *("--batch-size", "4", "--image-size", "32", "--data", "images", "--num-workers", "1"),
        *("--space", "space.yaml", "--study", "small", "--json"),
    )
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["best"] == json.loads(run.stdout)["best"]
    assert len(command.trials("small")) == 4
    for told in (run.stderr, again.stderr):
        assert "begun on another machine" not in told and "new study" not in told.lower()
    assert "--confirm-launches 0: nothing is confirmed, and the launches that show" in run.stderr
    assert "--confirm-launches 0: nothing" not in again.stderr


def test_elsewhere_it_goes_on_with_a_word_and_without_a_reader(finished) -> None:  # type: ignore[no-untyped-def]
    command, _ = finished
    file = command.study("small") / "study.yaml"
    begun = file.read_text()
    host = yaml.safe_load(begun)["host"]
    assert len(host) == 16 and os.uname().nodename not in begun
    file.write_text(begun.replace(host, "0123456789abcdef"))
    process = command.start(
        *("search", "--model", "smalljobs:tiny", "--device", "cpu", "--trials", "4"),
        *("--confirm-launches", "0"),
        *("--batch-size", "4", "--image-size", "32", "--data", "images", "--num-workers", "1"),
        *("--space", "space.yaml", "--study", "small"),
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()  # as with `| head`
    said = process.stderr.read()
    assert process.wait() == 0, said
    file.write_text(begun)
    assert said.count("begun on another machine of the same kind") == 1
    assert "done: 4 trials, the baseline included" in said and "Traceback" not in said
    assert len(command.trials("small")) == 4


def test_another_job_is_refused_with_its_difference(finished) -> None:  # type: ignore[no-untyped-def]
    command, _ = finished
    other = command.run(
        *("search", "--model", "smalljobs:tiny", "--device", "cpu", "--trials", "5"),
        *("--confirm-launches", "0"),
        *("--batch-size", "6", "--image-size", "32", "--data", "images", "--num-workers", "1"),
        *("--space", "space.yaml", "--study", "small"),
    )
    assert other.returncode == 2
    assert "workload.batch_size: 4 in the study, 6 now" in other.stderr
    assert "--new" in other.stderr
    assert len(command.trials("small")) == 4
