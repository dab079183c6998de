"""`nccltune search -- SCRIPT` by somebody who mistypes: what is told, and that it can be mended."""

from __future__ import annotations

import signal

import pytest
import yaml

from running import Cli

pytestmark = pytest.mark.ranks

TRAIN = """
import sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
data = TensorDataset(torch.randn(256, 8))
loader = DataLoader(data, batch_size=4, shuffle=True)
other = DataLoader(data, batch_size=4)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = int(sys.argv[1])
while steps > 0:
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        steps -= 1
        if not steps:
            break
"""
OPTIONS = ["--trials", "1", "--confirm-launches", "0", "--measure-seconds", "0.3"]
MADE = "1:TensorDataset (train.py:9), 2:TensorDataset (train.py:10)"


@pytest.fixture(autouse=True)
def script(cli: Cli) -> None:
    (cli.folder / "train.py").write_text(TRAIN)


@pytest.mark.slow
def test_a_search_is_mended_until_it_runs(cli: Cli) -> None:
    """Each command is another one, and none is in the way of the next."""
    study = cli.study("train-gloo-x2")

    done = cli.run("search", *OPTIONS, "--loader-match", "trian.py:9", "--", "train.py", "14")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == (
        f"nccltune: error: --loader-match trian.py:9 matches no DataLoader; made were: {MADE}"
    )
    assert not (study / "study.yaml").exists()

    # Enough to look at, and too little to measure.
    done = cli.run("search", *OPTIONS, "--loader-match", "train.py:9", "--", "train.py", "14")
    assert done.returncode == 1
    assert (
        "the baseline itself failed (ended): train.py ended with exit code 0 after 14 steps, "
        "before it was measured: let it train for longer (more epochs, or a larger data set), and "
        "run that command" in done.stderr
    )
    assert "same command" not in done.stderr and "\n\n" not in done.stderr
    assert "ScriptEnded" not in done.stderr
    assert (study / "study.yaml").exists() and not (study / "trials.jsonl").exists()

    longer = [*OPTIONS, "--", "train.py", "1000000"]
    dry = cli.run("search", "--dry-run", *longer)
    assert dry.returncode == 0, dry.stderr
    assert "0 of 1 trials done" in dry.stdout
    assert yaml.safe_load((study / "study.yaml").read_text())["workload"]["script"][1] == "14"

    done = cli.run("search", *longer)
    assert done.returncode == 0, done.stderr
    assert "other files that it writes are really written (--workdir scratch: in" in done.stderr
    assert yaml.safe_load((study / "study.yaml").read_text())["workload"]["script"][1] == "1000000"
    [trial] = cli.trials(study.name)
    assert trial["state"] == "complete"
    cli.assert_nothing_left()


def test_interrupted_at_the_start(cli: Cli) -> None:
    tuner = cli.start("search", *OPTIONS, "--", "train.py", "14")
    assert tuner.stderr is not None
    assert tuner.stderr.readline().startswith("asking ")
    tuner.send_signal(signal.SIGINT)
    _, err = tuner.communicate(timeout=60)
    assert (tuner.returncode, err) == (
        130, "nccltune: interrupted at the start; nothing was begun\n",
    )  # fmt: skip
    assert not (cli.folder / "studies").exists()
    cli.assert_nothing_left()
