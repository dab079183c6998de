"""NCCL's log files of a launch, read for one of several measurements."""

from __future__ import annotations

from pathlib import Path

from nccltune.launch.environment import DIAGNOSTIC
from nccltune.launch.nccl_logs import NcclLogs


def says(folder: Path, *lines: str, pid: int = 9) -> None:
    with (folder / f"nccl.{pid}.log").open("a") as file:
        file.writelines(f"box:{pid}:{pid} [0] NCCL {line}\n" for line in lines)


FIRST = (
    "INFO NCCL version 2.28.9+cuda13.0",
    "INFO NCCL_BUFFSIZE set by environment to 8388608.",
    "INFO Comm config Min CTAs set to 4",
    "INFO comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2",
    "INFO NVLS multicast support is available on dev 0",
    "INFO 8 coll channels, 8 collnet channels, 8 nvls channels, 8 p2p channels",
    "INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "WARN something is odd",
)


def test_no_log_of_nccl_is_no_fact(tmp_path: Path) -> None:
    assert NcclLogs(tmp_path / "missing").facts() is None
    (tmp_path / "launcher.log").write_text("NCCL INFO nothing\n")
    (tmp_path / "rank0.log").write_text("NCCL version 2.28.9\n")
    assert NcclLogs(tmp_path).facts() is None
    (tmp_path / "nccl.9.log").write_text("")
    assert NcclLogs(tmp_path).facts() == {
        "version": None,
        "environment": {},
        "config": {},
        "transport": [],
        "network": None,
        "channels": None,
        "nvls": None,
        "nodes": None,
        "warnings": [],
    }


def test_what_the_logs_of_all_ranks_say_is_put_together(tmp_path: Path) -> None:
    logs = NcclLogs(tmp_path)  # before the ranks write anything, as with a new launch
    says(tmp_path, *FIRST)
    says(tmp_path, "INFO Channel 00/0 : 1[1] -> 0[0] via SHM/direct", pid=10)
    (tmp_path / "launcher.log").write_text("x NCCL INFO NCCL_PROTO set by environment to LL.\n")
    assert logs.facts() == {
        "version": "2.28.9",
        "environment": {"NCCL_BUFFSIZE": "8388608"},
        "config": {"min_ctas": 4},
        "transport": ["P2P", "SHM"],
        "network": None,
        "channels": 8,
        "nvls": True,
        "nodes": 1,
        "warnings": ["something is odd"],
    }


def test_a_folder_that_is_made_later(tmp_path: Path) -> None:
    folder = tmp_path / "launch-0000"
    logs = NcclLogs(folder)
    folder.mkdir()
    says(folder, *FIRST)
    facts = logs.facts()
    assert facts is not None and facts["channels"] == 8


def test_a_communicators_own_facts_come_from_what_was_written_since(tmp_path: Path) -> None:
    says(tmp_path, *FIRST)
    logs = NcclLogs(tmp_path)
    says(
        tmp_path,
        "INFO Comm config Max CTAs set to 16",
        "INFO 16 coll channels, 16 collnet channels, 16 nvls channels, 16 p2p channels",
        "INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct",
    )
    facts = logs.facts()
    assert facts is not None
    assert (facts["config"], facts["channels"]) == ({"max_ctas": 16}, 16)
    assert (facts["transport"], facts["warnings"]) == (["SHM"], [])
    # What a process names once is found all the same.
    assert (facts["version"], facts["nvls"], facts["nodes"]) == ("2.28.9", True, 1)
    assert facts["environment"] == {"NCCL_BUFFSIZE": "8388608"}
    # Asked again the same, and a later one begins where this ended.
    assert logs.facts() == facts
    later = NcclLogs(tmp_path).facts()
    assert later is not None
    assert later["config"] == {}
    # A communicator that says nothing of these has those of the launch.
    assert (later["channels"], later["transport"]) == (16, ["P2P", "SHM"])


def test_a_rank_whose_log_begins_later_is_read_from_its_start(tmp_path: Path) -> None:
    says(tmp_path, *FIRST)
    logs = NcclLogs(tmp_path)
    says(tmp_path, "INFO Channel 00/0 : 1[1] -> 0[0] via NET/Socket/0", pid=10)
    facts = logs.facts()
    assert facts is not None
    assert (facts["transport"], facts["network"]) == (["NET"], "Socket")


def test_a_value_that_changes_in_live_ranks_is_the_last(tmp_path: Path) -> None:
    says(tmp_path, "INFO NCCL_ALGO set by environment to ring,tree;allreduce:ring")
    logs = NcclLogs(tmp_path)
    says(tmp_path, "INFO NCCL_ALGO set by environment to ring,tree;allreduce:tree")
    facts = logs.facts(["NCCL_ALGO"])
    assert facts is not None
    assert facts["environment"] == {"NCCL_ALGO": "ring,tree;allreduce:tree"}


def test_only_the_variables_that_are_asked_for(tmp_path: Path) -> None:
    says(
        tmp_path,
        "INFO NCCL_BUFFSIZE set by environment to 8388608.",
        "INFO NCCL_ALGO set by environment to Ring",
        *(f"INFO {name} set by environment to x" for name in DIAGNOSTIC),
    )
    logs = NcclLogs(tmp_path)

    def environment(names: set[str] | None) -> dict[str, str]:
        facts = logs.facts(names)
        assert facts is not None
        return dict(facts["environment"])

    assert environment({"NCCL_ALGO", "NCCL_PROTO"}) == {"NCCL_ALGO": "Ring"}
    assert environment(set()) == {}
    assert environment(None) == {"NCCL_BUFFSIZE": "8388608", "NCCL_ALGO": "Ring"}
    # Every launch of ours sets these, whoever else does.
    assert environment({"NCCL_ALGO", *DIAGNOSTIC}) == {"NCCL_ALGO": "Ring"}


def test_no_more_than_five_warnings_and_each_once(tmp_path: Path) -> None:
    says(tmp_path, "WARN of before")
    logs = NcclLogs(tmp_path)
    says(tmp_path, *(f"WARN number {n % 7}" for n in range(20)))
    facts = logs.facts()
    assert facts is not None
    assert facts["warnings"] == [f"number {n}" for n in range(5)]


def test_bytes_that_are_no_text_do_not_shift_the_rest(tmp_path: Path) -> None:
    (tmp_path / "nccl.9.log").write_bytes(b"\xff\xfe\xe2\x82 box NCCL INFO \xc3\n" * 50)
    logs = NcclLogs(tmp_path)
    says(tmp_path, "INFO Comm config Max CTAs set to 16")
    facts = logs.facts()
    assert facts is not None
    assert facts["config"] == {"max_ctas": 16}
