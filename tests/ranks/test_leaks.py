"""Many launches in a row leave nothing behind, and cost no more memory than a few."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from nccltune.launch.protocol import Limits
from nccltune.launch.warm import WarmLauncher
from nccltune.worker.spec import Settings
from running import Cli, shared_memory, warm_hosts
from workloads import WORKLOAD, launcher, left, quiet, request

pytestmark = pytest.mark.ranks

SHORT = Settings(windows=1, window_seconds=0.02, warmup_window_seconds=0.02, window_steps=2)
MIB = 1 << 20


def traces(starter: WarmLauncher, temporary: Path) -> dict[str, object]:
    """What launches could leave: processes, open files, shared memory, temporary files."""
    [warm] = starter.hosts
    [host] = map(psutil.Process, warm_hosts(left()))
    return {
        "processes": len(left()),
        "host's descriptors": len(os.listdir(f"/proc/{host.pid}/fd")),
        "host's threads": host.num_threads(),
        "fork server's descriptors": [
            len(os.listdir(f"/proc/{child.pid}/fd")) for child in host.children()
        ],
        "our descriptors": len(os.listdir("/proc/self/fd")),
        "shared memory": shared_memory(ours=[os.getpid(), *left()]),
        "host's files": sorted(path.name for path in warm.folder.iterdir()),
        "temporary files": sorted(os.listdir(temporary)),
    }


@pytest.mark.parametrize("launches", [4, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_launches_in_a_row_leave_nothing(tmp_path: Path, launches: int) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    starter = launcher("warm", tmp_path, TMPDIR=str(temporary))
    loading = replace(WORKLOAD, data="smalljobs:numbered")
    early: dict[str, object] = {}
    for number in range(launches + 2):
        group = starter.open({"NCCL_NTHREADS": str(number)}, tmp_path / f"launch-{number}")
        outcome = group.request(request(loading, SHORT, loader={"num_workers": 1}), Limits(), quiet)
        assert outcome.failure is None
        group.close()
        if number == 1:  # the first launch opens what stays
            early = traces(starter, temporary)
    deadline = time.monotonic() + 20  # others on this machine may use shared memory for a moment
    while (late := traces(starter, temporary)) != early and time.monotonic() < deadline:
        time.sleep(0.2)
    assert late == early
    [host] = starter.hosts
    starter.close()
    assert left() == []
    assert not host.folder.exists()


@pytest.mark.slow
def test_ranks_that_fail_cost_the_host_no_memory(tmp_path: Path) -> None:
    """torch prints what happened to them, and its formatter would import its compiler for that."""
    starter = launcher("warm", tmp_path)
    sizes = []
    for number in range(3):
        group = starter.open({"NCCL_NTHREADS": str(number)}, tmp_path / f"launch-{number}")
        assert group.request(request(settings=SHORT), Limits(), quiet).failure is None
        if number:
            os.kill(int((tmp_path / f"launch-{number}" / "rank1.pid").read_text()), signal.SIGKILL)
        group.close()
        [host] = map(psutil.Process, warm_hosts(left()))
        sizes.append(host.memory_info().rss)
    starter.close()
    assert sizes[2] < sizes[0] + 30 * MIB


SIZES = ", ".join(map(str, range(1, 100)))
SPACE = f"""
version: 1
parameters:
  bucket_cap_mb: {{target: ddp, choices: [null, {SIZES}], default: null}}
  GLOO_INERT: {{target: env, choices: [null, 1, 2, 3], default: null}}
"""


@pytest.mark.slow
def test_memory_stays_flat_over_200_trials(cli: Cli) -> None:
    (cli.folder / "space.yaml").write_text(SPACE)
    tuner = cli.start(
        *("search", "--model", "smalljobs:tiny", "--device", "cpu", "--batch-size", "4"),
        *("--confirm-launches", "0"),
        *("--image-size", "16", "--data", "synthetic", "--space", "space.yaml", "--study", "many"),
        *("--trials", "200", "--measure-seconds", "0.3"),
    )
    records = cli.study("many") / "trials.jsonl"
    samples: list[tuple[int, int, int]] = []
    while tuner.poll() is None:
        done = records.read_text().count("\n") if records.exists() else 0
        if done and (not samples or done > samples[-1][0]):
            with contextlib.suppress(psutil.Error, OSError):  # it has just ended
                samples.append((done, *resident(cli, tuner.pid)))
        with contextlib.suppress(subprocess.TimeoutExpired):
            tuner.communicate(timeout=0.2)
    assert tuner.returncode == 0
    assert len(cli.trials("many")) == 200
    early = [s for s in samples if 15 <= s[0] <= 25]
    late = [s for s in samples if s[0] >= 185]
    print(f"tuner and host in MiB, early {early[0]}, late {late[-1]}, of {samples[-1]}")
    for column, limit in ((1, 200 * 1000**2), (2, 1500 * 1000**2)):
        assert max(s[column] for s in samples) < limit
        assert min(s[column] for s in late) < 1.1 * max(s[column] for s in early) + 5 * MIB
    cli.assert_nothing_left()


def resident(cli: Cli, tuner: int) -> tuple[int, int]:
    """Bytes: of the tuner, and of the warm host with its fork server."""
    hosts = map(psutil.Process, warm_hosts(cli.processes()))
    several = [process for host in hosts for process in (host, *host.children())]
    return psutil.Process(tuner).memory_info().rss, sum(p.memory_info().rss for p in several)
