"""From a configuration to what ranks are given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from packaging.version import Version
from study_jobs import DDP, ENV, NCCL, TASK, space_of

from nccltune.space import canonical
from nccltune.study.effective import Effective, effective, loader_arguments

SPACE = space_of(
    {
        "NCCL_ALGO": {**ENV, "choices": [None, "Ring", "Tree"]},
        "NCCL_PROTO": {**ENV, "choices": [None, "Simple"]},
        "NCCL_BUFFSIZE": {**ENV, "choices": [None, 8388608]},
        "NCCL_MIN_CTAS": {**ENV, "choices": [None, 4, 16]},
        "NCCL_MAX_CTAS": {**ENV, "choices": [None, 4, 16]},
        "OMP_NUM_THREADS": {**ENV, "choices": [None, 4]},
        "bucket_cap_mb": {**DDP, "choices": [None, 50]},
        "gradient_as_bucket_view": {"target": "ddp", "choices": [False, True], "default": False},
        "batch_size": {"target": "batch", "choices": [64, 128], "default": None},
        "num_workers": {"target": "loader", "range": {"low": 0, "high": 8}, "default": None},
        "prefetch_factor": {"target": "loader", "choices": [None, 4], "default": None},
    }
)
ALL_FIELDS = frozenset({"min_ctas", "max_ctas", "blocking"})


def given(
    configuration: dict[str, Any],
    fields: frozenset[str] = ALL_FIELDS,
    nccl: Version | None = NCCL,
) -> Effective:
    whole = canonical(configuration, SPACE)
    return effective(whole, SPACE, nccl=nccl, config_fields=fields, task=TASK)


def test_the_baseline_sets_no_variable_and_no_ddp_argument_of_ours() -> None:
    found = given({})
    assert (found.process_env, found.communicator_env, found.communicator_config) == ({}, {}, {})
    # False is DDP's own default and a choice of this space.
    assert found.ddp == {"gradient_as_bucket_view": False}
    assert found.batch_size == 64
    assert found.to_dict() == {
        "env": {},
        "ddp": {"gradient_as_bucket_view": False},
        "loader": {"num_workers": 2, "pin_memory": True, "persistent_workers": True},
        "batch_size": 64,
    }


def test_limits_on_ctas_go_to_the_communicator_where_torch_knows_the_field() -> None:
    found = given({"NCCL_MIN_CTAS": 4, "NCCL_MAX_CTAS": 16})
    assert found.communicator_config == {"min_ctas": 4, "max_ctas": 16}
    assert (found.process_env, found.communicator_env) == ({}, {})
    # A job that sources the result sets the variables all the same.
    assert found.env == {"NCCL_MIN_CTAS": "4", "NCCL_MAX_CTAS": "16"}


def test_a_maximum_alone_goes_to_the_communicator_and_a_minimum_alone_cannot() -> None:
    # NCCL refuses a minimum without a maximum as a field, though not as a variable.
    found = given({"NCCL_MAX_CTAS": 16})
    assert (found.communicator_config, found.process_env) == ({"max_ctas": 16}, {})
    found = given({"NCCL_MIN_CTAS": 4})
    assert (found.communicator_config, found.process_env) == ({}, {"NCCL_MIN_CTAS": "4"})
    assert found.env == {"NCCL_MIN_CTAS": "4"}


def test_both_go_the_same_way_where_torch_lacks_the_maximum() -> None:
    found = given({"NCCL_MIN_CTAS": 4, "NCCL_MAX_CTAS": 16}, frozenset({"min_ctas"}))
    assert found.communicator_config == {}
    assert found.process_env == {"NCCL_MIN_CTAS": "4", "NCCL_MAX_CTAS": "16"}


@pytest.mark.parametrize(
    ("other", "field"),
    [("NCCL_CGA_CLUSTER_SIZE", "cga_cluster_size"), ("NCCL_NVLS_NCHANNELS", "nvls_ctas")],
)
def test_a_minimum_is_alone_beside_another_field_too(other: str, field: str) -> None:
    space = space_of({"NCCL_MIN_CTAS": {**ENV, "choices": [None, 4]}}, fix={other: 2})
    found = effective(
        canonical({"NCCL_MIN_CTAS": 4}, space),
        space,
        nccl=NCCL,
        config_fields=frozenset({"min_ctas", "max_ctas", field}),
        task=TASK,
    )
    assert found.communicator_config == {field: 2}
    assert found.process_env == {"NCCL_MIN_CTAS": "4"}
    assert found.env == {"NCCL_MIN_CTAS": "4", other: "2"}


def test_a_field_that_torch_lacks_needs_new_processes() -> None:
    found = given({"NCCL_MIN_CTAS": 4, "NCCL_MAX_CTAS": 16}, frozenset({"max_ctas"}))
    assert found.communicator_config == {"max_ctas": 16}
    assert found.process_env == {"NCCL_MIN_CTAS": "4"}
    assert given({"NCCL_MIN_CTAS": 4}, frozenset()).process_env == {"NCCL_MIN_CTAS": "4"}


def test_variables_go_where_they_take_effect() -> None:
    found = given(
        {"NCCL_ALGO": "Tree", "NCCL_PROTO": "Simple", "NCCL_BUFFSIZE": 8388608,
         "OMP_NUM_THREADS": 4, "bucket_cap_mb": 50}
    )  # fmt: skip
    tree = "ring,tree;allreduce:tree"
    assert found.communicator_env == {"NCCL_ALGO": tree, "NCCL_PROTO": "Simple"}
    assert found.process_env == {"NCCL_BUFFSIZE": "8388608", "OMP_NUM_THREADS": "4"}
    assert found.env == {**found.communicator_env, **found.process_env}
    assert found.ddp == {"bucket_cap_mb": 50, "gradient_as_bucket_view": False}


def test_an_algorithm_is_spelled_for_the_release_that_reads_it() -> None:
    found = given({"NCCL_ALGO": "Ring"}, nccl=Version("2.21.5"))
    assert found.env == {"NCCL_ALGO": "Ring"}
    assert given({"NCCL_ALGO": "Ring"}, nccl=None).env == {"NCCL_ALGO": "ring,tree;allreduce:ring"}


def test_a_larger_batch_and_loader_settings() -> None:
    found = given({"batch_size": 128, "num_workers": 6, "prefetch_factor": 4})
    assert found.batch_size == 128
    assert found.loader == {
        "num_workers": 6, "pin_memory": True, "persistent_workers": True, "prefetch_factor": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("searched", "expected"),
    [
        ({}, {"num_workers": 2, "pin_memory": True, "persistent_workers": True}),
        (
            {"num_workers": 0, "prefetch_factor": None},
            {"num_workers": 0, "pin_memory": True, "persistent_workers": False},
        ),
        # DataLoader raises for a prefetch_factor without workers.
        (
            {"num_workers": 0, "prefetch_factor": 4},
            {"num_workers": 0, "pin_memory": True, "persistent_workers": False},
        ),
        (
            {"prefetch_factor": 4},
            {
                "num_workers": 2,
                "pin_memory": True,
                "persistent_workers": True,
                "prefetch_factor": 4,
            },
        ),
    ],
)
def test_loader_arguments(searched: dict[str, Any], expected: dict[str, Any]) -> None:
    assert loader_arguments(searched, TASK) == expected


def test_loader_arguments_of_other_jobs() -> None:
    on_cpu = replace(TASK, workload=replace(TASK.workload, device="cpu", backend="gloo"))
    assert loader_arguments({}, on_cpu)["pin_memory"] is False
    synthetic = replace(TASK, workload=replace(TASK.workload, data="synthetic"))
    assert loader_arguments({"num_workers": 4}, synthetic) == {}


def test_fixed_variables_are_given_like_searched_ones() -> None:
    space = space_of(
        {"bucket_cap_mb": {**DDP, "choices": [None, 50]}},
        fix={"NCCL_BUFFSIZE": 8388608, "num_workers": 4, "NCCL_PROTO": None},
    )
    found = effective(canonical({}, space), space, nccl=NCCL, config_fields=ALL_FIELDS, task=TASK)
    assert found.env == found.process_env == {"NCCL_BUFFSIZE": "8388608"}
    assert found.loader["num_workers"] == 4


def test_what_the_site_holds_is_left_to_it() -> None:
    space = space_of(fix={"NCCL_PROTO": "Simple"})
    whole = canonical({"NCCL_ALGO": "Ring", "NCCL_BUFFSIZE": 8388608, "NCCL_MIN_CTAS": 4}, space)
    site = {"NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_MIN_CTAS", "NCCL_SOCKET_IFNAME"}
    found = effective(whole, space, nccl=NCCL, config_fields=ALL_FIELDS, task=TASK, site=site)
    assert found.env == {"NCCL_ALGO": "ring,tree;allreduce:ring"}
    assert found.communicator_env == found.env
    assert (found.process_env, found.communicator_config) == ({}, {})
