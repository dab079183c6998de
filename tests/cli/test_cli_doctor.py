"""`nccltune doctor`: its options, its mistakes, and what it prints."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from cli_command import Command
from study_jobs import MACHINE, TASK

from fake_machines import ETH0, HOST, bridged_machine, h200_machine, install
from nccltune.cli import app, examining, machine_check
from nccltune.errors import Interrupted, StudyError
from nccltune.launch.libraries import Libraries, libraries_of
from nccltune.machine import topology
from nccltune.machine.gpu_links import Pcie
from nccltune.machine.gpus import Gpu, GpuProcess
from nccltune.nccl import env_files
from nccltune.nccl.site import SiteVariable
from nccltune.output.diagnosis import paragraph
from nccltune.stats.step import Diagnosis, PairSpeed, Shares
from nccltune.study.options import SearchOptions
from nccltune.study.survey import Survey

OPTIONS = {
    "--model", "--device", "--backend", "--nproc-per-node", "--launcher", "--python",
    "--allow-busy", "--batch-size", "--num-workers", "--image-size", "--data", "--precision",
    "--channels-last", "--cudnn-benchmark", "--no-cudnn-benchmark", "--json", "--no-launch",
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
PROBE = {
    "version": "2.27.5",
    "transport": ["P2P"],
    "network": None,
    "channels": 24,
    "nvls": True,
}
SITE = {"NCCL_NVLS_ENABLE": SiteVariable("NCCL_NVLS_ENABLE", "0", "environment")}
GPUS = tuple(Gpu(n, f"GPU-{n}", "NVIDIA H200", 150_754_820_096, 18) for n in range(2))
FOUND = Survey(SearchOptions(), TASK, MACHINE, GPUS, SITE, {}, "python", ())
FACTS = [
    "GPUs            2x NVIDIA H200, 140.4 GiB",
    "links           NV18 between all; 18 of 18 NVLinks up",
    "PCIe            unknown (virtual machine)",
    "NUMA            node 0: CPU 0-31 with GPU 0-1",
    "CPU             Some CPU, 32 cores",
    "limits          CPU 0-31, memory 256.0 GiB",
    "/dev/shm        256.0 GiB, 255.0 GiB free",
    "network         eth0 speed unknown (virtio_net); no RDMA device",
]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """2x H200 of a virtual machine, on which nothing disturbs and nothing is set."""
    install(monkeypatch, h200_machine())
    monkeypatch.setattr(topology, "read_host", lambda: HOST)
    monkeypatch.setattr(topology, "read_interfaces", lambda: (ETH0,))
    monkeypatch.setattr(topology, "read_rdma", lambda: ())
    for module in (machine_check, examining):
        monkeypatch.setattr(module, "processes", lambda _gpus: ())
    monkeypatch.setattr(machine_check, "taints", lambda *_, **__: ())
    monkeypatch.setattr(examining, "Watch", lambda *_: lambda: ())
    monkeypatch.setattr(env_files, "conf_files", lambda _environ: ())
    libraries = Libraries("22705", "here", "2.9.0")
    monkeypatch.setattr(machine_check, "libraries_of", lambda *_: libraries)
    return monkeypatch


@pytest.fixture
def ranks(machine: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """No ranks: `answer` is what they would give, an exception is raised. `temporary` is where
    logs go.
    """
    given: dict[str, Any] = {"found": FOUND, "answer": DIAGNOSIS, "temporary": tmp_path / "temp"}
    given["temporary"].mkdir()

    @contextlib.contextmanager
    def started(options: SearchOptions, _cache: Path) -> Iterator[Any]:
        given["options"] = options
        yield SimpleNamespace(found=given["found"], launcher=SimpleNamespace(warnings=["slow"] * 2))

    def diagnose(_found: Survey, _launcher: object, logs: Path, *, progress: Any) -> Diagnosis:
        logs.mkdir()
        (logs / "rank0.log").write_text("words")
        if isinstance(given["answer"], BaseException):
            raise given["answer"]
        assert isinstance(given["answer"], Diagnosis)
        progress({"type": "round", "round": 1, "rounds": 4})
        progress({"type": "window", "window": {"part": "whole", "steps": 5}})
        progress({"type": "window", "window": {"part": "loader", "steps": 5}})
        return given["answer"]

    machine.setattr(examining, "started", started)
    machine.setattr(examining, "diagnose", diagnose)
    machine.setattr(examining, "probe_machine", lambda *_: PROBE)
    machine.setattr(examining, "end_old", lambda: None)
    machine.setattr("tempfile.tempdir", str(given["temporary"]))
    return given


def stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


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
    told, _, rest = done.out.partition("Of a step")
    step, _, table = f"Of a step{rest}".partition("\n\n")
    assert stripped(told) == [
        "warning  Exposed communication, with waiting for slower ranks, takes 25% of the step "
        "(limit 20%).",
        "         next: nccltune search --batch-size 32 --only env --only ddp; larger batches "
        "communicate less often",
        "warning  GPUs wait for their hosts to launch kernels 12% of the step (limit 10%), which "
        "no setting searched here",
        "         changes.",
        "         next: torch.compile or CUDA graphs, a larger batch, a faster processor",
        "",
    ]
    assert " ".join(step.split()) == paragraph(DIAGNOSIS)
    assert stripped(table) == [
        "rank  data  compute  communication  host  kernels  NVML    alone  awaiting data",
        "   0    2%      61%            25%   12%      61%   98%  32.8 ms         1.0 ms",
        "   1    2%      65%            25%    8%      65%   97%  32.7 ms         2.0 ms",
        "",
        *FACTS,
        "software        driver 570.1 (CUDA 13.0), torch 2.9.0 (CUDA 12.8), NCCL 2.27.5",
        "job             resnet50, 2 ranks with nccl, batch 64, 2 loader workers and 8 cores a "
        "rank",
        "NCCL chose      P2P, 24 channels, NVLS",
        "site variables  NCCL_NVLS_ENABLE=0",
    ]
    assert max(len(line) for line in done.out.splitlines()) <= 120
    assert done.err.count("note: slow") == 1 and "round 1 of at most 4" in done.err
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
    ranks["found"] = replace(FOUND, machine=machine, task=task, site={}, gpus=())
    quiet = (Shares(0.0, 0.95, 0.05, 0.0),) * 2
    ranks["answer"] = replace(DIAGNOSIS, ranks=quiet, gpu_busy=(), utilization=())
    done = nccltune_command("doctor")
    lines = stripped(done.out)
    assert lines[0] == "Nothing is out of the ordinary."
    at = lines.index("rank  data  compute  communication    alone  awaiting data") + 4
    assert lines[at:] == [
        "GPUs            none in use",
        "NUMA            node 0: CPU 0-31",
        "CPU             Some CPU, 32 cores",
        *FACTS[5:],
        "software        torch 2.9.0, NCCL 2.27.5",
        "job             resnet50, 2 ranks with gloo, batch 64, 2 loader workers and 1.5 cores a "
        "rank",
        "site variables  none",
    ]


def test_as_json(nccltune_command: Command, ranks: dict[str, Any]) -> None:
    done = nccltune_command("doctor", "--json")
    assert done.code == 0
    told = json.loads(done.out)
    assert told["diagnosis"]["ranks"][0]["host"] == 0.12
    assert told["nccl"] == PROBE
    assert told["site"] == {"NCCL_NVLS_ENABLE": "0"}
    assert [f["about"] for f in told["findings"]] == ["communication", "host"]
    assert set(told["findings"][0]) == {"severity", "about", "fact", "next"}
    assert told["topology"]["pairs"][0]["label"] == "NV18"
    assert told["used"] == [0, 1] and told["best_gpus"] == {"2": [0, 1]}
    assert told["lint"] == told["contaminations"] == []


def test_pairs_that_were_measured_are_told(
    nccltune_command: Command, ranks: dict[str, Any], machine: pytest.MonkeyPatch
) -> None:
    install(machine, bridged_machine())
    four = tuple(Gpu(n, f"GPU-{n}", "NVIDIA A100 80GB PCIe", 80 << 30, 12) for n in range(4))
    ranks["found"] = replace(FOUND, gpus=four, task=replace(TASK, nproc_per_node=4))
    speeds = {(0, 2): 240e9, (1, 3): 236e9}
    pairs = [PairSpeed(i, j, speeds.get((i, j), 11e9)) for i in range(4) for j in range(i + 1, 4)]
    ranks["answer"] = replace(DIAGNOSIS, world_size=4, pairs=tuple(pairs))
    out = nccltune_command("doctor").out
    assert (
        "pairs           slowest 11 GB/s each way, GPUs 0 and 1 (SYS); fastest 240 GB/s, GPUs 0 "
        "and 2 (NV12)"
    ) in stripped(out)
    assert "note     GPUs 0 and 1 (SYS) exchange 11 GB/s each way, GPUs 0 and 2 (NV12) 240" in out
    assert out.count("all-reduce goes at the pace") == 1
    told = json.loads(nccltune_command("doctor", "--json").out)["diagnosis"]["pairs"]
    assert told[1] == {"first": 0, "second": 2, "bytes_per_second": 240e9}


def test_others_on_the_gpus_are_told_and_nothing_is_launched(
    nccltune_command: Command, ranks: dict[str, Any], machine: pytest.MonkeyPatch
) -> None:
    machine.setattr(examining, "processes", lambda _gpus: (GpuProcess(1, 77, "python"),))
    ranks["answer"] = AssertionError("launched")
    done = nccltune_command("doctor", "--json")
    assert done.code == 0
    told = json.loads(done.out)
    assert told["diagnosis"] is None and told["nccl"] is None
    assert told["contaminations"] == ["GPU 1: process 77 (python)"]
    assert told["findings"][0]["severity"] == "error"
    assert "no rank was started" in nccltune_command("doctor").out
    ranks["answer"] = DIAGNOSIS
    done = nccltune_command("doctor", "--json", "--allow-busy")
    assert json.loads(done.out)["diagnosis"] is not None


def test_the_links_of_working_gpus_are_read(
    nccltune_command: Command, ranks: dict[str, Any], machine: pytest.MonkeyPatch
) -> None:
    slow = Pcie(3, 16, 5, 16, 5, busy=True)
    machine.setattr(examining, "read_pcie", lambda gpus: (slow,) * len(gpus))
    lines = stripped(nccltune_command("doctor").out)
    assert "warning  GPUs 0-1: PCIe runs at generation 3 of 5 under load." in lines
    assert "PCIe            generation 3 of 5, 16 of 16 lanes" in lines


# The machine alone.


@pytest.fixture
def alone(machine: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing may be launched."""

    def launched(*_: object, **__: object) -> None:
        raise AssertionError("launched")

    machine.setattr(examining, "started", launched)
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        machine.delenv(name)
    return machine


def test_the_machine_alone(nccltune_command: Command, alone: pytest.MonkeyPatch) -> None:
    done = nccltune_command("doctor", "--no-launch")
    assert (done.code, done.err) == (0, "")
    lines = stripped(done.out)
    assert lines[:5] == ["Nothing is out of the ordinary.", "", *FACTS[:3]]
    assert lines[6].startswith("CPU ")
    assert lines[-2:] == [
        "software        driver 580.159.04 (CUDA 13.0), torch 2.9.0, NCCL 2.27.5",
        "site variables  none",
    ]
    assert len(lines) <= 24


def test_settings_and_what_disturbs(nccltune_command: Command, alone: pytest.MonkeyPatch) -> None:
    alone.setenv("NCCL_BUFFSIZE", "8M")
    alone.setattr(machine_check, "taints", lambda *_, **__: ("GPU 0 was slowed by heat",))
    told = json.loads(nccltune_command("doctor", "--no-launch", "--json").out)
    assert [(f["severity"], f["about"]) for f in told["findings"]] == [
        ("error", "site variables"),
        ("warning", "contamination"),
    ]
    assert told["lint"][0]["rule"] == "unreadable-number"
    assert told["job"] is None and told["diagnosis"] is None and told["summary"] is None
    assert told["contaminations"] == ["GPU 0 was slowed by heat"]


def test_nccl_conf_counts_as_well(
    nccltune_command: Command, alone: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_BUFSIZE=8388608\n")
    alone.setattr(env_files, "conf_files", lambda _environ: (conf,))
    told = json.loads(nccltune_command("doctor", "--no-launch", "--json").out)
    assert (str(conf), "misspelt") in [(f["file"], f["rule"]) for f in told["lint"]]


def test_nothing_of_a_site_variable_reaches_the_terminal_raw(
    nccltune_command: Command, alone: pytest.MonkeyPatch
) -> None:
    alone.setenv("NCCL_NET", "\x1b[31m\udcff[red]")
    done = nccltune_command("doctor", "--no-launch")
    assert done.code == 0 and "\x1b" not in done.out
    assert stripped(done.out)[-1] == r"site variables  NCCL_NET=\x1b[31m\udcff[red]"


def test_settings_of_a_conf_file_that_the_environment_has_too(
    nccltune_command: Command, alone: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on a real machine: what was one error and four notes is one line."""
    off = {
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NVSHMEM_DISABLE_NVLS": "1",
    }
    conf = tmp_path / "nccl.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in off.items()))
    alone.setattr(env_files, "conf_files", lambda _environ: (conf,))
    for name, value in {**off, "NCCL_VERSION": "2.28.3-1"}.items():
        alone.setenv(name, value)
    done = nccltune_command("doctor", "--no-launch")
    assert stripped(done.out)[:4] == [
        "note  4 notes on NCCL_VERSION, TORCH_SYMM_MEM_DISABLE_MULTICAST, NCCL_NVLS_ENABLE, "
        "NVSHMEM_DISABLE_NVLS.",
        "      next: nccltune lint",
        "",
        FACTS[0],
    ]
    alone.delenv("TORCH_SYMM_MEM_DISABLE_MULTICAST")
    [first, *_] = json.loads(nccltune_command("doctor", "--no-launch", "--json").out)["findings"]
    assert first == {
        "severity": "error",
        "about": "site variables",
        "fact": f"{conf}, line 1: TORCH_SYMM_MEM_DISABLE_MULTICAST: it is read before NCCL reads "
        "this file; export it instead",
        "next": f"change that line; nccltune lint {conf} says more",
    }


@pytest.mark.parametrize("kind", ["folder", "binary", "large", "missing"])
def test_settings_that_cannot_be_read_are_told(
    nccltune_command: Command, alone: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    conf = tmp_path / "nccl.conf"
    if kind == "folder":
        conf.mkdir()
    elif kind != "missing":
        conf.write_bytes(b"NCCL_ALGO=Ring\0\n" if kind == "binary" else b"#" * (1 << 21))
    alone.setenv("NCCL_CONF_FILE", str(conf))
    alone.setattr(env_files, "conf_files", lambda _environ: (conf,))
    reason = {
        "folder": "is no file, and is not looked at",
        "binary": "holds NUL bytes: no text file; NCCL may read it all the same",
        "large": "larger than 1048576 bytes: no file of settings; NCCL may read it all the same",
        "missing": "which NCCL_CONF_FILE names, is not there",
    }[kind]
    done = nccltune_command("doctor", "--no-launch", "--json")
    [found] = [
        f for f in json.loads(done.out)["findings"] if f["fact"].startswith("Settings of NCCL")
    ]
    assert found["severity"] == "warning" and done.code == 0
    assert str(conf) in found["fact"] and reason in found["fact"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_settings_without_the_right_to_read_them(
    nccltune_command: Command, alone: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_ALGO=Ring\n")
    conf.chmod(0)
    alone.setattr(env_files, "conf_files", lambda _environ: (conf,))
    out = nccltune_command("doctor", "--no-launch").out
    assert out.startswith(f"warning  Settings of NCCL are not known: {conf}: cannot be read: Perm")


def test_gpus_that_are_asked_for_and_missing(
    nccltune_command: Command, alone: pytest.MonkeyPatch
) -> None:
    install(alone, None)
    alone.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    done = nccltune_command("doctor", "--no-launch", "--device", "cuda")
    assert done.code == 0
    first = stripped(done.out)[0]
    assert first == "error  No GPU for --device cuda: this machine shows no NVIDIA GPU."
    assert "GPUs            none in use" in done.out  # and the rest
    for device in ("auto", "cpu"):
        assert "No GPU" not in nccltune_command("doctor", "--no-launch", "--device", device).out
    install(alone, h200_machine())
    assert "No GPU" not in nccltune_command("doctor", "--no-launch", "--device", "cuda").out
    alone.setenv("CUDA_VISIBLE_DEVICES", "-1")
    [found] = json.loads(
        nccltune_command("doctor", "--no-launch", "--device", "cuda", "--json").out
    )["findings"]
    assert found["fact"] == "No GPU for --device cuda: no GPU is left by CUDA_VISIBLE_DEVICES=-1"


def test_a_program_that_is_no_python_is_named(
    nccltune_command: Command, alone: pytest.MonkeyPatch
) -> None:
    alone.setattr(machine_check, "libraries_of", libraries_of)
    out = nccltune_command("doctor", "--no-launch", "--python", "yes").out
    told = " ".join(out.split())
    assert told.startswith(f"warning No torch was found in {shutil.which('yes')}, which printed")
    assert "more than 1 MiB and did not answer as a Python would" in told
    assert "next: give the job's own interpreter with --python" in told


def test_a_python_without_torch_is_told(
    nccltune_command: Command, alone: pytest.MonkeyPatch
) -> None:
    alone.setattr(machine_check, "libraries_of", lambda *_: Libraries())
    out = stripped(nccltune_command("doctor", "--no-launch", "--python", sys.executable).out)
    assert out[0].startswith(f"warning  No torch was found in {sys.executable}")
    assert "--python" in out[1] or "--python" in out[2]


def test_which_gpus_fewer_ranks_take(nccltune_command: Command, alone: pytest.MonkeyPatch) -> None:
    install(alone, bridged_machine())
    out = stripped(nccltune_command("doctor", "--no-launch", "--nproc-per-node", "2").out)
    assert out[:2] == [
        "warning  2 ranks run on GPUs 0-1, where the slowest way is SYS; GPUs 0,2 have NV12.",
        "         next: take CUDA_VISIBLE_DEVICES=0,2",
    ]
    assert "ranks           for 2 take CUDA_VISIBLE_DEVICES=0,2 (NV12)" in out
    done = nccltune_command("doctor", "--no-launch", "--nproc-per-node", "5")
    assert (done.code, done.out) == (2, "") and "more ranks than GPUs (4 visible)" in done.err


def test_which_pair_is_the_slowest(nccltune_command: Command, alone: pytest.MonkeyPatch) -> None:
    install(alone, bridged_machine())
    out = stripped(nccltune_command("doctor", "--no-launch").out)
    assert "pairs           slowest GPUs 0 and 1 (SYS), like 3 others; not measured" in out


def test_a_machine_without_gpus(nccltune_command: Command, alone: pytest.MonkeyPatch) -> None:
    install(alone, None)
    out = stripped(nccltune_command("doctor", "--no-launch").out)
    assert "GPUs            none in use" in out
    install(alone, h200_machine())
    assert out == stripped(nccltune_command("doctor", "--no-launch", "--device", "cpu").out)


def test_many_findings_are_cut_on_the_screen(
    nccltune_command: Command, alone: pytest.MonkeyPatch
) -> None:
    alone.setattr(
        machine_check, "taints", lambda *_, **__: tuple(f"GPU {n} was slowed" for n in range(11))
    )
    assert "and 3 more: --json has all" in nccltune_command("doctor", "--no-launch").out
    assert (
        len(json.loads(nccltune_command("doctor", "--no-launch", "--json").out)["findings"]) == 11
    )


# Ranks that fail.


def test_a_failure_comes_with_what_is_wrong_here(
    nccltune_command: Command, ranks: dict[str, Any], machine: pytest.MonkeyPatch
) -> None:
    machine.setattr(topology, "read_host", lambda: replace(HOST, shm_bytes=64 << 20))
    ranks["answer"] = StudyError("the job failed")
    done = nccltune_command("doctor")
    assert (done.code, done.out) == (1, "")
    assert "warning: /dev/shm has 64 MiB (limit 1.0 GiB)" in done.err


def test_logs_stay_where_ranks_failed(nccltune_command: Command, ranks: dict[str, Any]) -> None:
    ranks["answer"] = StudyError("the job failed")
    assert nccltune_command("doctor").code == 1
    [folder] = ranks["temporary"].iterdir()
    assert (folder / "launch/rank0.log").read_text() == "words"


def test_logs_go_where_the_user_stopped(nccltune_command: Command, ranks: dict[str, Any]) -> None:
    ranks["answer"] = Interrupted("interrupted")
    assert nccltune_command("doctor").code == 130
    assert not list(ranks["temporary"].iterdir())
