"""Real worker groups by either launcher: what they measure, what their ranks find, how they end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nccltune.errors import StudyError
from nccltune.launch.ask import JobPython
from nccltune.launch.group import RankGroup
from nccltune.launch.host import WarmHost
from nccltune.launch.protocol import Limits
from nccltune.launch.stopping import StopFlag
from nccltune.launch.torchrun import TorchrunLauncher
from nccltune.launch.turns import NoTurns, Side, take_turns
from nccltune.launch.warm import WarmLauncher
from nccltune.nccl.site import SiteVariable
from nccltune.worker.spec import Settings
from workloads import LAUNCHERS, WORKLOAD, launcher, left, quiet, request

pytestmark = pytest.mark.ranks
either = pytest.mark.parametrize("kind", LAUNCHERS)
mostly_warm = pytest.mark.parametrize(
    "kind", ["warm", pytest.param("torchrun", marks=pytest.mark.slow)]
)
SHORT = Settings(windows=1, window_seconds=0.02, warmup_window_seconds=0.02, window_steps=2)
TELLING = replace(WORKLOAD, model="smalljobs:telling")
FAULTY = replace(WORKLOAD, model="smalljobs:faulty")


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert left() == []


def _measures_still(starter: WarmLauncher | TorchrunLauncher, folder: Path) -> None:
    group = starter.open({}, folder)
    assert group.request(request(settings=SHORT), Limits(), quiet).failure is None
    group.close()


@mostly_warm
def test_one_live_group_measures_several_configurations(tmp_path: Path, kind: str) -> None:
    starter = launcher(kind, tmp_path)
    group = starter.open({}, tmp_path / "logs")
    first = group.request(request(), Limits(), quiet)
    pids = dict(group.pids)
    second = group.request(
        request(ddp={"bucket_cap_mb": 1}, communicator_env={"NCCL_ALGO": "Ring"}), Limits(), quiet
    )
    tokens = replace(WORKLOAD, model="smalljobs:Tokens")
    third = group.request(request(tokens, batch_size=8), Limits(), quiet)
    assert group.alive and group.pids == pids and len(pids) == 2
    group.close()
    starter.close()
    assert [o.failure for o in (first, second, third)] == [None, None, None]
    for outcome in (first, second, third):
        assert outcome.result is not None
        assert outcome.result["samples_per_second"] > 0
    # the same model, weights and data again: the same loss but for rounding
    assert first.result is not None and third.result is not None
    assert first.result["parameters"] == 3 * 8 * 9 + 8 + 8 * 16 * 10 + 10
    assert third.result["parameters"] == 50 * 16 + 16 * 50 + 50
    assert second.seconds["start"] < first.seconds["start"]  # no second launch was paid


@pytest.mark.parametrize("step_ms", [pytest.param(0, marks=pytest.mark.slow), 50])
@pytest.mark.slow
def test_what_is_reported_is_the_loaders_long_run_rate(tmp_path: Path, step_ms: int) -> None:
    """Two workers a rank need 40 ms a sample: 2 ranks x 2 workers / 40 ms is the true rate. With
    much prefetching the first windows show another one: that of what was made ahead. Steps that
    are not much faster than the loader (50 ms and some, against 80 ms for a batch of four from
    two workers) take long to use that up.
    """
    true_rate = 2 * 2 / 0.040
    starter = launcher("warm", tmp_path, SLOW_MS="40", STEP_MS=str(step_ms))
    slow = replace(WORKLOAD, data="smalljobs:slow", model="smalljobs:Sleepy")
    group = starter.open({}, tmp_path / "logs")
    for prefetch in (2, 16):
        loader = {"num_workers": 2, "prefetch_factor": prefetch, "persistent_workers": True}
        outcome = group.request(request(slow, loader=loader), Limits(), quiet)
        assert outcome.failure is None and outcome.result is not None
        assert outcome.result["samples_per_second"] == pytest.approx(true_rate, rel=0.05)
    group.close()
    starter.close()


def seen(folder: Path) -> dict[str, Any]:
    """What rank 1 found in its process."""
    found: dict[str, Any] = json.loads((folder / "seen.1.json").read_text())
    return found


@mostly_warm
def test_every_launch_has_its_own_variables_and_always_the_sites(tmp_path: Path, kind: str) -> None:
    site = {
        name: SiteVariable(name, value, source)
        for name, value, source in (
            ("NCCL_NVLS_ENABLE", "0", "environment"),
            ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1", "environment"),
            # found in a file that NCCL might not read in the end: set outright
            ("NVSHMEM_DISABLE_NVLS", "1", "/etc/nccl.conf"),
            ("NCCL_IB_HCA", "mlx5_0", "environment"),
        )
    }
    own = {name: v.value for name, v in site.items() if v.source == "environment"}
    always = {name: v.value for name, v in site.items()}
    starter = launcher(kind, tmp_path, site=site, PET_NNODES="7", TMPDIR=str(tmp_path), **own)
    launches = [
        {"NCCL_BUFFSIZE": "1048576", "TORCH_NCCL_HIGH_PRIORITY": "1"},
        {"NCCL_NTHREADS": "64"},
        {"MALLOC_ARENA_MAX": "2", "NCCL_NTHREADS": "128"},  # read when a process starts
        {},
    ][: 4 if kind == "warm" else 2]  # a torchrun command has an environment of its own
    names = {name for added in launches for name in added}
    for number, added in enumerate(launches):
        folder = tmp_path / f"launch-{number}"
        group = starter.open(added, folder)
        outcome = group.request(request(TELLING, SHORT), Limits(), quiet)
        group.close()
        assert outcome.failure is None
        found = seen(folder)
        environment = found["environment"]
        assert always.items() <= environment.items()
        assert {n: environment[n] for n in names if n in environment} == added
        assert ("MALLOC_ARENA_MAX" in found["started_with"]) == ("MALLOC_ARENA_MAX" in added)
        assert environment["OMP_NUM_THREADS"] == "1" and found["threads"] == 1
        assert not [name for name in environment if name.startswith("PET_")]
        assert environment["TMPDIR"] == found["temporary"] == str(tmp_path)
        assert found["leads_session"]
    with pytest.raises(StudyError, match="NCCL_NVLS_ENABLE=1 would override"):
        starter.open({"NCCL_NVLS_ENABLE": "1"}, tmp_path / "refused")
    starter.close()


@pytest.mark.slow
def test_a_rank_finds_the_same_whichever_way_it_was_started(tmp_path: Path) -> None:
    found = {}
    for kind in LAUNCHERS:
        starter = launcher(kind, tmp_path / kind, OMP_NUM_THREADS="2")
        group = starter.open({"NCCL_BUFFSIZE": "1"}, tmp_path / kind / "logs")
        assert group.request(request(TELLING, SHORT), Limits(), quiet).failure is None
        group.close()
        starter.close()
        found[kind] = seen(tmp_path / kind / "logs")
    plain, warm = (found[kind]["environment"] for kind in ("torchrun", "warm"))
    differing = {n for n in {*plain, *warm} if plain.get(n) != warm.get(n)}
    # which run this is, where it reports to, and what torchrun puts there for its own use
    expected = {
        *("MASTER_ADDR", "MASTER_PORT", "PYTHONPATH", "TORCHELASTIC_SIGNALS_TO_HANDLE"),
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "NCCLTUNE_ADDRESS"),
        *("NCCLTUNE_TOKEN", "NCCLTUNE_LOG_DIR", "NCCLTUNE_TAG", "NCCLTUNE_HOST_FOLDER"),
    }
    assert differing <= expected
    for fact in ("threads", "temporary", "start_method", "leads_session"):
        assert found["warm"][fact] == found["torchrun"][fact], fact
    assert found["warm"]["threads"] == 2


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def process_with(*words: bytes) -> int:
    [found] = [
        pid
        for pid in left()
        if all(word in command_of(pid) for word in words)
        and b"supervisor" not in command_of(pid)
        and not is_rank(pid)
    ]
    return found


def is_rank(pid: int) -> bool:
    """Ranks are copies of the fork server, its children."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return parent in left() and b"forkserver" in command_of(parent)


@pytest.mark.parametrize(
    "killed", ["worker.host", pytest.param("forkserver", marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_a_host_that_is_killed_takes_its_ranks_along_and_is_replaced(
    tmp_path: Path, killed: str
) -> None:
    starter = launcher("warm", tmp_path)
    group = starter.open({}, tmp_path / "launch-0")
    assert group.request(request(settings=SHORT), Limits(), quiet).failure is None
    os.kill(process_with(killed.encode()), signal.SIGKILL)
    outcome = group.request(request(settings=SHORT), Limits(), quiet)
    assert outcome.failure is not None and outcome.host_lost  # no fault of the configuration
    assert outcome.failure.kind == "crashed"
    assert left() == []
    again = starter.open({}, tmp_path / "launch-1")
    assert again.request(request(settings=SHORT), Limits(), quiet).failure is None
    again.close()
    starter.close()


def test_variables_with_which_no_process_starts_fail_alone(tmp_path: Path) -> None:
    starter = launcher("warm", tmp_path)
    reason = "must be .random. or an integer"
    for number in range(3):
        group = starter.open({"PYTHONHASHSEED": "no number"}, tmp_path / f"launch-{number}")
        outcome = group.request(request(settings=SHORT), Limits(), quiet)
        assert outcome.failure is not None
        assert not outcome.host_lost  # another host would not start with them either
        told = f"Python does not start with PYTHONHASHSEED=no number: .*{reason}"
        assert re.match(told, outcome.failure.message), outcome.failure.message
    _measures_still(starter, tmp_path / "launch-9")
    starter.close()


@pytest.mark.slow
def test_hosts_of_two_environments_are_kept_and_no_more(tmp_path: Path) -> None:
    starter = launcher("warm", tmp_path)
    used = []
    for number, threads in enumerate(["2", "3", "2", "4"]):
        group = starter.open({"OMP_NUM_THREADS": threads}, tmp_path / f"launch-{number}")
        assert group.request(request(settings=SHORT), Limits(), quiet).failure is None
        group.close()
        used.append(starter.hosts[-1])
        assert used[-1].early["OMP_NUM_THREADS"] == threads and len(starter.hosts) <= 2
    assert used[2] is used[0] and used[0].alive
    assert not used[1].alive  # it was the one that was not used for longest
    starter.close()


@pytest.mark.slow
def test_a_host_that_cannot_start_ranks_any_more_is_replaced(tmp_path: Path) -> None:
    starter = launcher("warm", tmp_path)
    group = starter.open({}, tmp_path / "launch-0")
    assert group.request(request(settings=SHORT), Limits(), quiet).failure is None
    group.close()
    shutil.rmtree(starter.hosts[0].folder)  # as a cleaner of temporary files might
    group = starter.open({}, tmp_path / "launch-1")
    outcome = group.request(request(settings=SHORT), Limits(), quiet)
    assert outcome.failure is not None and outcome.host_lost
    _measures_still(starter, tmp_path / "launch-2")
    starter.close()


def test_a_host_that_never_comes_up_ends_the_study_with_its_reason(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no room left\nexit 3\n")
    python.chmod(0o755)
    starter = launcher("warm", tmp_path)
    starter.settings = replace(starter.settings, python=str(python))
    for number in range(2):
        group = starter.open({}, tmp_path / f"launch-{number}")
        assert group.request(request(), Limits(), quiet).host_lost
    with pytest.raises(StudyError, match="does not start any more: no room left"):
        starter.open({}, tmp_path / "launch-2")
    starter.close()


def test_what_a_question_leaves_is_ended_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text(
        "import subprocess\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "def factory(): ...\n"
    )
    starter = launcher("warm", tmp_path, PYTHONPATH=str(tmp_path))
    settings = starter.settings
    host = WarmHost(settings.python, settings.worker_path, settings.base, {}, {})
    job = JobPython(settings.python, settings.worker_path, settings.base, host)
    question = {"model": "leaving:factory", "data": "synthetic", "folder": None, "make": False}
    assert job.ask({**question, "cache": str(tmp_path)}, StopFlag())["gloo"] is True
    assert not [pid for pid in left() if b"sleep" in command_of(pid)]
    host.end()


@mostly_warm
def test_a_rank_killed_between_measurements_is_found_out_before_the_next(
    tmp_path: Path, kind: str
) -> None:
    starter = launcher(kind, tmp_path)
    group = starter.open({}, tmp_path / "launch-0")
    assert group.request(request(settings=SHORT), Limits(), quiet).failure is None
    os.kill(group.pids[1], signal.SIGKILL)
    deadline = time.monotonic() + 20
    while group.alive and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not group.alive  # the search opens another one
    outcome = group.request(request(settings=SHORT), Limits(), quiet)
    assert outcome.failure is not None and not outcome.host_lost
    assert outcome.failure.message.startswith("rank 1 was ended by SIGKILL")
    group.close()
    starter.close()


def test_a_child_that_outlives_its_rank_is_ended_with_the_group(tmp_path: Path) -> None:
    starter = launcher("warm", tmp_path, FAULT="abandon", FAULT_LAUNCH="0")
    group = starter.open({}, tmp_path / "launch-0000")
    outcome = group.request(request(FAULTY), Limits(), quiet)
    assert outcome.failure is not None
    assert outcome.failure.message == "rank 1 ended by itself with exit code 4"
    abandoned = (tmp_path / "launch-0000/abandoned.pid").read_text()
    assert not Path(f"/proc/{abandoned}").exists()
    [host] = starter.hosts
    assert host.alive  # only the group is gone
    again = starter.open({}, tmp_path / "launch-0001")
    assert again.request(request(FAULTY, SHORT), Limits(), quiet).failure is None
    again.close()
    assert starter.hosts == [host]
    starter.close()


@mostly_warm
@pytest.mark.slow
def test_two_groups_measure_in_turn(tmp_path: Path, kind: str) -> None:
    """Both are alive at the same time, and neither runs steps while it is the other's turn."""
    starter = launcher(kind, tmp_path)
    settings = Settings(windows=3, window_seconds=0.05, warmup_window_seconds=0.05)
    message = request(settings=settings, turns=True)
    heard: list[str] = []

    def hear(told: Mapping[str, Any]) -> None:
        heard.append(told["phase"] if told["type"] == "phase" else told["type"])

    def opener(number: int) -> Callable[[], RankGroup]:
        return lambda: starter.open({"NCCL_NTHREADS": str(number)}, tmp_path / f"launch-{number}")

    for _ in range(2):  # the hosts are used again
        heard.clear()
        outcomes = take_turns([Side(opener(n), message) for n in range(2)], [], hear)
        assert [outcome.failure for outcome in outcomes] == [None, None]
        for outcome in outcomes:
            assert outcome.result is not None and outcome.seconds["wait"] > 0
            assert len([w for w in outcome.result["windows"] if w["counts"]]) == 3
        turns = heard[heard.index("wait") :]
        assert turns.count("wait") == turns.count("measure") == 6
        assert kind != "warm" or len(starter.hosts) == 2
    assert left() == [] or kind == "warm"
    starter.close()


@pytest.mark.slow
def test_a_group_that_dies_while_it_waits_ends_the_turns_of_both(tmp_path: Path) -> None:
    starter = launcher("warm", tmp_path)
    message = request(settings=SHORT, turns=True)
    group = starter.open({}, tmp_path / "first")

    def second() -> RankGroup:
        os.kill(int((tmp_path / "first/rank1.pid").read_text()), signal.SIGKILL)
        return starter.open({}, tmp_path / "second")

    with pytest.raises(NoTurns, match="crashed: rank 1 was ended by SIGKILL"):
        take_turns([Side(lambda: group, message), Side(second, message)], [])
    assert not group.alive
    _measures_still(starter, tmp_path / "third")
    starter.close()


def test_a_group_closed_while_it_waits_for_its_turn_leaves_its_host(tmp_path: Path) -> None:
    """As Ctrl-C does in a comparison: the host answers, and starts the next group."""
    starter = launcher("warm", tmp_path)
    group = starter.open({}, tmp_path / "first")

    class Stopped(Exception):
        pass

    def second() -> RankGroup:
        raise Stopped

    with pytest.raises(Stopped):
        take_turns([Side(lambda: group, request(settings=SHORT, turns=True)), Side(second, {})], [])
    assert not group.alive
    (host,) = starter.hosts
    _measures_still(starter, tmp_path / "second")
    assert starter.hosts == [host]
    starter.close()


@pytest.mark.slow
def test_hosts_with_other_variables_are_kept_for_the_next_turn(tmp_path: Path) -> None:
    """Variables that are read at exec differ between the two, whichever is opened first."""
    starter = launcher("warm", tmp_path)
    message = request(settings=SHORT, turns=True)
    found: list[list[WarmHost]] = []
    for order in ((1, 2), (2, 1)):
        sides = [
            Side(partial(starter.open, {"OMP_NUM_THREADS": str(n)}, tmp_path / f"of-{n}"), message)
            for n in order
        ]
        take_turns(sides, [])
        found.append(list(starter.hosts))
    assert len(found[0]) == 2 and set(found[0]) == set(found[1])
    starter.close()


@pytest.mark.slow
@either
def test_eight_ranks_start_measure_lose_one_and_end(tmp_path: Path, kind: str) -> None:
    starter = launcher(kind, tmp_path, ranks=8, FAULT="die", FAULT_LAUNCH="1")
    short = Settings(windows=1, max_warmup_windows=2, window_steps=2)
    group = starter.open({}, tmp_path / "launch-0000")
    outcome = group.request(request(FAULTY, short), Limits(), quiet)
    group.close()
    assert outcome.failure is None and outcome.result is not None
    assert len(outcome.result["peak_memory_bytes"]) == 8
    group = starter.open({}, tmp_path / "launch-0001")
    outcome = group.request(request(FAULTY, short), Limits(), quiet)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.rank) == ("crashed", 1)
    starter.close()
