"""What a launch may add to the tuner's environment, and what it may not touch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nccltune.errors import StudyError, UsageError
from nccltune.launch.environment import (
    DIAGNOSTIC,
    launch_environment,
    nccl_log_variables,
    refuse_overrides,
    without_unpinned,
)
from nccltune.launch.plan import LaunchPlan, LaunchSettings, torchrun_argv
from nccltune.launch.stopping import StopFlag
from nccltune.launch.torchrun import TorchrunLauncher
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


def test_what_keeps_multicast_off_is_set_outright() -> None:
    def held(name: str, value: str) -> dict[str, SiteVariable]:
        return {name: SiteVariable(name, value, "/etc/nccl.conf")}

    others = held("NCCL_SOCKET_IFNAME", "eth0") | held("NVSHMEM_DISABLE_NVLS", "0")
    pinned = others | held("NCCL_NVLS_ENABLE", "0") | held("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    assert launch_environment({"PATH": "/bin"}, pinned, {"NCCL_ALGO": "Ring"}) == {
        "PATH": "/bin",
        "NCCL_ALGO": "Ring",
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    }
    switched_on = held("NCCL_NVLS_ENABLE", "2")
    assert launch_environment({}, switched_on, {}) == {}


def test_overrides_are_refused_for_live_ranks_too() -> None:
    pinned = site(NCCL_ALGO="Ring", NCCL_DEBUG="WARN")
    refuse_overrides(pinned, {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_DEBUG": "INFO"})
    with pytest.raises(StudyError, match="NCCL_ALGO=Tree would override the site's NCCL_ALGO=Ring"):
        refuse_overrides(pinned, {"NCCL_PROTO": "Simple", "NCCL_ALGO": "Tree"})


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
    plan = LaunchPlan(
        torchrun_argv("/my py/python", 2, "nccltune.worker", Path("/logs/t")), {"NCCL_ALGO": "a;b"}
    )
    assert plan.lines() == [
        "NCCL_ALGO='a;b' \\",
        "'/my py/python' -m torch.distributed.run --standalone --nnodes=1 --nproc-per-node=2 "
        "--max-restarts=0 --monitor-interval=0.1 --log-dir=/logs/t -m nccltune.worker",
    ]


def planned(backend: str, process_env: dict[str, str], gpus: Any = (), **base: str) -> LaunchPlan:
    settings = LaunchSettings(
        python="/opt/python",
        nproc_per_node=2,
        backend=backend,
        worker_path=Path("/study/worker"),
        base=base,
        site={},
        gpus=gpus,
    )
    launcher = TorchrunLauncher(settings, StopFlag())
    return launcher.plan(process_env, Path("/study/logs"), "127.0.0.1:9", "secret", tag="abc")


def test_what_a_launch_adds() -> None:
    plan = planned("gloo", {"OMP_NUM_THREADS": "4"})
    assert plan.added == {
        "OMP_NUM_THREADS": "4",
        "PYTHONPATH": "/study/worker",
        "PYTHONUNBUFFERED": "1",
        "NCCLTUNE_ADDRESS": "127.0.0.1:9",
        "NCCLTUNE_TOKEN": "secret",
        "NCCLTUNE_LOG_DIR": "/study/logs",
        "NCCLTUNE_TAG": "abc",
    }
    assert plan.argv[0] == "/opt/python"
    assert "secret" not in " ".join(plan.argv)  # a command line can be read by all


def test_with_nccl_its_log_is_added_and_a_trial_cannot_turn_it_off() -> None:
    plan = planned("nccl", {"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring"})
    assert plan.added["NCCL_ALGO"] == "Ring"
    assert {name: plan.added[name] for name in DIAGNOSTIC} == nccl_log_variables(
        "/study/logs", probe=False
    )


def test_the_users_own_path_is_kept_behind_the_workers() -> None:
    plan = planned("gloo", {}, PYTHONPATH="/my/code:/more")
    assert plan.added["PYTHONPATH"] == "/study/worker:/my/code:/more"


def test_gpus_are_numbered_as_the_driver_does_unless_the_user_says_how() -> None:
    gpus = (object(), object())
    assert planned("nccl", {}, gpus).added["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_DEVICE_ORDER" not in planned("gloo", {}).added
    own = planned("nccl", {}, gpus, CUDA_DEVICE_ORDER="FASTEST_FIRST")
    assert "CUDA_DEVICE_ORDER" not in own.added  # theirs stays in the environment


def test_what_is_unpinned_is_gone_from_every_launch() -> None:
    environ = {"NCCL_ALGO": "Ring", "NCCL_BUFFSIZE": "1048576", "HOME": "/h"}
    assert without_unpinned(environ, ("NCCL_ALGO",)) == {
        "NCCL_BUFFSIZE": "1048576",
        "HOME": "/h",
    }
    assert without_unpinned(environ, ()) == environ


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("NCCL_PROTO", "the site sets NCCL_ALGO, NCCL_CONF_FILE, NCCL_NVLS_ENABLE, .*, not this"),
        ("HOME", "not this"),
        ("NCCL_NVLS_ENABLE", "keeps NVLink multicast off .NCCL_NVLS_ENABLE=0., which no option"),
        ("NVSHMEM_DISABLE_NVLS", "keeps NVLink multicast off"),
        ("NCCL_MAX_CTAS", "is set in .*nccl.conf, which NCCL reads by itself"),
        ("NCCL_ALGO", "nccl.conf sets it too, to 'Tree', and NCCL reads"),
        ("NCCL_CONF_FILE", "TORCH_SYMM_MEM_DISABLE_MULTICAST would be lost with it"),
    ],
)
def test_what_cannot_be_unpinned(tmp_path: Path, name: str, reason: str) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_MAX_CTAS=4\nNCCL_ALGO=Tree\nTORCH_SYMM_MEM_DISABLE_MULTICAST=1\n")
    environ = {
        "NCCL_ALGO": "Ring",
        "NCCL_CONF_FILE": str(conf),
        "NCCL_NVLS_ENABLE": "0",
        "NVSHMEM_DISABLE_NVLS": "1",
        "HOME": "/h",
    }
    with pytest.raises(UsageError, match=f"--unpin {name}: .*{reason}"):
        without_unpinned(environ, (name,))
