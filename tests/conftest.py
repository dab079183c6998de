"""The real command, in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from postgres import Postgres, server
from running import Cli

# A shell's background job ignores SIGINT, and what it starts would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent / "launch" in item.path.parents:
            item.add_marker(pytest.mark.serial)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with server() as running:
        if running is None:
            pytest.skip("no PostgreSQL server: apt-get install postgresql, or make setup")
        yield running


@pytest.fixture
def cli(tmp_path: Path, cache: Path) -> Iterator[Cli]:
    command = Cli(tmp_path, cache)
    yield command
    for pid in command.processes():  # a failing test must not disturb the next
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
