"""What is left of a parameter's values on one machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from packaging.version import Version
from space_jobs import (
    NVLINK,
    SOCKETS,
    choices,
    notes,
    resolved,
    site,
    variable,
)

from nccltune.space.loading import load
from nccltune.space.model import Range


def test_refused_values_are_left_out_one_by_one() -> None:
    facts = replace(NVLINK, nccl=Version("2.18.3"), site=site(NCCL_NVLS_ENABLE="0"))
    found = resolved({"NCCL_ALGO": variable(None, "Ring", "Tree", "NVLS")}, facts)
    assert choices(found, "NCCL_ALGO") == (None, "Ring", "Tree")
    [(action, reason)] = notes(found, "NCCL_ALGO")
    assert action == "narrowed" and reason.startswith("NCCL_ALGO=NVLS: ")
    newer = replace(NVLINK, site=site(NCCL_NVLS_ENABLE="0"))
    found = resolved({"NCCL_ALGO": variable(None, "Ring", "Tree", "NVLS")}, newer)
    assert choices(found, "NCCL_ALGO") == (None, "Ring", "Tree")
    assert notes(found, "NCCL_ALGO") == [
        ("narrowed", "NCCL_ALGO=NVLS: the site has switched NVLink multicast off")
    ]
    assert "NVLS" in (choices(resolved({"NCCL_ALGO": variable(None, "NVLS")}), "NCCL_ALGO") or ())


def test_multicast_stays_off_whatever_the_list_looks_like() -> None:
    algorithms = (
        "ring,tree,NVLS;allreduce:nvls",
        "ring;allreduce:tree,NVLSTree",
        "^nvls",
    )
    facts = replace(NVLINK, site=site(TORCH_SYMM_MEM_DISABLE_MULTICAST="1"))
    found = resolved({"NCCL_ALGO": variable(None, *algorithms)}, facts)
    assert choices(found, "NCCL_ALGO") == (None, "^nvls")
    off = resolved({"NCCL_NVLS_ENABLE": variable(None, 0)}, facts)
    assert choices(off, "NCCL_NVLS_ENABLE") == (None, 0)


WORKERS = [
    # file, cores a rank, the user's own -> low, high, default
    ({"range": {"low": 0, "high": 32}}, 8, 4, (0, 8), 4),
    ({"range": {"low": 0, "high": 32}}, 8, 12, (0, 12), 12),
    ({"range": {"low": 0, "high": 4}}, 8, 2, (0, 4), 2),
    ({"range": {"low": 0, "high": 4}}, 8, 6, (0, 6), 6),
    ({"range": {"low": 2, "high": 32}}, 8, 0, (0, 8), 0),
    ({"range": {"low": 0, "high": 32, "step": 4}}, 10, 3, (0, 3, 4, 8), 3),
    ({"choices": [0, 2, 4, 8, 16]}, 8, 3, (0, 2, 3, 4, 8), 3),
    ({"choices": [None, 2, 4]}, 8, 2, (2, 4), 2),
    ({"choices": [4, 16]}, 2, 8, (4, 8), 8),
]


@pytest.mark.parametrize(("parameter", "cores", "own", "left", "default"), WORKERS)
def test_workers_are_cut_to_the_cores_and_include_the_users_own(
    parameter: dict[str, Any], cores: int, own: int, left: tuple[int, ...], default: int
) -> None:
    facts = replace(SOCKETS, cpus_per_rank=cores, num_workers=own)
    filled = {"target": "loader", "default": (parameter.get("choices") or [None])[0], **parameter}
    found = resolved({"num_workers": filled}, facts)
    (workers,) = found.parameters
    if workers.range is not None:
        assert workers.range == Range(low=left[0], high=left[1])
    else:
        assert workers.choices == left
    assert workers.default == found.baseline["num_workers"] == default
    assert workers.legal(own)


def test_a_logarithmic_range_of_workers_gives_way_to_zero() -> None:
    space = {"num_workers": {"target": "loader", "range": {"low": 1, "high": 32, "log": True}}}
    (none,) = resolved(space, replace(SOCKETS, num_workers=0)).parameters
    assert none.range == Range(low=0, high=8)
    (some,) = resolved(space, replace(SOCKETS, num_workers=2)).parameters
    assert some.range == Range(low=1, high=8, log=True)


def test_what_was_cut_and_added_is_noted() -> None:
    found = resolved(load("default"), replace(SOCKETS, batch_size=100, num_workers=40))
    assert notes(found, "num_workers") == [("added", "40, the user's own value")]
    assert notes(found, "batch_size") == [
        ("narrowed", "only batches above the user's 100 are tried"),
        ("added", "100, the user's own value"),
    ]
    found = resolved(load("default"), replace(SOCKETS, cpus_per_rank=4, num_workers=6))
    assert notes(found, "num_workers") == [
        ("narrowed", "at most 6, the user's own, above the 4 cores a rank")
    ]
    assert notes(resolved(load("default")), "num_workers") == [
        ("narrowed", "at most 8: a rank has 8 CPU cores")
    ]


@pytest.mark.parametrize(
    ("parameter", "own", "left"),
    [
        ({"choices": [16, 32, 64, 128, 256]}, 64, (64, 128, 256)),
        ({"choices": [16, 32, 64, 128, 256]}, 100, (100, 128, 256)),
        ({"choices": [16, 32, 64, 128, 256]}, 8, (8, 16, 32, 64, 128, 256)),
        ({"choices": [256, 128]}, 64, (64, 128, 256)),
        ({"range": {"low": 16, "high": 128, "step": 16}}, 90, (90, 96, 112, 128)),
    ],
)
def test_only_larger_batches_are_tried(
    parameter: dict[str, Any], own: int, left: tuple[int, ...]
) -> None:
    found = resolved({"batch_size": {"target": "batch", **parameter}},
                     replace(SOCKETS, batch_size=own))  # fmt: skip
    assert choices(found, "batch_size") == left
    assert found.baseline == {"batch_size": own}


def test_no_larger_batch_in_the_file_leaves_nothing_to_try() -> None:
    found = resolved({"batch_size": {"target": "batch", "choices": [16, 32]}})
    assert found.parameters == ()
    assert notes(found, "batch_size")[-1] == ("dropped", "only one value is left here (64)")
