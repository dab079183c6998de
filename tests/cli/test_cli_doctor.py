"""`nccltune doctor`: its options, its mistakes, and what it prints."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from cli_command import Command
from study_jobs import MACHINE, TASK

from nccltune.cli import app, examining
from nccltune.errors import Interrupted, StudyError
from nccltune.nccl.site import SiteVariable
from nccltune.output.diagnosis import findings, paragraph
from nccltune.stats.step import Diagnosis, Shares
from nccltune.study.options import SearchOptions
from nccltune.study.survey import Survey

OPTIONS = {
    "--model", "--device", "--backend", "--nproc-per-node", "--launcher", "--python",
    "--allow-busy", "--batch-size", "--num-workers", "--image-size", "--data", "--precision",
    "--channels-last", "--cudnn-benchmark", "--no-cudnn-benchmark", "--json",
}  # fmt: skip
DIAGNOSIS = Diagnosis(
    world_size=2,
    samples_per_second=2850.0,
    step_seconds=0.0449,
    ranks=(Shares(0.02, 0.61, 0.25, 0.12), Shares(0.02, 0.65, 0.25, 0.08)),
    compute_seconds=(0.0328, 0.0327),
    data_wait_seconds=(0.001, 0.002),
    loader_seconds=0.021,
    communication_bound=0.33,
    communication_bound_fed=0.33,
    loader_bound=0.02,
    loader_bound_unsynced=0.02,
    scaling_efficiency=0.93,
    gpu_busy=(0.61, 0.65),
    utilization=(98.0, 97.0),
    noise=0.004,
)
PROBE = {"version": "2.28.9", "transport": ["P2P"], "network": None}
SITE = {"NCCL_NVLS_ENABLE": SiteVariable("NCCL_NVLS_ENABLE", "0", "environment")}
FOUND = Survey(SearchOptions(), TASK, MACHINE, (), SITE, {}, "python", ())


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """No ranks: `answer` is what they would give, an exception is raised. `temporary` is where
    logs go.
    """
    given: dict[str, Any] = {"found": FOUND, "answer": DIAGNOSIS, "temporary": tmp_path / "temp"}
    given["temporary"].mkdir()

    @contextlib.contextmanager
    def started(options: SearchOptions, _cache: Path) -> Iterator[Any]:
        given["options"] = options
        yield SimpleNamespace(found=given["found"], launcher=SimpleNamespace(warnings=["slow"] * 2))

    def diagnose(_found: Survey, _launcher: object, logs: Path, **_: Any) -> Diagnosis:
        logs.mkdir()
        (logs / "rank0.log").write_text("words")
        if isinstance(given["answer"], BaseException):
            raise given["answer"]
        assert isinstance(given["answer"], Diagnosis)
        return given["answer"]

    monkeypatch.setattr(examining, "started", started)
    monkeypatch.setattr(examining, "diagnose", diagnose)
    monkeypatch.setattr(examining, "probe_machine", lambda *_: PROBE)
    monkeypatch.setattr(examining, "end_old", lambda: None)
    monkeypatch.setattr("tempfile.tempdir", str(given["temporary"]))
    return given


def test_the_options_of_doctor() -> None:
    assert isinstance(app, click.Group)
    found = {
        name
        for parameter in app.commands["doctor"].params
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    assert found == OPTIONS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", ""], "--data: is empty"),
        (["--data", "missing"], "--data missing: no such folder"),
        (["--python", "missing"], "--python missing: no such program"),
    ],
)
def test_a_mistake_is_one_message(
    nccltune_command: Command, arguments: list[str], message: str
) -> None:
    done = nccltune_command("doctor", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"nccltune: error: {message}")
    assert len(done.err.splitlines()) == 1


def test_what_is_printed(nccltune_command: Command, ranks: dict[str, Any]) -> None:
    done = nccltune_command("doctor", "--batch-size", "32")
    assert done.code == 0
    head, _, text = done.out.partition("Of a step")
    assert [line.rstrip() for line in head.splitlines()] == [
        "GPUs            2x NVIDIA H200, 141.0 GiB",
        "driver          570.1",
        "torch           2.9.0, CUDA 12.8",
        "ranks           2 with nccl",
        "CPU             Some CPU, 16 cores: 8 a rank",
        "loader          2 workers a rank",
        "NCCL            2.28.9",
        "transport       P2P",
        "site variables  NCCL_NVLS_ENABLE=0",
        "",
        "rank  data  compute  communication  host  kernels  NVML    alone  awaiting data",
        "   0    2%      61%            25%   12%      61%   98%  32.8 ms         1.0 ms",
        "   1    2%      65%            25%    8%      65%   97%  32.7 ms         2.0 ms",
        "",
    ]
    paragraphs = [" ".join(part.split()) for part in f"Of a step{text}".split("\n\n")]
    assert paragraphs == [
        paragraph(DIAGNOSIS),
        *(
            text.replace("nccltune search", "nccltune search --batch-size 32")
            for text in findings(DIAGNOSIS)
        ),
    ]
    assert len(paragraphs) == 3 and max(len(line) for line in done.out.splitlines()) <= 120
    assert done.err.count("note: slow") == 1
    assert ranks["options"].batch_size == 32
    assert not list(ranks["temporary"].iterdir())


def test_on_the_cpu_nothing_is_said_of_gpus(
    nccltune_command: Command, ranks: dict[str, Any]
) -> None:
    machine = replace(
        MACHINE, gpus=(), gpu_memory_bytes=(), nvlinks=(), driver=None, cuda=None, cores=3
    )
    workload = replace(TASK.workload, device="cpu", backend="gloo")
    task = replace(TASK, workload=workload)
    ranks["found"] = replace(FOUND, machine=machine, task=task, site={})
    quiet = (Shares(0.0, 0.95, 0.05, 0.0),) * 2
    ranks["answer"] = replace(DIAGNOSIS, ranks=quiet, gpu_busy=(), utilization=())
    done = nccltune_command("doctor")
    lines = [line.rstrip() for line in done.out.splitlines()]
    assert lines[:7] == [
        "GPUs            none in use",
        "driver          -",
        "torch           2.9.0",
        "ranks           2 with gloo",
        "CPU             Some CPU, 3 cores: 1.5 a rank",
        "loader          2 workers a rank",
        "site variables  none",
    ]
    assert lines[8] == "rank  data  compute  communication    alone  awaiting data"
    assert lines[-1] == "Nothing is out of the ordinary."


def test_as_json(nccltune_command: Command, ranks: dict[str, Any]) -> None:
    done = nccltune_command("doctor", "--json")
    assert done.code == 0
    told = json.loads(done.out)
    assert told["diagnosis"]["ranks"][0]["host"] == 0.12
    assert told["nccl"] == PROBE
    assert told["site"] == {"NCCL_NVLS_ENABLE": "0"}
    assert len(told["findings"]) == 2


def test_logs_stay_where_ranks_failed(nccltune_command: Command, ranks: dict[str, Any]) -> None:
    ranks["answer"] = StudyError("the job failed")
    assert nccltune_command("doctor").code == 1
    [folder] = ranks["temporary"].iterdir()
    assert (folder / "launch/rank0.log").read_text() == "words"


def test_logs_go_where_the_user_stopped(nccltune_command: Command, ranks: dict[str, Any]) -> None:
    ranks["answer"] = Interrupted("interrupted")
    assert nccltune_command("doctor").code == 130
    assert not list(ranks["temporary"].iterdir())
