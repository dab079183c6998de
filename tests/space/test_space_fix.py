"""--fix, --only and --exclude."""

from __future__ import annotations

from dataclasses import replace

import pytest
from space_jobs import (
    GLOO,
    SOCKETS,
    names,
    notes,
    refused,
    resolved,
    site,
    variable,
)

from nccltune.space.loading import load
from nccltune.space.scalars import Value


@pytest.mark.parametrize("option", ["only", "exclude"])
def test_unknown_names_list_the_known_ones(option: str) -> None:
    space = {"NCCL_ALGO": variable(None, "Ring"), "NCCL_PROTO": variable(None, "LL")}
    assert refused(space, **{option: ("NCCL_ALG",)}) == (
        f"--{option}: unknown parameter or target 'NCCL_ALG', did you mean NCCL_ALGO? a.yaml has "
        "NCCL_ALGO, NCCL_PROTO; targets are env, ddp, loader, batch"
    )
    assert refused(space, **{option: ("zzz",)}) == (
        f"--{option}: unknown parameter or target 'zzz', a.yaml has NCCL_ALGO, NCCL_PROTO; "
        "targets are env, ddp, loader, batch"
    )


def test_only_and_exclude_take_names_and_targets() -> None:
    space = load("default")
    assert names(resolved(space, only=("loader", "NCCL_ALGO"))) == [
        "NCCL_ALGO", "num_workers", "prefetch_factor",
    ]  # fmt: skip
    found = resolved(space, only=("loader", "ddp"), exclude=("bucket_cap_mb", "loader"))
    assert names(found) == ["gradient_as_bucket_view"]
    assert notes(found, "bucket_cap_mb") == [("dropped", "named in --exclude")]
    assert notes(found, "NCCL_ALGO") == [("dropped", "not named in --only")]


def test_nothing_left_to_search_is_no_error() -> None:
    found = resolved({"NCCL_ALGO": variable(None, "Ring")}, GLOO)
    assert found.parameters == ()
    assert found.baseline == {}


def test_a_fixed_parameter_is_held_and_not_searched() -> None:
    found = resolved(load("default"), fix={"bucket_cap_mb": 7, "NCCL_ALGO": "Ring"})
    assert "bucket_cap_mb" not in names(found)
    assert found.fixed == {"bucket_cap_mb": 7, "NCCL_ALGO": "Ring"}
    assert found.baseline["bucket_cap_mb"] == 7
    assert found.fixed_targets == {"bucket_cap_mb": "ddp", "NCCL_ALGO": "env"}
    assert notes(found, "bucket_cap_mb") == [
        ("fixed", "--fix: stays at 7 in baseline and candidates")
    ]
    # The presets that only say what is fixed, or are held by it, go.
    assert [preset.name for preset in found.presets] == ["sockets-4-threads-2"]


def test_what_may_be_fixed_without_being_in_the_space() -> None:
    ddp = frozenset({"bucket_cap_mb", "gradient_as_bucket_view", "broadcast_buffers"})
    fix = {
        "NCCL_NTHREADS": 256,
        "num_workers": 2,
        "prefetch_factor": 4,
        "batch_size": 128,
        "gradient_as_bucket_view": True,
        "broadcast_buffers": False,
    }
    space = {"NCCL_ALGO": variable(None, "Ring")}
    found = resolved(space, replace(SOCKETS, ddp_arguments=ddp), fix=fix)
    assert found.fixed == fix
    assert list(found.fixed_targets.values()) == [
        "env", "loader", "loader", "batch", "ddp", "ddp",
    ]  # fmt: skip


DDP = frozenset({"module", "bucket_cap_mb", "static_graph", "broadcast_buffers"})
REFUSED_FIXES = [
    ({"NCCL_ALGOO": "Ring"}, {},
     "--fix: unknown parameter 'NCCL_ALGOO', did you mean NCCL_ALGO? a.yaml has NCCL_ALGO, "
     "num_workers, prefetch_factor, batch_size, bucket_cap_mb, gradient_as_bucket_view, "
     "broadcast_buffers, static_graph, and NCCL's own variables can be fixed; export any other "
     "variable before starting nccltune"),
    ({"module": 1}, {}, "--fix module: DDP's module belongs to the job and cannot be fixed"),
    ({"NCCL_CONF_FILE": "/other.conf"}, {},
     "--fix NCCL_CONF_FILE=/other.conf: NCCL_CONF_FILE belongs to the launch and cannot be "
     "searched or held"),
    ({"gradient_as_bucket_view": True}, {},
     "--fix gradient_as_bucket_view: DDP of the job's torch does not take it"),
    ({"num_workers": -1}, {},
     "--fix num_workers=-1: must be a whole number of at least 0, got -1"),
    ({"batch_size": 2.5}, {},
     "--fix batch_size=2.5: must be a whole number of at least 1, got 2.5"),
    ({"bucket_cap_mb": "5"}, {},
     "--fix bucket_cap_mb=5: must be null or a number above 0, got '5'"),
    ({"broadcast_buffers": 1}, {},
     "--fix broadcast_buffers=1: must be true or false, got 1"),
    ({"static_graph": True}, {},
     "--fix static_graph=true: static_graph is unsafe and needs --allow-unsafe"),
    ({"NCCL_ALGO": True}, {},
     "--fix NCCL_ALGO=true: must be written as 1 or 0 (or in quotes), a variable has no true "
     "and false, got true"),
    ({"NCCL_ALGO": "Tree"}, {"NCCL_ALGO": "Ring"},
     "--fix NCCL_ALGO=Tree: the site (environment) has set it to Ring, which holds in every "
     "launch of a study; change it where it is set"),
    ({"NCCL_ALGO": None}, {"NCCL_ALGO": "Ring"},
     "--fix NCCL_ALGO=null: the site (environment) has set it to Ring, which holds in every "
     "launch of a study; change it where it is set"),
    ({"NCCL_NVLS_ENABLE": 2}, {"NCCL_NVLS_ENABLE": "0"},
     "--fix NCCL_NVLS_ENABLE=2: the site (environment) has set it to 0, and nothing may switch "
     "NVLink multicast on again"),
    ({"NCCL_NVLS_ENABLE": 2}, {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"},
     "--fix NCCL_NVLS_ENABLE=2: the site has switched NVLink multicast off"),
    ({"NCCL_ALGO": "ring,tree,nvls;allreduce:nvls"}, {"NCCL_NVLS_ENABLE": "0"},
     "--fix NCCL_ALGO=ring,tree,nvls;allreduce:nvls: the site has switched NVLink multicast off"),
    ({"NCCL_SOCKET_NTHREADS": 16, "NCCL_NSOCKS_PERTHREAD": 8}, {},
     "--fix: the baseline breaks a rule: NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD must not "
     "exceed 64, got NCCL_SOCKET_NTHREADS=16 NCCL_NSOCKS_PERTHREAD=8"),
    ({"NCCL_NSOCKS_PERTHREAD": 8}, {"NCCL_SOCKET_NTHREADS": "16"},
     "--fix: the baseline breaks a rule: NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD must not "
     "exceed 64, got NCCL_SOCKET_NTHREADS=16 NCCL_NSOCKS_PERTHREAD=8"),
    ({"num_workers": 0, "prefetch_factor": 4}, {},
     "--fix: the baseline breaks a rule: prefetch_factor needs num_workers to be on (not null, "
     "false or 0), got prefetch_factor=4 num_workers=0"),
]  # fmt: skip


@pytest.mark.parametrize(("fix", "set_by_site", "message"), REFUSED_FIXES)
def test_a_fixed_value_that_cannot_hold_is_the_users_mistake(
    fix: dict[str, Value], set_by_site: dict[str, str], message: str
) -> None:
    facts = replace(SOCKETS, ddp_arguments=DDP, site=site(**set_by_site))
    assert refused({"NCCL_ALGO": variable(None, "Ring")}, facts, fix=fix) == message


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_CHUNK_SIZE", 65536), ("NCCL_PROTO", "LL128"), ("NCCL_BUFFSIZE", "8M"),
     ("NCCL_ALGO", "Rnig"), ("NCCL_ALGO", "^Ring,Tree")],
)  # fmt: skip
def test_a_fixed_variable_is_checked_by_what_is_known_of_nccl(name: str, value: Value) -> None:
    message = refused({"NCCL_ALGO": variable(None, "Ring")}, fix={name: value})
    assert message.startswith(f"--fix {name}={value}: ")


def test_an_unsafe_value_can_be_fixed_on_request() -> None:
    space = {"NCCL_ALGO": variable(None, "Ring")}
    found = resolved(space, fix={"NCCL_PROTO": "LL128"}, allow_unsafe=True)
    assert found.fixed == {"NCCL_PROTO": "LL128"}
    ddp = replace(SOCKETS, ddp_arguments=DDP)
    assert resolved(space, ddp, fix={"static_graph": True}, allow_unsafe=True).fixed
    assert resolved(space, ddp, fix={"static_graph": False}).fixed


def test_fixing_what_the_site_has_set_to_the_same_value_is_fine() -> None:
    space = {"NCCL_MIN_CTAS": variable(None, 8)}
    found = resolved(
        space, replace(SOCKETS, site=site(NCCL_MIN_CTAS="8")), fix={"NCCL_MIN_CTAS": 8}
    )
    assert found.fixed == {"NCCL_MIN_CTAS": 8}
