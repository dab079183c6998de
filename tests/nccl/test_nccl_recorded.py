"""Logs of 2x H200, NCCL 2.28.9, torch 2.11, 2026-11-30: DDP over 16 layers of 4 MiB, four steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from nccltune.nccl.log import Choice, NcclLog, parse
from nccltune.nccl.proof import traces

LOGS = Path(__file__).parent / "logs"
REBUILT = (4198400, 29388800)
"""Bytes of two of the gradient buckets after DDP has rebuilt them; before, all is in one."""


def recorded(name: str) -> NcclLog:
    return parse((LOGS / f"h200x2-{name}.txt").read_text())


def ran(log: NcclLog) -> set[tuple[str, str, int | None]]:
    """Algorithm, protocol and channels of the gradients' all-reduces."""
    return {
        (c.algorithm, c.protocol, c.channels)
        for c in log.choices
        if c.function == "AllReduce" and c.bytes in REBUILT
    }


@pytest.mark.parametrize(
    ("name", "link", "network", "nodes", "channels"),
    [
        ("nvlink", "P2P/CUMEM", None, 1, 24),
        ("p2poff", "SHM/direct", None, 1, 4),
        ("sockets", "NET/Socket", "Socket", 2, 2),
        ("hosts", "NET/Socket", "Socket", 2, 2),
        ("knobs", "P2P/IPC", None, 1, 8),
    ],
)
def test_each_path_is_known_by_its_log(
    name: str, link: str, network: str | None, nodes: int, channels: int
) -> None:
    log = recorded(name)
    assert log.version == Version("2.28.9") and log.environment["NCCL_NVLS_ENABLE"] == "0"
    assert log.links == ((0, 1, link), (1, 0, link))
    assert (log.network, log.nodes, log.coll_channels) == (network, nodes, channels)
    assert ran(log) == {("Tree" if name == "knobs" else "Ring", "Simple", channels)}
    assert Choice("AllGather", 8, "Ring", "LL", 1) in log.choices  # DDP compares the parameters
    assert log.warnings == ()


def meanings(name: str, asked: dict[str, str]) -> dict[str, str]:
    log = recorded(name)
    return {t.name: t.meaning for t in traces(asked, log.environment, log.config)}


SOCKETS = {"NCCL_NSOCKS_PERTHREAD": "4", "NCCL_SOCKET_NTHREADS": "2"}


def test_socket_variables_leave_a_trace_where_sockets_are_used_alone() -> None:
    assert set(meanings("sockets", SOCKETS).values()) == {"taken"}
    assert set(meanings("hosts", SOCKETS).values()) == {"taken"}
    assert set(meanings("p2poff", SOCKETS).values()) == {"no trace"}


def test_what_was_set_over_nvlink_is_taken_or_silent() -> None:
    asked = {
        "NCCL_ALGO": "ring,tree;allreduce:tree",
        "NCCL_PROTO": "^LL128",
        "NCCL_BUFFSIZE": "8388608",
        "NCCL_MAX_CTAS": "8",
        "NCCL_CGA_CLUSTER_SIZE": "2",
        "NCCL_NTHREADS": "256",
        "NCCL_P2P_LEVEL": "SYS",
        "NCCL_CUMEM_ENABLE": "0",
        "NCCL_IB_HCA": "mlx5",
        "NCCL_LAUNCH_MODE": "GROUP",
        "NCCL_SOCKET_NTHREADS": "4",  # no socket carries data
        "NCCL_NET_GDR_LEVEL": "PHB",
    }
    found = meanings("knobs", asked)
    assert [n for n, m in found.items() if m == "no trace"] == list(asked)[-2:]
    assert {m for n, m in found.items() if n in list(asked)[:-2]} == {"taken"}


def test_a_size_with_a_unit_is_read_as_another_number() -> None:
    (trace,) = traces({"NCCL_BUFFSIZE": "8M"}, recorded("buff8m").environment, {})
    assert (trace.taken, trace.meaning) == ("8", "other value")


def test_limits_given_to_the_communicator_count_and_unlogged_names_say_nothing() -> None:
    asked = {
        "NCCL_MAX_CTAS": "8",
        "NCCL_MIN_CTAS": "0x2",
        "NCCL_NET": "Socket",
        "TORCH_NCCL_HIGH_PRIORITY": "1",
        "NCCL_P2P_LEVEL": "3",
    }
    found = traces(asked, {"NCCL_P2P_LEVEL": "PXB"}, {"max_ctas": 8, "min_ctas": 2})
    meant = ["taken", "taken", "not told", "not told", "taken"]
    assert [trace.meaning for trace in found] == meant
    (other,) = traces({"NCCL_MAX_CTAS": "8"}, {}, {"max_ctas": 4})
    assert other.meaning == "other value"


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("tree", "no algorithm/protocol available for function AllGather"),
        ("typo", 'Unrecognized element token "Rong"'),
    ],
)
def test_what_kills_ddp_is_in_the_warnings(name: str, warning: str) -> None:
    log = recorded(name)
    assert len(log.warnings) == 1 and warning in log.warnings[0]
    assert log.links == () and log.choices == ()


def test_an_absence_means_something_only_where_nccl_names_what_it_reads() -> None:
    silent = {"NCCL_NTHREADS": "256", "NCCL_ALGO": "Ring", "NCCL_IB_QPS_PER_CONNECTION": "4"}
    untold = {"NCCL_NET": "Socket", "NCCL_TOPO_FILE": "/x", "NCCL_NOT_KNOWN": "1", "GLOO_X": "1"}
    found = {t.name: t.meaning for t in traces({**silent, **untold}, {}, {})}
    assert {found[name] for name in silent} == {"no trace"}
    assert {found[name] for name in untold} == {"not told"}
