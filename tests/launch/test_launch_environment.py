"""What a launch may add to the tuner's environment, and what it may not touch."""

from __future__ import annotations

import pytest

from nccltune.errors import StudyError
from nccltune.launch.environment import DIAGNOSTIC, launch_environment, nccl_log_variables
from nccltune.launch.plan import LaunchPlan, torchrun_argv
from nccltune.nccl.site import SiteVariable, site_variables

BASE = {"PATH": "/bin", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_NVLS_ENABLE": "0"}


def site(**values: str) -> dict[str, SiteVariable]:
    return {name: SiteVariable(name, value, "environment") for name, value in values.items()}


def test_a_launch_has_the_tuners_environment_and_what_the_trial_adds() -> None:
    added = {"NCCL_ALGO": "Ring", "NCCLTUNE_TAG": "abc"}
    found = launch_environment(BASE, site_variables(BASE), added)
    assert found == {**BASE, **added}
    assert launch_environment(BASE, site_variables(BASE), {}) == BASE
    assert BASE == {"PATH": "/bin", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_NVLS_ENABLE": "0"}


def test_a_site_variable_is_never_overridden() -> None:
    with pytest.raises(StudyError) as caught:
        launch_environment(BASE, site_variables(BASE), {"NCCL_SOCKET_IFNAME": "eth1"})
    assert str(caught.value) == (
        "NCCL_SOCKET_IFNAME=eth1 would override the site's NCCL_SOCKET_IFNAME=eth0 (environment)"
    )


def test_nor_is_one_from_a_file() -> None:
    pinned = {"NCCL_ALGO": SiteVariable("NCCL_ALGO", "Ring", "/etc/nccl.conf")}
    with pytest.raises(StudyError, match=r"the site's NCCL_ALGO=Ring \(/etc/nccl\.conf\)"):
        launch_environment({}, pinned, {"NCCL_ALGO": "Tree"})


def test_the_same_value_may_be_said_again() -> None:
    added = {"NCCL_SOCKET_IFNAME": "eth0"}
    assert launch_environment(BASE, site_variables(BASE), added) == BASE


@pytest.mark.parametrize(
    ("name", "off", "on"),
    [
        ("NCCL_NVLS_ENABLE", "0", "1"),
        ("NCCL_NVLS_ENABLE", "0", "2"),
        ("NCCL_NVLS_ENABLE", "0", ""),
        ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1", "0"),
        ("NVSHMEM_DISABLE_NVLS", "1", "0"),
    ],
)
def test_what_keeps_multicast_off_stays(name: str, off: str, on: str) -> None:
    base = {name: off}
    with pytest.raises(StudyError, match=name):
        launch_environment(base, site_variables(base), {name: on})


def test_our_own_logging_goes_before_the_sites() -> None:
    base = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/dev/null"}
    added = nccl_log_variables("/logs", probe=False)
    found = launch_environment(base, site_variables(base), added)
    assert found == {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV",
        "NCCL_DEBUG_FILE": "/logs/nccl.%p.log",
    }
    assert set(added) == set(DIAGNOSTIC)


def test_only_a_probe_logs_every_collective() -> None:
    assert "TUNING" in nccl_log_variables("/logs", probe=True)["NCCL_DEBUG_SUBSYS"].split(",")
    assert "TUNING" not in nccl_log_variables("/logs", probe=False)["NCCL_DEBUG_SUBSYS"]


def test_a_plan_reads_as_one_would_type_it() -> None:
    plan = LaunchPlan(torchrun_argv("/my py/python", 2, "nccltune.worker"), {"NCCL_ALGO": "a;b"})
    assert plan.lines() == [
        "NCCL_ALGO='a;b' \\",
        "'/my py/python' -m torch.distributed.run --standalone --nnodes=1 --nproc-per-node=2 "
        "--max-restarts=0 --monitor-interval=0.1 -m nccltune.worker",
    ]
