"""What a machine is known by."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from nccltune.machine import facts
from nccltune.machine.facts import Machine, available_cores, this_machine

GPU_BOX = Machine(
    cpu="Some CPU @ 2 GHz",
    cores=16,
    memory_bytes=64 << 30,
    gpus=("NVIDIA H200", "NVIDIA H200", "NVIDIA L4"),
    gpu_memory_bytes=(141 << 30, 141 << 30, 24 << 30),
    nvlinks=(18, 18, 0),
    driver="570.1",
    torch="2.9.0",
    cuda="12.8",
    nccl="2.27.5",
)
CPU_BOX = Machine("A CPU", 2, 8 << 30, (), (), (), None)


@pytest.mark.parametrize("machine", [GPU_BOX, CPU_BOX])
def test_kept_as_json_or_yaml_it_is_the_same(machine: Machine) -> None:
    for copy in (
        json.loads(json.dumps(machine.to_dict())),
        yaml.safe_load(yaml.safe_dump(machine.to_dict())),
    ):
        again = Machine.from_dict(copy)
        assert again == machine
        assert again.digest() == machine.digest()


def test_memory_does_not_make_another_machine() -> None:
    # A virtual machine's changes as it goes.
    other = replace(GPU_BOX, memory_bytes=1, gpu_memory_bytes=(1, 2, 3))
    assert other.digest() == GPU_BOX.digest()
    assert set(GPU_BOX.to_dict()) - set(GPU_BOX.comparable()) == {
        "memory_bytes", "gpu_memory_bytes",
    }  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {"driver": "580.2"},
        {"torch": "2.10.0"},
        {"cuda": "13.0"},
        {"nccl": "2.28.9"},
        {"cores": 8},
        {"cpu": "Another"},
        {"nvlinks": (18, 18, 18)},
        {"gpus": ("NVIDIA H200",)},
        {"gpus": ("NVIDIA L4", "NVIDIA H200", "NVIDIA H200")},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_everything_else_does(changed: dict[str, object]) -> None:
    assert replace(GPU_BOX, **changed).digest() != GPU_BOX.digest()  # type: ignore[arg-type]


def test_the_job_adds_what_its_python_says() -> None:
    found = CPU_BOX.with_job({"torch": "2.9.0+cpu", "cuda_version": None, "nccl_built": None})
    assert (found.torch, found.cuda, found.nccl) == ("2.9.0+cpu", None, None)
    assert found.cpu == CPU_BOX.cpu


def test_in_one_line() -> None:
    assert GPU_BOX.summary() == "2x NVIDIA H200, 1x NVIDIA L4, driver 570.1, 16 CPU cores"
    assert CPU_BOX.summary() == "2 CPU cores (A CPU), no GPU in use"


def test_this_machine_without_gpus() -> None:
    machine, gpus = this_machine(os.environ, use_gpus=False)
    assert gpus == ()
    assert (machine.gpus, machine.driver) == ((), None)
    assert machine.cores == available_cores() >= 1
    assert machine.memory_bytes > 64 << 20
    assert machine.cpu != ""
    # No host name and no serial numbers: records are published.
    assert list(machine.to_dict()) == [
        "cpu", "cores", "memory_bytes", "gpus", "gpu_memory_bytes", "nvlinks", "driver", "torch",
        "cuda", "nccl",
    ]  # fmt: skip


def test_cores_are_those_this_process_may_use() -> None:
    assert 1 <= available_cores() <= len(os.sched_getaffinity(0))
    one = min(os.sched_getaffinity(0))
    code = (
        "import os\nfrom nccltune.machine.facts import available_cores\n"
        f"os.sched_setaffinity(0, {{{one}}})\nprint(available_cores())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_memory_that_cgroups_leave_counts_each_limit_above_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of 100 above, of which 70 are used, 20 of these by a cache of files; none below."""
    job = tmp_path / "slurm/job_1"
    job.mkdir(parents=True)
    for place, limit, used, cache in ((tmp_path / "slurm", "100", 70, 20), (job, "max", 60, 0)):
        (place / "memory.max").write_text(f"{limit}\n")
        (place / "memory.current").write_text(f"{used}\n")
        (place / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\n")
    ours = facts.Path("/proc/self/cgroup")
    monkeypatch.setattr(
        facts.Path, "read_text", _instead_of(ours, "1:cpu:/\n0::/slurm/job_1\n", Path.read_text)
    )
    assert list(facts._left_by_cgroups(tmp_path)) == [50]


def _instead_of(file: Path, text: str, plain: Any) -> Any:
    return lambda path, *given, **named: text if path == file else plain(path, *given, **named)


def test_available_memory_is_less_than_all() -> None:
    total = psutil.virtual_memory().total
    assert 0 < facts.available_memory() < total
