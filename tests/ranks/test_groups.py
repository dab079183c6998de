"""Worker groups through the launcher: several configurations, the loader rule, eight ranks."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from nccltune.launch.leftovers import tagged_processes
from nccltune.launch.protocol import Limits
from nccltune.launch.stopping import StopFlag
from nccltune.launch.torchrun import TorchrunLauncher
from nccltune.launch.worker_files import place_worker
from nccltune.worker.spec import Request, Settings, Workload
from running import JOBS

pytestmark = pytest.mark.ranks

WORKLOAD = Workload(
    model="smalljobs:tiny",
    data="synthetic",
    folder=None,
    image_size=16,
    precision="fp32",
    channels_last=False,
    cudnn_benchmark=True,
    device="cpu",
    backend="gloo",
    seed=0,
)


def launcher(folder: Path, ranks: int, **env: str) -> TorchrunLauncher:
    return TorchrunLauncher(
        python=sys.executable,
        nproc_per_node=ranks,
        backend="gloo",
        worker_path=place_worker(folder / "worker"),
        base={**os.environ, "PYTHONPATH": str(JOBS), **env},
        site={},
        gpus=(),
        tag=f"test-{os.getpid()}-{folder.name}",
        stop=StopFlag(),
    )


def request(workload: Workload = WORKLOAD, **changes: Any) -> dict[str, Any]:
    plain = Request(id="m", workload=workload, settings=Settings(), ddp={}, loader={}, batch_size=4)
    return {"type": "measure", **asdict(replace(plain, **changes))}


def quiet(_message: Any) -> None:
    return


def test_one_live_group_measures_several_configurations(tmp_path: Path) -> None:
    starter = launcher(tmp_path, ranks=2)
    group = starter.open({}, tmp_path / "logs")
    first = group.request(request(), Limits(), quiet)
    pids = list(group._pids)
    second = group.request(
        request(ddp={"bucket_cap_mb": 1}, communicator_env={"NCCL_ALGO": "Ring"}), Limits(), quiet
    )
    tokens = replace(WORKLOAD, model="smalljobs:Tokens")
    third = group.request(request(tokens, batch_size=8), Limits(), quiet)
    assert group.alive and group._pids == pids
    group.close()
    assert [o.failure for o in (first, second, third)] == [None, None, None]
    for outcome in (first, second, third):
        assert outcome.result is not None
        assert outcome.result["samples_per_second"] > 0
    # the same model, weights and data again: the same loss but for rounding
    assert first.result is not None and third.result is not None
    assert first.result["parameters"] == 3 * 8 * 9 + 8 + 8 * 16 * 10 + 10
    assert third.result["parameters"] == 50 * 16 + 16 * 50 + 50
    assert second.seconds["start"] < first.seconds["start"]  # no second launch was paid
    assert tagged_processes(starter.tag) == []


@pytest.mark.parametrize("step_ms", [0, 50])
def test_what_is_reported_is_the_loaders_long_run_rate(tmp_path: Path, step_ms: int) -> None:
    """Two workers a rank need 40 ms a sample: 2 ranks x 2 workers / 40 ms is the true rate. With
    much prefetching the first windows show another one: that of what was made ahead. Steps that
    are not much faster than the loader (50 ms and some, against 80 ms for a batch of four from
    two workers) take long to use that up.
    """
    true_rate = 2 * 2 / 0.040
    starter = launcher(tmp_path, ranks=2, SLOW_MS="40", STEP_MS=str(step_ms))
    slow = replace(WORKLOAD, data="smalljobs:slow", model="smalljobs:Sleepy")
    group = starter.open({}, tmp_path / "logs")
    for prefetch in (2, 16):
        loader = {"num_workers": 2, "prefetch_factor": prefetch, "persistent_workers": True}
        outcome = group.request(request(slow, loader=loader), Limits(), quiet)
        assert outcome.failure is None and outcome.result is not None
        assert outcome.result["samples_per_second"] == pytest.approx(true_rate, rel=0.05)
    group.close()


@pytest.mark.slow
def test_eight_ranks_start_measure_lose_one_and_end(tmp_path: Path) -> None:
    starter = launcher(tmp_path, ranks=8, FAULT="die", FAULT_LAUNCH="1")
    short = Settings(windows=1, max_warmup_windows=2, window_steps=2)
    faulty = replace(WORKLOAD, model="smalljobs:faulty")
    group = starter.open({}, tmp_path / "launch-0000")
    outcome = group.request(request(faulty, settings=short), Limits(), quiet)
    group.close()
    assert outcome.failure is None and outcome.result is not None
    assert len(outcome.result["peak_memory_bytes"]) == 8
    group = starter.open({}, tmp_path / "launch-0001")
    outcome = group.request(request(faulty, settings=short), Limits(), quiet)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.rank) == ("crashed", 1)
    assert tagged_processes(starter.tag) == []
