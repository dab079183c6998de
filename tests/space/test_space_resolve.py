"""From a file's space to the space of one machine: what is dropped, with its words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from space_jobs import (
    GLOO,
    NVLINK,
    SOCKETS,
    choices,
    names,
    notes,
    resolved,
    site,
    variable,
)

from nccltune.nccl.site import SiteVariable
from nccltune.space.loading import load
from nccltune.space.resolve import Facts


def test_the_default_space_over_sockets_is_searched_whole() -> None:
    found = resolved(load("default"))
    assert names(found)[:8] == list(load("default").parameters)
    assert found.probed
    assert found.baseline == {
        "NCCL_ALGO": None,
        "NCCL_PROTO": None,
        "NCCL_BUFFSIZE": None,
        "bucket_cap_mb": None,
        "gradient_as_bucket_view": False,
        "batch_size": 64,
        "num_workers": 4,
        "prefetch_factor": None,
        "NCCL_SOCKET_NTHREADS": None,
        "NCCL_NSOCKS_PERTHREAD": None,
        "NCCL_MIN_CTAS": None,
        "NCCL_MAX_CTAS": None,
    }
    assert [preset.name for preset in found.presets] == [
        "sockets-4-threads-2", "larger-buckets", "ring",
    ]  # fmt: skip


def test_over_nvlink_the_sockets_go_and_so_does_their_preset() -> None:
    found = resolved(load("default"), NVLINK)
    assert not {"NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"} & set(names(found))
    assert notes(found, "fragment ethernet") == [
        (
            "dropped",
            "no rank uses the network here (transport P2P): NCCL_SOCKET_IFNAME, "
            "NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD",
        )
    ]
    assert [preset.name for preset in found.presets] == ["larger-buckets", "ring"]


def test_on_gloo_only_ddp_loader_and_batch_are_left() -> None:
    found = resolved(load("default"), GLOO)
    assert names(found) == [
        "bucket_cap_mb", "gradient_as_bucket_view", "batch_size", "num_workers",
        "prefetch_factor",
    ]  # fmt: skip
    reason = "NCCL variables cannot act with the gloo backend"
    assert notes(found, "NCCL_ALGO") == [("dropped", reason)]
    assert choices(resolved(load("cpu"), GLOO), "batch_size") == (8, 16, 32, 64)


def test_what_is_not_known_before_the_probe_is_kept() -> None:
    early = replace(SOCKETS, probed=False, network=None, transports=(), nccl=None)
    space = {"NCCL_SOCKET_NTHREADS": variable(None, 4, when={"network": "Socket"})}
    found = resolved(space, early)
    assert names(found) == ["NCCL_SOCKET_NTHREADS"]
    assert not found.probed
    assert names(resolved(space, replace(early, probed=True))) == []


def test_the_sites_variables_are_pinned() -> None:
    facts = replace(
        SOCKETS, site={"NCCL_BUFFSIZE": SiteVariable("NCCL_BUFFSIZE", "8", "/etc/nccl.conf")}
    )
    found = resolved(load("default"), facts)
    assert "NCCL_BUFFSIZE" not in found.baseline
    assert notes(found, "NCCL_BUFFSIZE") == [
        ("pinned", "set by the site (/etc/nccl.conf): stays at 8 in baseline and candidates")
    ]


DROPPED = [
    ("NCCL_MIN_CTAS", variable(None, 8), replace(SOCKETS, world_size=1, nodes=1),
     "a single rank does not communicate"),
    ("NCCL_MIN_CTAS", variable(None, 8), GLOO, "NCCL variables cannot act with the gloo backend"),
    ("NCCL_MIN_CTAS", variable(None, 8, when={"nccl": ">=2.29"}), SOCKETS,
     "needs NCCL >=2.29, this job uses 2.28.9"),
    ("NCCL_MIN_CTAS", variable(None, 8, risk="unsafe"), SOCKETS,
     "risk unsafe: needs --allow-unsafe"),
    ("static_graph", {"target": "ddp", "choices": [False, True], "default": False}, SOCKETS,
     "risk unsafe: needs --allow-unsafe"),
    ("bucket_cap_mb", {"target": "ddp", "choices": [None, 5]},
     replace(SOCKETS, ddp_arguments=frozenset({"module"})),
     "DDP of the job's torch does not take it"),
    ("num_workers", {"target": "loader", "range": {"low": 0, "high": 8}},
     replace(SOCKETS, data="synthetic"), "synthetic data uses no loader"),
    ("NCCL_MIN_CTAS", variable(None), SOCKETS, "only one value is left here (null)"),
    ("num_workers", {"target": "loader", "range": {"low": 0, "high": 8}},
     replace(SOCKETS, cpus_per_rank=0, num_workers=0), "only one value is left here (0)"),
    ("NCCL_CHUNK_SIZE", variable(None, 65536), SOCKETS,
     "NCCL_CHUNK_SIZE=65536: never tried: wrong sums and hangs were reported "
     "(NVIDIA/nccl#2408, #1496)"),
    ("NCCL_NSOCKS_PERTHREAD", variable(None, 4), SOCKETS,
     "does nothing without NCCL_SOCKET_NTHREADS, which stays null here"),
    ("prefetch_factor", {"target": "loader", "choices": [None, 4]},
     replace(SOCKETS, num_workers=0), "does nothing without num_workers, which stays 0 here"),
    ("NCCL_NVLS_ENABLE", variable(None, 2), replace(SOCKETS, site=site(NVSHMEM_DISABLE_NVLS="1")),
     "NCCL_NVLS_ENABLE=2: the site has switched NVLink multicast off"),
    ("NCCL_NVLS_NCHANNELS", variable(None, 8),
     replace(SOCKETS, site=site(NCCL_NVLS_ENABLE="0")),
     "NCCL_NVLS_NCHANNELS=8: the site has switched NVLink multicast off"),
    ("batch_size", {"target": "batch", "range": {"low": 8, "high": 64}}, SOCKETS,
     "only batches above the user's 64 are tried"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "parameter", "facts", "reason"), DROPPED)
def test_what_cannot_act_here_is_dropped_with_the_reason(
    name: str, parameter: dict[str, Any], facts: Facts, reason: str
) -> None:
    found = resolved({name: parameter}, facts)
    assert found.parameters == ()
    assert notes(found, name)[-1] == ("dropped", reason)
    assert found.baseline == {}


def test_variables_of_others_act_with_gloo_and_on_one_rank_too() -> None:
    space = {"OMP_NUM_THREADS": variable(None, 1, 2), "GLOO_SOCKET_IFNAME": variable(None, "lo")}
    assert names(resolved(space, GLOO)) == ["OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME"]
    assert names(resolved(space, replace(GLOO, world_size=1))) == ["OMP_NUM_THREADS"]


def test_what_is_guarded_is_offered_in_one_line() -> None:
    space = {
        "NCCL_P2P_LEVEL": variable(None, "SYS", risk="guarded", caution="hangs were reported"),
        "NCCL_MIN_CTAS": variable(None, 8, risk="guarded"),
        # No offer where nothing could be searched anyway.
        "NCCL_CHUNK_SIZE": variable(None, 65536, risk="guarded"),
        "NCCL_IB_TC": variable(None, 8, risk="guarded", when={"network": "IB"}),
    }
    found = resolved(space)
    assert found.parameters == ()
    assert notes(found, "NCCL_P2P_LEVEL") == [
        ("guarded", "could be tried with --allow-guarded (hangs were reported)")
    ]
    assert notes(found, "NCCL_MIN_CTAS") == [("guarded", "could be tried with --allow-guarded")]
    assert [action for action, _ in notes(found, "NCCL_CHUNK_SIZE")] == ["dropped"]
    assert [action for action, _ in notes(found, "NCCL_IB_TC")] == ["dropped"]
    assert not [n for n in resolved(space, allow_guarded=True).notes if n.action == "guarded"]


def test_each_flag_allows_its_own_risk() -> None:
    space = {
        "NCCL_MIN_CTAS": variable(None, 8, risk="guarded"),
        "NCCL_MAX_CTAS": variable(None, 8, risk="unsafe"),
        "NCCL_PROTO": variable(None, "LL128"),
    }
    assert names(resolved(space, allow_guarded=True)) == ["NCCL_MIN_CTAS"]
    assert names(resolved(space, allow_unsafe=True)) == ["NCCL_MAX_CTAS", "NCCL_PROTO"]


def test_one_that_waits_for_a_dropped_one_is_dropped_too() -> None:
    space = {
        "NCCL_A": variable(None, 1, when={"param": {"NCCL_B": 1}}),
        "NCCL_B": variable(None, 1, when={"param": {"OMP_NUM_THREADS": "not_null"}}),
        "OMP_NUM_THREADS": variable(None, 2, risk="guarded"),
    }
    # Made-up NCCL names would be refused, so these are torch's.
    space = yaml.safe_load(yaml.safe_dump(space).replace("NCCL_", "TORCH_NCCL_"))
    found = resolved(space)
    assert found.parameters == ()
    assert notes(found, "TORCH_NCCL_B") == [
        ("dropped", "needs OMP_NUM_THREADS not null, which stays null here")
    ]
    assert notes(found, "TORCH_NCCL_A") == [
        ("dropped", "needs TORCH_NCCL_B=1, which stays null here")
    ]
    allowed = resolved(space, allow_guarded=True)
    assert len(allowed.parameters) == 3
    fixed = resolved(space, fix={"OMP_NUM_THREADS": 3})
    assert names(fixed) == ["TORCH_NCCL_A", "TORCH_NCCL_B"]


def test_a_value_that_narrowing_took_away_is_waited_for_in_vain() -> None:
    space = {
        "NCCL_PROTO": variable(None, "LL", "LL128"),
        "NCCL_MIN_CTAS": variable(None, 8, when={"param": {"NCCL_PROTO": "LL128"}}),
    }
    assert notes(resolved(space), "NCCL_MIN_CTAS") == [
        ("dropped", "needs NCCL_PROTO=LL128, which is not among its values here")
    ]


def test_a_variable_of_the_site_meets_a_condition() -> None:
    found = resolved(load("default"), replace(SOCKETS, site=site(NCCL_SOCKET_NTHREADS="4")))
    assert "NCCL_NSOCKS_PERTHREAD" in names(found)
    assert found.given["NCCL_SOCKET_NTHREADS"] == 4
    assert "NCCL_SOCKET_NTHREADS" not in found.baseline
