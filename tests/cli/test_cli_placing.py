"""Whether a command has in it what its script was measured with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nccltune.cli.placing import placed_notes
from nccltune.launch.commands import read_command
from nccltune.output.best import Best

GIVE = "measured with 64 for {batch_size} in the script's arguments; give it there"
LESS = "measured with 64 for {batch_size} in the script's arguments; here it is 32"


def notes(script: Any, command: str, **placed: str) -> list[str]:
    best = Best(
        env={}, ddp={}, loader={}, batch_size=64, verdict=None, machine={}, provenance={},
        workload={"script": script, "placed": placed or {"batch_size": "64"}},
    )  # fmt: skip
    return list(placed_notes(best, read_command(command.split(), {})))


OPTION = ["train.py", "data", "--batch-size", "{batch_size}"]
EQUALS = ["train.py", "--batch-size={batch_size}"]
WORD = ["train.py", "{batch_size}"]
HYDRA = ["train.py", "data.batch={batch_size}"]
MODULE = ["-m", "package.train", "--bs", "{batch_size}"]
TORCHRUN = ["torchrun", "--nproc-per-node", "2", "train.py", "--bs", "{batch_size}"]


@pytest.mark.parametrize(
    ("script", "command"),
    [
        (OPTION, "torchrun --nproc-per-node=2 train.py data --batch-size 64"),
        (OPTION, "torchrun /elsewhere/train.py --batch-size=64 data"),
        (OPTION, "python train.py data --batch-size 32 --batch-size 64"),
        (EQUALS, "torchrun train.py --batch-size 64"),
        (WORD, "torchrun train.py 64"),
        (HYDRA, "torchrun train.py data.batch=64"),
        (MODULE, "torchrun -m package.train --bs 64"),
        (MODULE, "python -m package.train --bs 64"),
        (TORCHRUN, "torchrun --standalone train.py --bs 64"),
    ],
)
def test_a_value_that_is_given_is_no_matter(script: Any, command: str) -> None:
    assert notes(script, command) == []


@pytest.mark.parametrize(
    ("script", "command", "told"),
    [
        (OPTION, "torchrun train.py data --batch-size 32", LESS),
        (OPTION, "torchrun train.py data", GIVE),
        (HYDRA, "torchrun train.py data.batch=32", LESS),
        (WORD, "torchrun train.py 32", GIVE),
        (OPTION, "torchrun --nproc-per-node 64 train.py data", GIVE),
        (MODULE, "torchrun -m package.train", GIVE),
        (OPTION, "sh start.sh --batch-size 64", GIVE),
        (None, "torchrun train.py --batch-size 64", GIVE),
        ([7], "torchrun train.py --batch-size 64", GIVE),
    ],
)
def test_another_value_and_what_cannot_be_seen(script: Any, command: str, told: str) -> None:
    assert notes(script, command) == [told]


@pytest.mark.parametrize(
    "command", ["torchrun other.py --batch-size 32", "python -m package.other"]
)
@pytest.mark.parametrize("script", [OPTION, MODULE, TORCHRUN])
def test_another_script_is_no_matter(script: Any, command: str) -> None:
    assert notes(script, command) == []


def test_each_value_by_itself() -> None:
    script = [*OPTION, "-j", "{num_workers}"]
    placed = {"batch_size": "64", "num_workers": "4"}
    assert notes(script, "torchrun train.py --batch-size 64 -j 2", **placed) == [
        "measured with 4 for {num_workers} in the script's arguments; here it is 2"
    ]


def test_a_place_that_is_in_the_definition_of_a_file_alone(tmp_path: Path) -> None:
    best = Best(
        env={}, ddp={}, loader={}, batch_size=8, verdict=None, machine={}, provenance={},
        workload={"placed": ["odd"]},
    )  # fmt: skip
    assert list(placed_notes(best, read_command(["torchrun", "train.py"], {}))) == []
