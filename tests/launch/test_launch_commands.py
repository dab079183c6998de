"""What a job's command line tells before it is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nccltune.launch.commands import JobCommand, python_script, rank_count, read_command


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH holds a torchrun of the Python that runs this, and others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    texts = {
        "torchrun": f"#!{sys.executable}\nimport torch\n",
        "accelerate": f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n",
        "train.sh": "#!/bin/bash\ntorchrun train.py\n",
        "by-env": "#!/usr/bin/env -S A=1 python3 -u\n",
        "binary": "\x7fELF",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "python3").symlink_to(sys.executable)
    return {"PATH": str(folder)}


@pytest.mark.parametrize(
    ("command", "ranks", "without"),
    [
        ("torchrun train.py", None, None),
        ("torchrun --nproc-per-node 8 train.py --nproc-per-node 9", "8", None),
        ("torchrun --nproc_per_node=gpu -m pkg.train", "gpu", None),
        ("torchrun --standalone --nnodes 1 --nproc-per-node 2 -m pkg.train --no-python", "2", None),
        ("torchrun -r 3 -t 1 --no-python --nproc-per-node=4 ./train", "4", "--no-python"),
        ("torchrun --run_path train.py", None, "--run-path"),
        ("torchrun --local-addr a", None, None),
        ("torchrun", None, None),
    ],
)
def test_torchrun(
    programs: dict[str, str], command: str, ranks: str | None, without: str | None
) -> None:
    found = read_command(command.split(), programs)
    assert (found.way, found.python) == ("torchrun", sys.executable)
    assert (found.ranks, found.without_python) == (ranks, without)


def test_torchruns_options_from_the_environment(programs: dict[str, str]) -> None:
    env = {**programs, "PET_NPROC_PER_NODE": "4", "PET_NO_PYTHON": "1", "PET_RUN_PATH": "0"}
    found = read_command(["torchrun", "train.py"], env)
    assert (found.ranks, found.without_python) == ("4", "--no-python")
    found = read_command(["torchrun", "--nproc-per-node=2", "train.py"], env)
    assert found.ranks == "2"


@pytest.mark.parametrize(
    "command",
    [
        "python3 -m torch.distributed.run --nproc-per-node 2 train.py",
        "python3 -u -m torch.distributed.launch --nproc-per-node 2 train.py",
        "python3 -X dev /somewhere/bin/torchrun --nproc-per-node 2 train.py",
    ],
)
def test_torchrun_by_python(programs: dict[str, str], command: str) -> None:
    found = read_command(command.split(), programs)
    assert (found.way, found.ranks) == ("torchrun", "2")
    assert found.python == f"{programs['PATH']}/python3"


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python3 train.py -m x", 1),
        ("python3 -u train.py", 2),
        ("python3 -uB -W ignore -Xdev -X faulthandler -OO train.py -c", 8),
        ("python3 -m pkg.train -u", 1),
        ("python3 -Es --check-hash-based-pycs never -m train", 4),
        ("/usr/bin/python3.12 -I train.py", 2),
    ],
)
def test_a_script_by_python(programs: dict[str, str], command: str, script: int) -> None:
    found = read_command(command.split(), programs)
    assert (found.way, found.script) == ("python", script)


@pytest.mark.parametrize(
    "command",
    ["python3", "python3 -c pass", "python3 -", "python3 -m", "python3 -um x", "python3 -V"],
)
def test_python_without_a_script_to_attach_to(programs: dict[str, str], command: str) -> None:
    assert python_script(command.split()) is None
    assert read_command(command.split(), programs).way == "other"


@pytest.mark.parametrize(
    ("command", "python"),
    [
        ("accelerate launch train.py", sys.executable),
        ("train.sh --nproc-per-node 2", None),
        ("binary", None),
        ("not-there", None),
        ("srun torchrun train.py", None),
    ],
)
def test_everything_else(programs: dict[str, str], command: str, python: str | None) -> None:
    argv = command.split()
    assert read_command(argv, programs) == JobCommand(tuple(argv), "other", python)


def test_a_first_line_that_leaves_it_to_env(programs: dict[str, str]) -> None:
    assert read_command(["by-env"], programs).python == f"{programs['PATH']}/python3"


@pytest.mark.parametrize(
    ("text", "count"),
    [("8", 8), (None, None), ("gpu", None), ("auto", None), ("", None), ("-1", None),
     ("9" * 5000, None)],
)  # fmt: skip
def test_a_number_of_ranks(text: str | None, count: int | None) -> None:
    assert rank_count(text) == count
