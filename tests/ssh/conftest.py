"""One pair of nodes for all tests here; they are skipped where OpenSSH's server is missing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ssh_search import Search
from sshd import Network, loopback, missing_programs

from running import Cli


@pytest.fixture(scope="session")
def running_network() -> Iterator[Network]:
    if missing := missing_programs():
        pytest.skip(f"no sshd here ({', '.join(missing)}): apt-get install openssh-server")
    with loopback() as running:
        yield running


@pytest.fixture
def network(running_network: Network) -> Iterator[Network]:
    """Both nodes answer and let us in, before and after."""
    yield running_network
    running_network.recover()


@pytest.fixture
def search(network: Network, cli: Cli) -> Search:
    return Search(network, cli)
