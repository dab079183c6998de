"""`nccltune.apply` in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nccltune.output.best import Best

BEST = Best(
    env={"NCCL_ALGO": "Ring", "NCCL_BUFFSIZE": "1048576"}, ddp={"bucket_cap_mb": 50},
    loader={"num_workers": 4}, batch_size=8, workload={}, verdict=None, machine={}, provenance={},
)  # fmt: skip
SHOW = "print(*(os.environ.get(n) for n in ('NCCL_ALGO', 'NCCL_BUFFSIZE')))\n"
GROUP = (
    "import torch.distributed as dist\n"
    "dist.init_process_group('gloo', init_method='file://' + os.path.abspath('store'), rank=0, "
    "world_size=1)\n"
)


@pytest.fixture(autouse=True)
def best(tmp_path: Path) -> Path:
    (tmp_path / "best.yaml").write_text(BEST.to_yaml())
    return tmp_path / "best.yaml"


def run(folder: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(f"import os, sys, nccltune\n{code}")
    plain = {n: v for n, v in os.environ.items() if not n.startswith(("NCCL", "LOCAL_RANK"))}
    return subprocess.run(
        [sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, timeout=120,
        env={**plain, "NCCL_CONF_FILE": "/nowhere", **env},
    )  # fmt: skip


def test_the_variables_are_there_for_code_in_c_too(tmp_path: Path) -> None:
    code = (
        "best = nccltune.apply('best.yaml')\n" + SHOW + "print(best.ddp_kwargs, best.batch_size)\n"
        "import ctypes\n"
        "get = ctypes.CDLL(None).getenv; get.restype = ctypes.c_char_p\n"
        "print(get(b'NCCL_ALGO'), 'torch' in sys.modules)"
    )
    done = run(tmp_path, code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Ring 1048576\n{'bucket_cap_mb': 50} 8\nb'Ring' False\n"


def test_a_file_that_the_environment_names(tmp_path: Path) -> None:
    done = run(tmp_path, "nccltune.apply()\n" + SHOW, NCCLTUNE_BEST="best.yaml")
    assert (done.stdout, done.stderr) == ("Ring 1048576\n", "")
    done = run(tmp_path, "nccltune.apply()")
    assert done.stderr.endswith(
        "UsageError: nccltune.apply: name a best.yaml, or set NCCLTUNE_BEST to its path\n"
    )


def test_what_is_set_already_stays_and_is_told_once(tmp_path: Path) -> None:
    code = "for _ in range(3):\n    nccltune.apply('best.yaml')\n" + SHOW
    done = run(tmp_path, code, NCCL_ALGO="Tree")
    assert done.stdout == "Tree 1048576\n"
    assert done.stderr.count("UserWarning") == 1
    assert (
        f"{tmp_path}/train.py:3: UserWarning: nccltune.apply: NCCL_ALGO stays 'Tree', which the "
        "environment sets; the file has 'Ring'\n"
    ) in done.stderr
    other = run(tmp_path, code, NCCL_ALGO="Tree", LOCAL_RANK="1")
    assert (other.stdout, other.stderr) == (done.stdout, "")


def test_too_late(tmp_path: Path) -> None:
    late = GROUP + "try:\n    nccltune.apply('best.yaml')\nfinally:\n    " + SHOW
    done = run(tmp_path, late)
    assert done.returncode == 1
    assert done.stdout == "None None\n"  # nothing of it is set
    assert "UsageError: nccltune.apply: too late to set NCCL_ALGO, NCCL_BUFFSIZE: " in done.stderr


def test_it_is_not_too_late_where_all_is_set(tmp_path: Path) -> None:
    code = "nccltune.apply('best.yaml')\n" + GROUP + "nccltune.apply('best.yaml')\n" + SHOW
    done = run(tmp_path, code)
    assert (done.returncode, done.stdout) == (0, "Ring 1048576\n")


def test_in_time_before_the_process_group(tmp_path: Path) -> None:
    done = run(tmp_path, "import torch.distributed\nnccltune.apply('best.yaml')\n" + SHOW)
    assert (done.returncode, done.stdout) == (0, "Ring 1048576\n")


def test_in_a_trial_the_trial_holds(tmp_path: Path) -> None:
    code = "for _ in range(3):\n    best = nccltune.apply('best.yaml')\n" + SHOW + "print(best.ddp)"
    done = run(tmp_path, code, NCCLTUNE_TRIAL="1")
    assert done.stdout == "None None\n{'bucket_cap_mb': 50}\n"
    assert done.stderr.count("in a trial the trial's own settings hold") == 1


def test_a_file_with_what_starts_and_holds_the_ranks(tmp_path: Path, best: Path) -> None:
    best.write_text(best.read_text().replace("NCCL_ALGO: Ring", "RANK: 3"))
    done = run(tmp_path, "nccltune.apply('best.yaml')")
    assert done.stderr.endswith(
        "UsageError: best.yaml: env.RANK: is set by every launch; take it out of the file\n"
    )


def test_a_file_from_elsewhere_loads_nothing(tmp_path: Path, best: Path) -> None:
    whole = best.read_text()
    for name in ("LD_PRELOAD", "PYTHONSTARTUP", "NCCL_NET_PLUGIN"):
        best.write_text(whole.replace("NCCL_ALGO: Ring", f"{name}: /tmp/evil.so"))
        done = run(tmp_path, "nccltune.apply('best.yaml')")
        assert done.returncode == 1
        assert f"UsageError: best.yaml: env.{name}: " in done.stderr.splitlines()[-1]


def test_a_file_that_others_can_write_is_used_and_told(tmp_path: Path, best: Path) -> None:
    best.chmod(0o664)
    done = run(tmp_path, "nccltune.apply('best.yaml')\n" + SHOW)
    assert done.stdout == "Ring 1048576\n"
    assert "UserWarning: nccltune.apply: best.yaml: others can change what it sets: " in done.stderr
    best.chmod(0o644)
    assert run(tmp_path, "nccltune.apply('best.yaml')\n" + SHOW).stderr == ""


def test_a_study_stands_for_its_best_yaml(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "best.yaml").rename(tmp_path / "study" / "best.yaml")
    (tmp_path / "study" / "study.yaml").write_text("version: 1\nspace: {}\n")
    done = run(tmp_path, "nccltune.apply('study')\n" + SHOW)
    assert (done.returncode, done.stdout) == (0, "Ring 1048576\n"), done.stderr
