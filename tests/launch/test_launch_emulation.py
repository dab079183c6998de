"""Ranks that act as several hosts: whose variables those are, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from nccltune.errors import StudyError, UsageError
from nccltune.launch.emulation import (
    SOCKETS,
    check_emulation,
    emulating,
    emulation,
    pinned_variables,
)
from nccltune.launch.environment import launch_environment, refuse_overrides
from nccltune.launch.plan import LaunchSettings
from nccltune.launch.stopping import StopFlag
from nccltune.launch.torchrun import TorchrunLauncher
from nccltune.nccl.site import MULTICAST_OFF, site_variables

SITE = {"PATH": "/bin", "NCCL_IB_HCA": "mlx5_0", **MULTICAST_OFF}


def no_files(base: Mapping[str, str], tmp_path: Path) -> dict[str, str]:
    """Without what this machine's own configuration files set."""
    return {**base, "NCCL_CONF_FILE": str(tmp_path / "nccl.conf")}


def test_the_environment_gets_what_all_ranks_share_and_keeps_the_rest() -> None:
    found = emulating(SITE, 2)
    assert found == {
        **SITE,
        "NCCL_NET": "Socket",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_RAS_ENABLE": "0",
        "NCCLTUNE_HOSTS": "2",
    }
    assert MULTICAST_OFF.items() <= found.items()
    assert emulating(found, 4) == {**found, "NCCLTUNE_HOSTS": "4"}


def test_without_the_option_nothing_is_emulated_whatever_was_left_behind() -> None:
    assert emulating(SITE, None) == SITE
    assert emulating({**SITE, "NCCLTUNE_HOSTS": "2"}, None) == SITE
    assert emulation(SITE) == {}
    assert pinned_variables(SITE) == site_variables(SITE)


@pytest.mark.parametrize(
    ("name", "value", "need"),
    [
        ("NCCL_NET", "IB", "Socket"),
        ("NCCL_NET", "", "Socket"),
        ("NCCL_NET_PLUGIN", "ofi", "none"),
        ("NCCL_SOCKET_IFNAME", "eth0", "lo"),
        ("NCCL_RAS_ENABLE", "1", "0"),
        ("NCCL_HOSTID", "nccltune-h0", "a value for each rank"),
    ],
)
def test_a_site_that_says_otherwise_is_refused(name: str, value: str, need: str) -> None:
    with pytest.raises(UsageError) as caught:
        emulating({**SITE, name: value}, 2)
    assert str(caught.value) == (
        f"--emulate-hosts 2: {name} must be {need}, but the site (environment) has set it to "
        f"{value!r}; unset it there, or leave the option out"
    )


def test_so_is_a_file_of_nccl_which_the_environment_would_override(tmp_path: Path) -> None:
    base = no_files(SITE, tmp_path)
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_NET=IB\n")
    with pytest.raises(UsageError, match=f"but the site .{conf}. has set it to 'IB'"):
        emulating(base, 2)
    conf.write_text("NCCL_NET=Socket\n")
    assert emulating(base, 2) == {**base, **SOCKETS, "NCCLTUNE_HOSTS": "2"}


def test_they_are_site_variables_of_every_launch(tmp_path: Path) -> None:
    base = emulating(no_files(SITE, tmp_path), 2)
    site = pinned_variables(base)
    assert {n: site[n].value for n in SOCKETS} == dict(SOCKETS)
    assert site["NCCL_HOSTID"].value == "nccltune-h*"
    assert site["NCCL_HOSTID"].source == site["NCCL_NET"].source == "--emulate-hosts 2"
    assert site["NCCL_IB_HCA"].source == "environment"
    assert launch_environment(base, site, {}) == base
    for name, value in (("NCCL_HOSTID", "h1"), ("NCCL_NET", "IB")):
        with pytest.raises(StudyError, match=f"{name}={value} would override the site's {name}="):
            refuse_overrides(site, {name: value})


def test_a_plan_shows_them_as_one_would_type_them() -> None:
    base = emulating({"PATH": "/bin"}, 2)
    settings = LaunchSettings(
        python="/opt/python",
        nproc_per_node=2,
        backend="nccl",
        worker_path=Path("/study/worker"),
        base=base,
        site=pinned_variables(base),
    )
    launcher = TorchrunLauncher(settings, StopFlag())
    plan = launcher.plan({}, Path("/study/logs"), "127.0.0.1:9", "secret", tag="abc")
    assert {**SOCKETS, "NCCLTUNE_HOSTS": "2"}.items() <= plan.added.items()
    assert "NCCL_HOSTID" not in plan.added  # each rank has another
    assert launch_environment(base, settings.site, plan.added) == {**base, **plan.added}


@pytest.mark.parametrize(
    ("hosts", "backend", "ranks", "message"),
    [
        (
            2,
            "gloo",
            2,
            "needs --backend nccl, which chooses its way from rank to rank by host; with gloo all "
            "ranks talk over sockets as it is",
        ),
        (3, "nccl", 2, "must be 2 to 2, with 2 ranks"),
        (9, "nccl", 8, "must be 2 to 8, with 8 ranks"),
        (1, "nccl", 8, "must be 2 to 8, with 8 ranks"),
        (2, "nccl", 1, "needs two ranks or more, there is one"),
    ],
)
def test_what_cannot_be_emulated(hosts: int, backend: str, ranks: int, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_emulation(hosts, backend, ranks)
    assert str(caught.value) == f"--emulate-hosts {hosts}: {message}"


def test_what_can_be_is_told_to_be_a_test() -> None:
    assert check_emulation(None, "gloo", 1) == []
    [note] = check_emulation(2, "nccl", 2)
    assert note.startswith("--emulate-hosts 2: a test;")
