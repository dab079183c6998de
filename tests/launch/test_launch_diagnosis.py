"""From what ranks leave behind to one failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nccltune.launch.diagnosis import (
    Position,
    ended,
    error_records,
    positions,
    read_end,
    silent,
)
from nccltune.launch.protocol import Failure
from nccltune.launch.torchrun import exit_codes
from nccltune.worker.status import Status

# As torch's elastic agent writes it.
AGENT = (
    "E0102 03:04:05.678000 4242 torch/distributed/elastic/multiprocessing/api.py:882] failed "
    "(exitcode: {code}) local_rank: {rank} (pid: 4711) of binary: /usr/bin/python3\n"
)


def error(folder: Path, rank: int, kind: str, message: str, time: float = 0.0) -> None:
    record = {"rank": rank, "pid": 1, "time": time, "phase": "measure", "step": 3}
    text = json.dumps({**record, "kind": kind, "message": message})
    (folder / f"rank{rank}.error.json").write_text(text)


def status(folder: Path, rank: int, phase: str, step: int = 0, part: str = "") -> None:
    Status(folder, rank).at(phase, step, part)


def agent(folder: Path, *ends: tuple[int, int]) -> None:
    """The launcher's log; `ends` are (rank, exit code) in the order of failing."""
    lines = "".join(AGENT.format(rank=rank, code=code) for rank, code in ends)
    (folder / "launcher.log").write_text(f"started\n{lines}")


def codes_in(folder: Path) -> dict[int, int]:
    return exit_codes(read_end(folder / "launcher.log"))


def blamed(
    folder: Path, lost: list[int], code: int | None, killed: list[int] | None = None
) -> Failure:
    """As the torchrun launcher finds it."""
    return ended(folder, lost, codes_in(folder), code, killed or [])


CONSEQUENCES = [
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer",
    "RuntimeError: [pair.cc:598] Connection reset by peer [127.0.0.1]:4711",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "DistBackendError: NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a "
    "network error, NCCL version 2.28.9",
    "DistNetworkError: failed to recv, got 0 bytes",
    "ConnectionError: the tuner closed the connection",
]


@pytest.mark.parametrize("consequence", CONSEQUENCES)
def test_a_cause_goes_before_its_consequences_whoever_was_first(
    tmp_path: Path, consequence: str
) -> None:
    error(tmp_path, 0, "crashed", consequence, time=1.0)
    error(tmp_path, 1, "out_of_memory", "OutOfMemoryError: CUDA out of memory.", time=2.0)
    (tmp_path / "rank1.log").write_text("Traceback\n\n  line\nOutOfMemoryError\n")
    agent(tmp_path, (0, 1))
    failure = blamed(tmp_path, [0, 1], 1)
    assert (failure.kind, failure.rank) == ("out_of_memory", 1)
    assert failure.message == "OutOfMemoryError: CUDA out of memory."
    assert failure.log == str(tmp_path / "rank1.log")
    assert failure.tail == ("Traceback", "  line", "OutOfMemoryError")


def test_of_two_causes_the_earlier(tmp_path: Path) -> None:
    error(tmp_path, 0, "crashed", "ValueError: second", time=2.0)
    error(tmp_path, 1, "wrong_result", "WrongResult: first", time=1.0)
    assert [r["rank"] for r in error_records(tmp_path)] == [1, 0]
    assert blamed(tmp_path, [], 1).kind == "wrong_result"


def test_a_record_that_is_half_there_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "rank0.error.json").write_text('{"rank": 0')
    error(tmp_path, 1, "crashed", "ValueError: x")
    assert [r["rank"] for r in error_records(tmp_path)] == [1]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "rank 1 was ended by SIGKILL (the kernel does that too when host memory runs out)"),
        (-11, "rank 1 was ended by SIGSEGV"),
        (-6, "rank 1 was ended by SIGABRT"),
        (-200, "rank 1 was ended by 200"),
        (17, "rank 1 ended by itself with exit code 17"),
    ],
)
def test_a_killed_rank_is_named_with_its_signal(tmp_path: Path, code: int, words: str) -> None:
    error(tmp_path, 0, "crashed", CONSEQUENCES[0])
    agent(tmp_path, (1, code), (0, -15))
    failure = blamed(tmp_path, [1], 1)
    assert (failure.kind, failure.rank, failure.message) == ("crashed", 1, words)


def test_a_killed_rank_is_found_from_the_agents_log_alone(tmp_path: Path) -> None:
    # Both were gone before anyone looked; the agent ended rank 0 itself, by SIGTERM.
    agent(tmp_path, (0, -15), (1, -9))
    assert blamed(tmp_path, [], 1).rank == 1


def test_a_rank_that_vanished_without_a_word(tmp_path: Path) -> None:
    error(tmp_path, 1, "crashed", CONSEQUENCES[1])
    (tmp_path / "launcher.log").write_text("started\n")
    failure = blamed(tmp_path, [0], None)
    assert (failure.kind, failure.rank) == ("crashed", 0)
    assert failure.message == "rank 0 was killed or ended without a word"
    assert failure.log == str(tmp_path / "launcher.log")


def test_consequences_alone_are_all_there_is(tmp_path: Path) -> None:
    error(tmp_path, 1, "crashed", CONSEQUENCES[0])
    failure = blamed(tmp_path, [1], 1)
    assert (failure.rank, failure.message) == (1, CONSEQUENCES[0])


def test_a_launch_that_ended_before_any_rank_was_up(tmp_path: Path) -> None:
    (tmp_path / "launcher.log").write_text("/usr/bin/python3: No module named torch\n")
    failure = blamed(tmp_path, [], 1)
    assert (failure.kind, failure.rank) == ("crashed", None)
    assert failure.message == "the launch ended with exit code 1 before any rank was up"
    assert failure.log == str(tmp_path / "launcher.log")
    assert failure.tail == ("/usr/bin/python3: No module named torch",)
    without = blamed(tmp_path / "nothing", [], None)
    assert without.message == "the launch ended before any rank was up"
    assert without.tail == ()


def test_exit_codes_in_the_order_of_the_log(tmp_path: Path) -> None:
    assert codes_in(tmp_path) == {}
    agent(tmp_path, (1, -9), (0, 1))
    assert list(codes_in(tmp_path).items()) == [(1, -9), (0, 1)]


def test_nccls_own_warning_is_appblamed(tmp_path: Path) -> None:
    message = "DistBackendError: NCCL error in: x.cpp:1, unhandled system error"
    error(tmp_path, 0, "nccl_error", message)
    (tmp_path / "nccl.10.log").write_text("box:10:10 [0] NCCL INFO fine\n")
    (tmp_path / "nccl.11.log").write_text(
        "box:11:11 [1] NCCL INFO fine\n"
        "box:11:11 [1] misc/socket.cc:50 NCCL WARN socketStart: no interface eth9\n"
        "box:11:11 [1] NCCL WARN another\n"
    )
    assert blamed(tmp_path, [0], 1).message == (f"{message} [NCCL: socketStart: no interface eth9]")


def test_nccls_warnings_do_not_explain_other_failures(tmp_path: Path) -> None:
    error(tmp_path, 0, "out_of_memory", "CUDA out of memory")
    (tmp_path / "nccl.10.log").write_text("box:10:10 [0] NCCL WARN Cuda failure 2\n")
    assert blamed(tmp_path, [0], 1).message == "CUDA out of memory"


def test_silence_names_the_rank_that_is_furthest_behind(tmp_path: Path) -> None:
    status(tmp_path, 0, "measure", 12, "backward")
    status(tmp_path, 1, "measure", 12, "data")
    status(tmp_path, 2, "measure", 12, "forward")
    (tmp_path / "rank1.log").write_text('File "feed.py", line 3 in next\n')
    failure = silent(tmp_path, "measure", 20.4)
    assert (failure.kind, failure.rank) == ("timeout", 1)
    assert failure.message == (
        "no news for 20 s in phase measure: rank 0 in measure, step 12 (backward); "
        "rank 1 in measure, step 12 (data); rank 2 in measure, step 12 (forward)"
    )
    assert failure.tail == ('File "feed.py", line 3 in next',)


@pytest.mark.parametrize(
    ("behind", "ahead"),
    [
        (("import", 0, ""), ("rendezvous", 0, "")),
        (("rendezvous", 0, ""), ("idle", 0, "")),
        (("build", 0, ""), ("first_step", 0, "data")),
        (("first_step", 1, "backward"), ("check", 0, "")),
        (("check", 0, ""), ("warmup", 2, "data")),
        (("warmup", 9, "backward"), ("measure", 0, "data")),
        (("measure", 3, "backward"), ("measure", 4, "data")),
        (("measure", 9, "backward"), ("verify", 0, "")),
    ],
)
def test_progress(
    tmp_path: Path, behind: tuple[str, int, str], ahead: tuple[str, int, str]
) -> None:
    status(tmp_path, 0, *ahead)
    status(tmp_path, 1, *behind)
    assert silent(tmp_path, "measure", 20).rank == 1


def test_silence_before_any_rank_was_up(tmp_path: Path) -> None:
    failure = silent(tmp_path, "first_step", 300)
    assert (failure.kind, failure.rank) == ("timeout", None)
    assert failure.message == "no news for 300 s in phase first step"


def test_positions_of_more_than_ten_ranks_are_in_order(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        status(tmp_path, rank, "first_step", rank, "data")
    (tmp_path / "rank3.status").write_text("")  # opened, not yet written
    assert positions(tmp_path) == [
        Position(rank, "first_step", rank, "data") for rank in (0, 2, 10)
    ]
    assert str(Position(2, "first_step", 2, "data")) == "rank 2 in first step, step 2 (data)"
    assert str(Position(2, "idle", 0, "")) == "rank 2 in idle"


def test_long_messages_and_logs_are_cut(tmp_path: Path) -> None:
    error(tmp_path, 0, "crashed", "x" * 1000 + "\n y")
    lines = [f"line {n} " + "y" * 400 for n in range(50)]
    (tmp_path / "rank0.log").write_text("\n".join(lines))
    failure = blamed(tmp_path, [0], 1)
    assert failure.message == "x" * 600
    assert len(failure.tail) == 12
    assert [line.split()[1] for line in failure.tail] == [str(n) for n in range(38, 50)]
    assert max(map(len, failure.tail)) == 300


def test_only_the_end_of_a_huge_log_is_read(tmp_path: Path) -> None:
    with (tmp_path / "launcher.log").open("w") as log:
        log.write("exitcode: -9) local_rank: 0\n")
        log.write("x" * (2 << 20) + "\n")
        log.write(AGENT.format(rank=1, code=-11))
    assert codes_in(tmp_path) == {1: -11}


REPORT = """
============================================================
nccltune.worker FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_21:00:00
  host      : box
  rank      : 1 (local_rank: 1)
  exitcode  : 3 (pid: 12)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_21:00:00
  host      : box
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 11)
  error_file: <N/A>
"""


def test_the_cause_is_found_where_torchrun_saw_a_consequence_first(tmp_path: Path) -> None:
    # Both were gone when it looked, and it names the first in its own order.
    error(tmp_path, 0, "crashed", CONSEQUENCES[0])
    first = AGENT.format(rank=0, code=1)
    (tmp_path / "launcher.log").write_text(first + REPORT)
    assert codes_in(tmp_path) == {0: 1, 1: 3}
    failure = blamed(tmp_path, [0, 1], 1)
    assert (failure.rank, failure.message) == (1, "rank 1 ended by itself with exit code 3")


def test_ranks_that_we_ended_ourselves_are_not_the_cause(tmp_path: Path) -> None:
    agent(tmp_path, (0, -9), (1, -11))
    assert blamed(tmp_path, [1], 1, killed=[0]).message == "rank 1 was ended by SIGSEGV"


def test_a_rank_that_torchrun_names_is_the_cause_though_all_are_gone(tmp_path: Path) -> None:
    (tmp_path / "launcher.log").write_text(
        "E api.py:1] failed (exitcode: 3) local_rank: 1 (pid: 12) of binary: python\n"
    )
    failure = blamed(tmp_path, [0, 1], 1)
    assert (failure.kind, failure.rank) == ("crashed", 1)
    assert failure.message == "rank 1 ended by itself with exit code 3"
