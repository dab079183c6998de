"""`nccltune search -- SCRIPT` with the examples, which use the libraries that people use."""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from test_scripts import SHORT, Runner

from running import Cli

pytestmark = pytest.mark.ranks

EXAMPLES = Path(__file__).parents[2] / "examples"
_IMAGES = ("--arch", "squeezenet1_1", "--image-size", "32")
_TOKENS = (
    "--layers",
    "2",
    "--hidden-size",
    "64",
    "--sequence-length",
    "32",
    "--vocabulary",
    "1000",
)
SMALL = {
    "train_imagenet.py": _IMAGES,
    "train_accelerate.py": _TOKENS,
    "train_lightning.py": _IMAGES,
    "train_hf_trainer.py": _TOKENS,
}


# the example without one is enough for a short run
FRAMEWORKS = ("train_accelerate.py", "train_lightning.py", "train_hf_trainer.py")


@pytest.mark.parametrize(
    "example",
    [pytest.param(name, marks=pytest.mark.slow if name in FRAMEWORKS else ()) for name in SMALL],
)
def test_an_example_is_searched(cli: Cli, example: str) -> None:
    given = [str(EXAMPLES / example), *SMALL[example], "--batch-size", "{batch_size}"]
    given += ["--workers", "1", "--output-dir", "saved"]
    options = ["--trials", "1", "--confirm-launches", "0", "--batch-size", "4"]
    options += ["--measure-seconds", "0.3"]
    done = cli.run("search", *options, "--", *given)
    assert done.returncode == 0, done.stderr
    study = cli.study(f"{Path(example).stem}-gloo-x2")
    (trial,) = cli.trials(study.name)
    assert trial["state"] == "complete" and trial["value"] > 0
    seen = yaml.safe_load((study / "study.yaml").read_text())["probe"]["script"]
    assert seen["samples_per_step"] == [4.0, 4.0]
    assert len(seen["training"]) == 1 and seen["ddp_modules"] == 1
    feeding = next(r for r in seen["loaders"] if r["key"] == seen["training"][0])
    assert feeding["num_workers"] == 1 and feeding["place"].split(":")[0] == example
    best = yaml.safe_load((study / "best.yaml").read_text())
    assert best["batch_size"] == 4 and best["workload"]["training_loader"] == seen["training"]
    assert not list(cli.folder.glob("saved/**/*.pt")) + list(cli.folder.glob("saved/**/*.ckpt"))
    if example == "train_imagenet.py":
        again = cli.run("search", *options, "--", *given)
        assert again.returncode == 0 and "is finished: 1 of 1 trials are there" in again.stderr
        assert len(cli.trials(study.name)) == 1


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    runner = Runner(tmp_path_factory.mktemp("examples"))
    yield runner
    runner.close()


@pytest.mark.slow
@pytest.mark.parametrize("example", SMALL)
def test_it_measures_what_the_example_measures_itself(
    run: Runner, tmp_path: Path, example: str
) -> None:
    """In the same run: more epochs of fifty steps than it comes to; the script times forty each."""
    given = [*SMALL[example], "--batch-size", "8", "--workers", "0", "--samples", "800"]
    given += ["--epochs", "200"]
    long = replace(SHORT, windows=40, window_seconds=0.5, max_measure_seconds=60.0)
    ran = run(
        str(EXAMPLES / example), *given, "--output-dir", str(tmp_path / "saved"), settings=long
    )
    told = [float(rate) for rate in re.findall(r"epoch \d+: ([\d.]+) samples/s", ran.printed())]
    assert len(told) >= 3
    counting = [w for w in ran.result["windows"] if w["counts"]]
    seconds = sum(max(w["rank_seconds"]) for w in counting)
    measured = sum(w["samples"] for w in counting) / seconds
    assert measured == pytest.approx(statistics.fmean(told[1:]), rel=0.05)


@pytest.mark.slow
def test_a_script_is_searched_to_its_verdict_and_the_result_is_run(cli: Cli) -> None:
    example = str(EXAMPLES / "train_imagenet.py")
    given = [example, *_IMAGES, "--batch-size", "8", "--workers", "0"]
    options = ["--trials", "3", "--confirm-launches", "6", "--only", "gradient_as_bucket_view"]
    done = cli.run("search", *options, "--", *given)
    assert done.returncode == 0, done.stderr
    assert "Verdict: " in done.stdout
    best = cli.study("train_imagenet-gloo-x2") / "best.yaml"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    applied = cli.run("run", str(best), "--", *torchrun, *given, "--max-steps", "40")
    assert applied.returncode == 0, applied.stderr
    assert re.search(r"epoch 0: [\d.]+ samples/s", applied.stdout)
