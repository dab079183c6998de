"""Which warm hosts are kept, without starting any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nccltune.errors import StudyError
from nccltune.launch import warm
from nccltune.launch.plan import LaunchSettings
from nccltune.launch.stopping import StopFlag
from nccltune.launch.warm import WarmLauncher


@dataclass
class Host:
    early: Mapping[str, str]
    alive: bool = True
    busy: bool = False
    ready: bool = True

    def end(self) -> None:
        self.alive = False

    def last_words(self) -> str:
        return "no room left"


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> WarmLauncher:
    def start(_python: str, _path: Path, _base: Any, _site: Any, early: Mapping[str, str]) -> Host:
        return Host(dict(early))

    monkeypatch.setattr(warm, "WarmHost", start)
    settings = LaunchSettings("python", 2, "gloo", Path("/w"), {}, {})
    return WarmLauncher(settings, StopFlag())


def host(launcher: WarmLauncher, threads: str, *, busy: bool = False) -> Host:
    found: Any = launcher._host({"OMP_NUM_THREADS": threads})
    found.busy = busy
    return found  # type: ignore[no-any-return]


def test_two_environments_have_their_hosts_and_a_third_takes_the_place_of_the_older(
    launcher: WarmLauncher,
) -> None:
    one, two = host(launcher, "2"), host(launcher, "3")
    assert host(launcher, "2") is one and host(launcher, "3") is two
    assert host(launcher, "2") is one  # so the other one was not used for longest
    third = host(launcher, "4")
    assert (one.alive, two.alive, third.alive) == (True, False, True)
    assert host(launcher, "2") is one and len(launcher.hosts) == 2


def test_a_busy_host_is_never_ended(launcher: WarmLauncher) -> None:
    one, two = host(launcher, "2", busy=True), host(launcher, "3")
    third = host(launcher, "4")
    assert (one.alive, two.alive, third.alive) == (True, False, True)
    third.busy = True
    assert host(launcher, "2") is not one  # two groups that take turns
    assert one.alive and third.alive


def test_a_dead_host_is_replaced_and_one_that_never_comes_up_ends_it(
    launcher: WarmLauncher,
) -> None:
    plain = host(launcher, "1")
    plain.alive = False
    again = host(launcher, "1")
    assert again is not plain and launcher.hosts == [again]
    again.alive = again.ready = False
    last = host(launcher, "1")
    last.alive = last.ready = False
    with pytest.raises(StudyError, match="does not start any more: no room left"):
        host(launcher, "1")
