"""A worker group as the tuner sees it, with plain processes for ranks."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nccltune.launch.group import GroupFolder, RankGroup
from nccltune.launch.processes import LocalRanks
from nccltune.launch.protocol import Limits
from nccltune.launch.stopping import StopFlag


@dataclass
class Stub(LocalRanks):
    """A launch that is what the test says; how its ranks ended is only known once it has ended."""

    codes: dict[int, int] = field(default_factory=dict)
    goes_on: bool = True
    ready: bool = True
    host_lost: bool = False
    trouble: str | None = None
    ended: int = 0

    def running(self) -> bool:
        return self.goes_on

    def exit_codes(self) -> Mapping[int, int]:
        return self.codes

    def exit_code(self) -> int | None:
        return None

    def end(self) -> None:
        self.ended += 1


def group_of(folder: Path, stub: Stub, *ranks: subprocess.Popen[bytes]) -> RankGroup:
    place = GroupFolder(folder / "logs")
    for rank, process in enumerate(ranks):
        (place.path / f"rank{rank}.pid").write_text(str(process.pid))
    group = RankGroup(stub, place, gpus=(), watch_memory=False, stop=StopFlag(), warn=pytest.fail)
    group._pids = place.pids()
    return group


def quiet(_message: object) -> None:
    return


def test_a_group_lives_until_a_rank_is_gone_or_says_that_it_fails(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as first, subprocess.Popen(["sleep", "600"]) as second:
        try:
            stub = Stub()
            group = group_of(tmp_path, stub, first, second)
            (tmp_path / "logs/rank1.log").touch()
            assert group.alive
            (tmp_path / "logs/rank1.error.json").touch()
            assert not group.alive
            (tmp_path / "logs/rank1.error.json").unlink()
            assert group.alive
            second.kill()
            os.waitid(os.P_PID, second.pid, os.WEXITED | os.WNOWAIT)
            assert not group.alive  # a zombie
            group._pids = {0: first.pid}
            assert group.alive
            stub.goes_on = False
            assert not group.alive
        finally:
            first.kill()
            second.kill()


def test_ranks_that_wait_for_one_that_is_gone_are_ended_so_that_the_launch_can_tell(
    tmp_path: Path,
) -> None:
    class Agent(Stub):
        """Tells how ranks ended once all of them have, as torch's elastic agent does."""

        def running(self) -> bool:
            codes = {rank: process.poll() for rank, process in enumerate(ranks)}
            if all(code is not None for code in codes.values()):
                self.codes = {rank: code for rank, code in codes.items() if code is not None}
            return not self.codes

    stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]
    with subprocess.Popen(stubborn) as waiting, subprocess.Popen(["sleep", "600"]) as gone:
        ranks = [waiting, gone]
        stub = Agent()
        group = group_of(tmp_path, stub, waiting, gone)
        gone.send_signal(signal.SIGSEGV)
        os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)
        failure = group.request({"type": "measure"}, Limits(), quiet).failure
        assert failure is not None
        assert (failure.rank, failure.message) == (1, "rank 1 was ended by SIGSEGV")
        assert waiting.wait(10) == -signal.SIGKILL
        assert stub.ended == 1
        group.close()
        assert stub.ended == 1  # it is over


def test_the_end_of_the_host_is_told_from_that_of_ranks(tmp_path: Path) -> None:
    outcome = group_of(tmp_path, Stub(goes_on=False, host_lost=True)).request({}, Limits(), quiet)
    assert outcome.host_lost
    outcome = group_of(tmp_path, Stub(goes_on=False)).request({}, Limits(), quiet)
    assert not outcome.host_lost
    assert outcome.failure is not None
    assert outcome.failure.message == "the launch ended before any rank was up"


def test_a_host_that_comes_up_slowly_is_a_phase_of_its_own(tmp_path: Path) -> None:
    stub = Stub(ready=False)
    outcome = group_of(tmp_path, stub).request({}, Limits(host=0.05, start=0.05), quiet)
    assert outcome.failure is not None
    assert outcome.failure.message == "no news for 0 s in phase host"
    assert set(outcome.seconds) == {"host"}
    assert outcome.host_lost  # no fault of what was to be measured
    stub.ready = True
    outcome = group_of(tmp_path, stub).request({}, Limits(host=0.05, start=0.05), quiet)
    assert set(outcome.seconds) == {"start"}


def test_what_an_interrupted_launch_left_in_its_folder_is_gone(tmp_path: Path) -> None:
    (tmp_path / "logs/agent/0").mkdir(parents=True)
    (tmp_path / "logs/rank0.error.json").write_text("{}")
    GroupFolder(tmp_path / "logs")
    assert list((tmp_path / "logs").iterdir()) == []


def test_memory_is_looked_at_when_a_group_is_closed_not_while_another_still_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure ends the first of two groups while the second is alive and holds memory."""
    used, looks = [1 << 30], list[int]()

    def used_memory(_gpus: object) -> tuple[int, ...]:
        looks.append(used[0])
        return (used[0],)

    monkeypatch.setattr("nccltune.launch.group.used_memory", used_memory)
    group = RankGroup(
        *(Stub(goes_on=False), GroupFolder(tmp_path / "logs")),
        gpus=(), watch_memory=True, stop=StopFlag(), warn=pytest.fail,
    )  # fmt: skip
    used[0] = 9 << 30  # the second group's
    assert group.request({}, Limits(), quiet).failure is not None
    assert looks == [1 << 30] and not group.alive
    used[0] = 1 << 30  # it is closed first
    group.close()
    assert looks == [1 << 30, 1 << 30]
    group.close()
    assert len(looks) == 2
