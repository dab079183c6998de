"""Which host a rank says it sits on."""

from __future__ import annotations

import pytest

from nccltune.worker.hosts import host_of, take_host


@pytest.mark.parametrize(
    ("ranks", "hosts", "split"),
    [
        (2, 2, "01"),
        (4, 2, "0011"),
        (8, 2, "00001111"),
        (8, 4, "00112233"),
        (8, 8, "01234567"),
        (3, 2, "001"),  # as evenly as it can be
        (5, 3, "00112"),
    ],
)
def test_neighbours_share_a_host_and_hosts_are_even(ranks: int, hosts: int, split: str) -> None:
    names = [host_of(rank, ranks, hosts) for rank in range(ranks)]
    assert names == [f"nccltune-h{number}" for number in split]


def test_a_rank_takes_its_host_where_the_launch_asks_for_it() -> None:
    ranks = {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "NCCL_NVLS_ENABLE": "0"}
    environ = {**ranks, "NCCLTUNE_HOSTS": "2"}
    take_host(environ)
    assert environ == {**ranks, "NCCL_HOSTID": "nccltune-h1"}
    take_host(environ)  # not asked for again
    assert environ == {**ranks, "NCCL_HOSTID": "nccltune-h1"}
    plain = dict(ranks)
    take_host(plain)
    assert plain == ranks
