"""Exports as accelerate, Lightning and the Trainer of transformers read them: the real packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from export_samples import DDP, ENV, HOSTILE, HOSTILE_LINES, hostile_result, result_of, text_of

MANY = {f"NCCL_HOSTILE_{n}": value for n, value in enumerate(HOSTILE)}
PLAIN = {name: value for name, value in MANY.items() if value.isprintable()}
CPU = {"model": "m", "device": "cpu", "backend": "gloo", "nproc_per_node": 2}
RESULTS = {
    "whole": result_of(),
    "hostile": hostile_result(HOSTILE_LINES[-4], env=PLAIN),
    "empty": result_of({}, ddp={}, loader={}),
    "cpu": result_of(workload=CPU),
    "single": result_of(workload={"nproc_per_node": 1}),
    "switches": result_of(ddp={"broadcast_buffers": False, "find_unused_parameters": True}),
}
MULTI_GPU = {
    "compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "num_machines": 1,
    "machine_rank": 0, "num_processes": 2, "use_cpu": False,
}  # fmt: skip


def readings(folder: Path, *formats: str) -> dict[str, Any]:
    """What the packages make of their formats, by NAME.FORMAT."""
    for name, result in RESULTS.items():
        for format in formats:
            (folder / f"{name}.{format}").write_text(text_of(result, format))
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("NCCL_", "ACCELERATE_"))}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("export_jobs.py")), str(folder)],
        env={**kept, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"},
        cwd=folder, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return readings(tmp_path_factory.mktemp("exports"), "accelerate", "hf-trainer")


def test_accelerate_reads_how_many_ranks(read: dict[str, Any]) -> None:
    for name in ("whole", "hostile", "empty", "switches"):
        config = read[f"{name}.accelerate"]["config"]
        assert {key: config[key] for key in MULTI_GPU} == MULTI_GPU
        assert read[f"{name}.accelerate"]["launch"] == [True, 2, False]
    assert read["cpu.accelerate"]["config"]["distributed_type"] == "MULTI_CPU"
    assert read["cpu.accelerate"]["launch"] == [False, 2, True]
    assert read["single.accelerate"]["config"]["distributed_type"] == "NO"
    assert read["single.accelerate"]["launch"] == [False, 1, False]


def test_accelerate_passes_the_arguments_of_the_comment_to_ddp(read: dict[str, Any]) -> None:
    assert read["whole.accelerate"]["ddp"] == DDP
    assert read["hostile.accelerate"]["ddp"] == DDP
    assert read["switches.accelerate"]["ddp"] == RESULTS["switches"].ddp
    assert read["empty.accelerate"]["ddp"] == {}


@pytest.mark.slow  # it takes 15 s to import Lightning
def test_lightning_makes_the_strategy(tmp_path: Path) -> None:
    read = readings(tmp_path, "lightning")
    for name, result in RESULTS.items():
        seen = read[f"{name}.lightning"]
        assert seen == {"ddp": result.ddp, "env": result.env, "loader": result.loader}
    assert read["whole.lightning"]["env"] == ENV


def test_the_trainer_takes_the_arguments(read: dict[str, Any]) -> None:
    loader = {
        "dataloader_num_workers": 12, "dataloader_prefetch_factor": 4,
        "dataloader_persistent_workers": True,  # and pin_memory is True anyway
    }  # fmt: skip
    assert read["whole.hf-trainer"] == {"ddp_bucket_cap_mb": 50, **loader}
    assert read["hostile.hf-trainer"] == read["whole.hf-trainer"]
    assert read["switches.hf-trainer"] == {
        "ddp_broadcast_buffers": False, "ddp_find_unused_parameters": True, **loader,
    }  # fmt: skip
    assert read["empty.hf-trainer"] == {}
