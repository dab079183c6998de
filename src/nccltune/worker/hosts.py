"""Ranks of one machine that act as if they sat on several hosts, for testing."""

from __future__ import annotations

from collections.abc import MutableMapping

HOSTS = "NCCLTUNE_HOSTS"
"""How many hosts the ranks of a launch act as; set in the launch's environment, not in ranks."""


def host_of(local_rank: int, ranks: int, hosts: int) -> str:
    """The name of a rank's host: ranks are split evenly, neighbours together."""
    return f"nccltune-h{local_rank * hosts // ranks}"


def take_host(environ: MutableMapping[str, str]) -> None:
    """In a rank, before NCCL's first call: give it a host of its own where the launch asks for it.
    NCCL then reaches ranks of other hosts over the network alone.
    """
    hosts = environ.pop(HOSTS, None)
    if hosts is not None:
        ranks = int(environ["LOCAL_WORLD_SIZE"])
        environ["NCCL_HOSTID"] = host_of(int(environ["LOCAL_RANK"]), ranks, int(hosts))
