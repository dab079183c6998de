"""Variables that do nothing where ranks talk over something else."""

from __future__ import annotations

import pytest
from packaging.version import Version

from nccltune.nccl.acting import why_dead

NOW = Version("2.28.9")


@pytest.mark.parametrize(
    ("name", "transport", "network", "told"),
    [
        ("NCCL_SOCKET_NTHREADS", ["P2P"], None, "no rank uses that here (transport P2P)"),
        ("NCCL_NSOCKS_PERTHREAD", ["SHM"], None, "no rank uses that"),
        ("NCCL_IB_QPS_PER_CONNECTION", ["NET"], "Socket", "NCCL's network here is Socket"),
        ("NCCL_SOCKET_NTHREADS", ["NET"], "IB", "it acts on Socket, NCCL's network here is IB"),
        ("NCCL_P2P_LEVEL", ["NET"], "Socket", "it acts on P2P, ranks here use NET"),
    ],
)
def test_dead(name: str, transport: list[str], network: str | None, told: str) -> None:
    found = why_dead(name, NOW, transport, network)
    assert found is not None and told in found


@pytest.mark.parametrize(
    ("name", "transport", "network"),
    [
        ("NCCL_SOCKET_NTHREADS", ["NET"], "Socket"),
        ("NCCL_SOCKET_NTHREADS", ["P2P", "NET"], "Socket"),
        ("NCCL_SOCKET_NTHREADS", ["NET"], "AWS Libfabric"),  # a plugin: nobody knows
        ("NCCL_SOCKET_NTHREADS", [], None),  # nobody has looked
        ("NCCL_SOCKET_IFNAME", ["P2P"], None),  # of the bootstrap too
        ("NCCL_BUFFSIZE", ["P2P"], None),
        ("NCCL_P2P_LEVEL", ["P2P"], None),
        ("TORCH_NCCL_HIGH_PRIORITY", ["P2P"], None),
        ("NO_SUCH", ["P2P"], None),
    ],
)
def test_may_act(name: str, transport: list[str], network: str | None) -> None:
    assert why_dead(name, NOW, transport, network) is None


def test_releases() -> None:
    later = why_dead("NCCL_CGA_CLUSTER_SIZE", Version("2.10.3"), ["P2P"], None)
    assert later is not None and "NCCL 2.10.3 does not read it yet" in later
    gone = why_dead("NCCL_AGG_CHANNEL_SIZE", NOW, ["P2P"], None)
    assert gone == "NCCL 2.28.9 reads it no more (removed in 2.20)"
