"""What of an allocation is understood, and how a step over it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccltune.errors import UsageError
from nccltune.launch.cluster import Node
from nccltune.launch.nodes import exit_codes
from nccltune.launch.slurm import Allocation, find_allocation, srun_argv, step_environment
from nccltune.worker.node import filled

NODES = tuple(Node(f"gpu{n}", f"10.0.0.{n}", f"gpu{n}.cluster") for n in (3, 4))


@pytest.fixture
def commands(tmp_path: Path) -> dict[str, str]:
    """Slurm's commands as they answer for a job on two nodes."""
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "scontrol").write_text(
        "#!/bin/sh\n"
        'if [ "$2" = hostnames ]; then echo gpu3; echo gpu4; exit; fi\n'
        "echo 'NodeName=gpu4 NodeAddr=10.0.0.4 NodeHostName=gpu4.cluster State=MIXED OS=a b=c'\n"
        "echo 'NodeName=gpu3 NodeAddr=10.0.0.3 NodeHostName=gpu3.cluster State=MIXED'\n"
    )
    for file in tmp_path.iterdir():
        file.chmod(0o755)
    job = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "gpu[3-4]", "SLURM_GPUS_ON_NODE": "8"}
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", **job}


def test_the_allocation_is_the_jobs_whatever_step_we_are_in(commands: dict[str, str]) -> None:
    inside = {"SLURMD_NODENAME": "gpu4", "SLURM_NNODES": "1", "SLURM_NODELIST": "gpu4"}
    assert find_allocation({**commands, **inside}) == Allocation(NODES, 1, "77")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"SLURM_JOB_ID": ""}, "this is no Slurm allocation; get one with `salloc --nodes=2"),
        ({"SLURMD_NODENAME": "login"}, r"this machine is not one of the job's nodes \(gpu\[3-4\]"),
        ({}, "this machine is not one of the job's nodes"),
        ({"PATH": "/nowhere"}, "srun is not in PATH; load the module that has it"),
    ],
)
def test_what_is_missing_is_told_with_what_to_do(
    commands: dict[str, str], changed: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        find_allocation({**commands, **changed})


def test_names_serve_where_a_site_hides_its_nodes(commands: dict[str, str]) -> None:
    scontrol = Path(commands["PATH"].partition(":")[0]) / "scontrol"
    hidden = "echo 'Node gpu3 not found' >&2; exit 1\n"
    lines = scontrol.read_text().splitlines(keepends=True)
    scontrol.write_text("".join([*lines[:2], hidden]))
    found = find_allocation({**commands, "SLURMD_NODENAME": "gpu3"})
    assert [node.address for node in found.nodes] == ["gpu3", "gpu4"] and found.here == 0


def test_a_step_has_one_task_with_all_of_each_node() -> None:
    words = srun_argv(Allocation(NODES, 0, "77"), "nccltune-1-2", ("python", "train.py"))
    assert words[0] == "srun" and words[-2:] == ("python", "train.py")
    assert {"--jobid=77", "--ntasks=2", "--nodelist=gpu3,gpu4", "--overlap"} <= set(words)
    assert "--mem=0" in words  # of the job, not of the step that the tuner runs in
    narrow = {
        "SLURM_CPUS_PER_TASK": "4",
        "SRUN_CPUS_PER_TASK": "4",
        "SLURM_GPUS_PER_TASK": "1",
        # these make a step exact, which is one task's share
        "SLURM_CPUS_PER_GPU": "8",
        "SLURM_THREADS_PER_CORE": "1",
        "SLURM_GPUS": "1",
        "SLURM_MEM_PER_NODE": "1000",
        "SLURM_MEM_PER_CPU": "10",
        "SLURM_DISTRIBUTION": "arbitrary",
        "SLURM_LABELIO": "1",
    }
    assert step_environment({**narrow, "SLURM_JOB_ID": "77"}) == {"SLURM_JOB_ID": "77"}


def test_words_in_braces_are_filled_in_on_each_node() -> None:
    values = {"port": 4711, "is_host": 1}
    assert filled("--rdzv-endpoint=a:{port}", values) == "--rdzv-endpoint=a:4711"
    assert filled("{other}", values) == "{other}"


LOG = """
[0]:
  time      : 2026-11-30_22:10:00
  rank      : {0} (local_rank: 0)
  exitcode  : {1} (pid: 100)
"""


def test_the_rank_that_was_ended_for_anothers_end_comes_last() -> None:
    log = LOG.format(0, -15) + LOG.format(9, 3)
    assert list(exit_codes(log).items()) == [(9, 3), (0, -15)]
    assert exit_codes("srun: error: n1: task 1: Killed") == {}
