"""Ranks that act as several hosts, by either launcher: what each finds in its environment. They are
real ranks on the CPU, where NCCL itself has no part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nccltune.launch.emulation import SOCKETS, emulating, pinned_variables
from nccltune.launch.protocol import Limits
from nccltune.nccl.site import MULTICAST_OFF
from nccltune.worker.spec import Settings
from workloads import WORKLOAD, launcher, left, quiet, request

pytestmark = pytest.mark.ranks
SHORT = Settings(windows=1, window_seconds=0.02, warmup_window_seconds=0.02, window_steps=2)
TELLING = replace(WORKLOAD, model="smalljobs:telling")


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert left() == []


@pytest.mark.parametrize(
    ("kind", "hosts"),
    [("warm", [0, 0, 1]), pytest.param("torchrun", [0, 1], marks=pytest.mark.slow)],
)
def test_each_rank_has_its_host_and_all_have_the_rest(
    tmp_path: Path, kind: str, hosts: list[int]
) -> None:
    base = emulating(MULTICAST_OFF, 2)
    starter = launcher(kind, tmp_path, len(hosts), pinned_variables(base), **base)
    group = starter.open({"NCCL_BUFFSIZE": "1048576"}, tmp_path / "logs")
    outcome = group.request(request(TELLING, SHORT), Limits(), quiet)
    group.close()
    starter.close()
    assert outcome.failure is None
    for rank, host in enumerate(hosts):
        seen = json.loads((tmp_path / "logs" / f"seen.{rank}.json").read_text())
        environment = seen["environment"]
        assert environment["NCCL_HOSTID"] == f"nccltune-h{host}"
        assert {**SOCKETS, **MULTICAST_OFF}.items() <= environment.items()
        assert environment["NCCL_BUFFSIZE"] == "1048576"
        assert "NCCLTUNE_HOSTS" not in environment
