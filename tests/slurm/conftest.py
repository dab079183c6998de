"""One cluster for all tests here; they are skipped where Slurm's programs are not installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster import Cluster, cluster, missing_programs
from slurm_search import Search

from running import Cli


@pytest.fixture(scope="session")
def running_slurm() -> Iterator[Cluster]:
    if missing := missing_programs():
        pytest.skip(f"no Slurm here ({', '.join(missing)}): apt-get install slurm-wlm munge")
    with cluster() as running:
        yield running


@pytest.fixture
def slurm(running_slurm: Cluster) -> Iterator[Cluster]:
    """Both nodes idle, before and after."""
    yield running_slurm
    running_slurm.recover()


@pytest.fixture
def search(slurm: Cluster, cli: Cli) -> Search:
    return Search(slurm, cli)
