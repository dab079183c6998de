"""A machine held against the one that a result was measured on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nccltune.machine.differences import machine_differences
from nccltune.machine.facts import Machine

HERE = Machine(
    cpu="Xeon", cores=32, memory_bytes=10**12, gpus=("H200",) * 8, gpu_memory_bytes=(10**11,) * 8,
    nvlinks=(18,) * 8, driver="580.1", torch="2.11.0", cuda=None, nccl="2.28.9",
)  # fmt: skip


def told(here: Machine, ranks: int | None = None, **measured: Any) -> list[str]:
    return list(machine_differences({**HERE.to_dict(), **measured}, here, ranks))


def test_the_same_machine() -> None:
    assert told(HERE) == []
    assert told(replace(HERE, memory_bytes=1, gpu_memory_bytes=(1,))) == []


def test_as_many_gpus_as_the_job_takes() -> None:
    two = {"gpus": ["H200"] * 2, "nvlinks": [18, 18]}
    assert told(HERE, 2, **two) == []
    assert told(HERE, None, **two) == ["gpus: 2x H200 where it was measured, 8x H200 here"]
    assert told(HERE, 4, **two) == ["gpus: 2x H200 where it was measured, 4x H200 here"]


@pytest.mark.parametrize(
    ("measured", "line"),
    [
        ({"gpus": ["A100"] * 8}, "gpus: 8x A100 where it was measured, 8x H200 here"),
        (
            {"nvlinks": [18] * 7 + [0]},
            "nvlinks: 18 and 0 a GPU where it was measured, 18 a GPU here",
        ),
        ({"driver": "570.1"}, "driver: 570.1 where it was measured, 580.1 here"),
        ({"torch": "2.9.0"}, "torch: 2.9.0 where it was measured, 2.11.0 here"),
        ({"nccl": "2.27.3"}, "nccl: 2.27.3 where it was measured, 2.28.9 here"),
        ({"cores": 16}, "cores: 16 where it was measured, 32 here"),
        ({"cpu": "EPYC"}, "cpu: EPYC where it was measured, Xeon here"),
    ],
)
def test_each_difference_is_a_line(measured: dict[str, Any], line: str) -> None:
    assert told(HERE, **measured) == [line]


@pytest.mark.parametrize(
    ("measured", "here", "differ"),
    [
        ("2.11.0+cu130", "2.11.0", False),
        ("2.11.0", "2.11.0+cu130", False),
        ("2.11.0+cu130", "2.11.0+cu130", False),
        ("2.11.0+cu130", "2.11.0+cu126", True),
        ("2.11.0+cu130", "2.11.1", True),
    ],
)
def test_a_package_may_leave_out_what_torch_adds(measured: str, here: str, differ: bool) -> None:
    assert bool(told(replace(HERE, torch=here), torch=measured)) is differ


def test_what_is_not_known_does_not_differ() -> None:
    assert told(replace(HERE, torch=None, nccl=None)) == []
    assert list(machine_differences({}, HERE, None)) == []


def test_a_machine_without_gpus() -> None:
    bare = replace(HERE, gpus=(), nvlinks=(), driver=None)
    assert told(bare, 2) == ["gpus: 8x H200 where it was measured, none here"]
    assert list(machine_differences(bare.to_dict(), bare, 2)) == []
