"""The examples as a user runs them: real torchrun, two ranks on the CPU."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from nccltune.cli.retune import retune
from nccltune.output.best import Best
from nccltune.output.env_file import env_file

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TRAIN = EXAMPLES / "train_ddp.py"
GPT = {"GPT_LAYERS": "1", "GPT_WIDTH": "32", "GPT_LENGTH": "8", "GPT_VOCABULARY": "64"}
VARIABLES = {"NCCL_ALGO": "ring,tree;allreduce:ring"}  # gloo does not look at it
START = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
SMALL = ("--device=cpu", "--image-size=32", "--steps=3", "--samples=64", "--num-workers=0")

IMAGES = ("--arch=squeezenet1_1", "--image-size=32", "--samples=112")
TOKENS = ("--layers=1", "--hidden-size=32", "--sequence-length=8", "--samples=112")
STRANGERS = {  # scripts that know nothing of nccltune, and the checkpoints of two epochs
    "train_imagenet": (IMAGES, ("squeezenet1_1-0.pt", "squeezenet1_1-1.pt")),
    "train_accelerate": (TOKENS, ("epoch_0/model.safetensors", "epoch_1/model.safetensors")),
    "train_lightning": (IMAGES, ("lightning_logs/version_0/checkpoints/*.ckpt",)),
    "train_hf_trainer": (TOKENS, ("checkpoint-14/model.safetensors", "checkpoint-20/*.bin")),
}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A folder with the two files of a result, in a place with a space in its name."""
    folder = tmp_path / "a study"
    folder.mkdir()
    best = Best(
        env=VARIABLES,
        ddp={"bucket_cap_mb": 5, "gradient_as_bucket_view": True},
        loader={
            "num_workers": 1,
            "pin_memory": False,
            "persistent_workers": True,
            "prefetch_factor": 4,
        },
        batch_size=3,
        workload={},
        verdict=None,
        machine={},
        provenance={},
    )
    (folder / "best.yaml").write_text(best.to_yaml())
    (folder / "best.env").write_text(env_file(VARIABLES, ["made by a test"]))
    return folder


def run(*command: str | Path, env: Mapping[str, str] | None = None) -> tuple[str, str]:
    """(stdout, stderr) of a command that succeeds."""
    site = os.environ.items()
    base = {name: value for name, value in site if not name.startswith("NCCL_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{base.get('PATH', '')}"
    done = subprocess.run(
        [str(part) for part in command],
        env={**base, "PATH": path, "OMP_NUM_THREADS": "1", **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def torchrun(*arguments: str | Path, env: Mapping[str, str] | None = None) -> tuple[str, str]:
    return run(*START, TRAIN, *SMALL, *arguments, env=env)


def loss_of(output: str) -> float:
    found = re.search(r"^epoch 0: 3 steps, loss (\S+), \S+ samples/s$", output, re.M)
    assert found is not None, output
    return float(found[1])


@pytest.mark.ranks
@pytest.mark.slow
def test_training_needs_no_nccltune(tmp_path: Path) -> None:
    (tmp_path / "nccltune.py").write_text("raise ImportError('not installed')\n")

    output, _ = torchrun("--batch-size=2", env={"PYTHONPATH": str(tmp_path)})

    assert 0 < loss_of(output) < 100


@pytest.mark.ranks
@pytest.mark.slow
def test_a_result_that_was_not_sourced_is_told(study: Path) -> None:
    output, errors = torchrun("--best", study / "best.yaml")

    assert 0 < loss_of(output) < 100
    told = f"not as in {study}/best.yaml: NCCL_ALGO; source best.env first"
    assert errors.splitlines().count(told) == 1


@pytest.mark.ranks
@pytest.mark.slow
def test_the_shell_script_applies_all_of_a_result(study: Path) -> None:
    # 12 images are two batches of 3 a rank, and not three steps of any batch of 64.
    options = [*SMALL, "--samples=12", "--batch-size=64"]

    output, errors = run(
        "sh", EXAMPLES / "use_best.sh", study, *options, env={"NPROC_PER_NODE": "2"}
    )

    assert re.search(r"^epoch 0: 2 steps, ", output, re.M), output
    assert "not as in" not in errors


def test_the_shell_script_says_how_it_is_used() -> None:
    done = subprocess.run(["sh", EXAMPLES / "use_best.sh"], capture_output=True, text=True)

    assert done.returncode == 2
    assert "STUDY" in done.stderr


@pytest.mark.parametrize(
    ("shell", "name"),
    [
        ("sh", "use_best.sh"),
        ("bash", "job.sbatch"),
        ("bash", "retune.sbatch"),
        ("bash", "search.sbatch"),
    ],
)
def test_shell_files_parse(shell: str, name: str) -> None:
    run(shell, "-n", EXAMPLES / name)


SEARCHING = """
import sys, time
from nccltune.launch.stopping import StopFlag

stop = StopFlag()
with stop.installed():
    print("searching", flush=True)
    for _ in range(3000):
        if stop.requested:
            print("told to stop", flush=True)
            sys.exit(5)
        time.sleep(0.01)
"""


@pytest.mark.parametrize("name", ["retune.sbatch", "search.sbatch"])
def test_a_batch_job_whose_time_is_up_tells_its_search(name: str, tmp_path: Path) -> None:
    """Slurm sends INT to the script alone, which is no terminal's: bash has INT ignored there."""
    (tmp_path / "searching.py").write_text(SEARCHING)
    program = tmp_path / "nccltune"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path}/searching.py 2>&1\n")
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "1",
    }
    output = tmp_path / ("retune-1.json" if name == "retune.sbatch" else "out")
    with (tmp_path / "out").open("w") as out:
        job = subprocess.Popen(["bash", EXAMPLES / name, "STUDY"], env=environment, stdout=out)
    until = time.monotonic() + 60
    while not output.exists() or "searching" not in output.read_text():
        assert job.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    job.send_signal(signal.SIGINT)
    assert job.wait(60) == 5
    assert "told to stop" in output.read_text()


def commands_of(name: str) -> list[list[str]]:
    """What an example tells `nccltune` to do, after its name."""
    lines = (EXAMPLES / name).read_text().splitlines()
    ours = [line for line in lines if "nccltune retune" in line and not line.startswith("#")]
    return [shlex.split(line.partition("nccltune ")[2].split(">")[0]) for line in ours]


@pytest.mark.parametrize("name", ["retune.service", "retune.sbatch"])
def test_periodic_examples_give_options_that_there_are(name: str) -> None:
    [[verb, *options]] = commands_of(name)
    assert verb == "retune"
    with retune.make_context("retune", options) as context:
        assert context.params["study"]
        assert context.params["when_idle"] or context.params["time_budget"]


def test_the_units_are_units() -> None:
    for name, wanted in (("retune.service", "ExecStart"), ("retune.timer", "OnCalendar")):
        unit = configparser.ConfigParser(strict=True, interpolation=None)
        unit.optionxform = str  # type: ignore[method-assign,assignment]
        unit.read_string((EXAMPLES / name).read_text())
        assert wanted in {key for section in unit.sections() for key in unit[section]}


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.parametrize("data", ["gpt:tokens", "synthetic"])
def test_the_gpt_of_ones_own_is_searched(data: str, tmp_path: Path) -> None:
    output, _ = run(
        *(sys.executable, "-m", "nccltune", "search", "--model=gpt:model", f"--data={data}"),
        *("--device=cpu", "--nproc-per-node=2", "--batch-size=2", "--num-workers=1", "--trials=2"),
        *("--confirm-launches=0", "--only=bucket_cap_mb", "--json", f"--studies-dir={tmp_path}"),
        env={**GPT, "PYTHONPATH": str(EXAMPLES)},
    )

    result = json.loads(output)
    assert (result["trials"], result["failures"]) == (2, {})
    assert result["baseline"]["samples_per_second"] > 0


def test_each_example_that_trains_is_tested() -> None:
    assert {file.stem for file in EXAMPLES.glob("train_*.py")} == {"train_ddp", *STRANGERS}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_strangers_script_knows_nothing_of_us(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()

    compile(text, name, "exec")
    assert "nccl" not in text.lower().replace('init_process_group("nccl")', "")


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.parametrize("name", STRANGERS)
def test_a_strangers_script_trains_as_it_is(name: str, tmp_path: Path) -> None:
    options, checkpoints = STRANGERS[name]
    limits = ("--batch-size=4", "--workers=1", "--skip-steps=2", "--epochs=9", "--max-steps=20")

    output, _ = run(
        *START, EXAMPLES / f"{name}.py", *options, *limits, f"--output-dir={tmp_path}"
    )  # 112 samples are 14 steps of two ranks

    rates = re.findall(r"^epoch (\d): (\d+\.\d) samples/s$", output, re.M)
    assert [epoch for epoch, _ in rates] == ["0", "1"], output
    assert all(float(rate) > 0 for _, rate in rates)
    for checkpoint in checkpoints:
        assert list(tmp_path.glob(checkpoint)), sorted(tmp_path.rglob("*"))
