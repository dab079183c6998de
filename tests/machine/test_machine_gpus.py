"""CUDA_VISIBLE_DEVICES, as CUDA reads it."""

from __future__ import annotations

import pytest

from nccltune.machine.gpus import Gpu, processes, select, used_memory, utilization, visible_gpus

GPUS = tuple(
    Gpu(index, f"GPU-{start}aaaa-bbbb", "NVIDIA H200", 141 << 30, 18)
    for index, start in enumerate(["1a2b", "1a3c", "ff00", "0123"])
)


@pytest.mark.parametrize(
    ("chosen", "indices"),
    [
        ("0,1,2,3", [0, 1, 2, 3]),
        ("2", [2]),
        ("3,0", [3, 0]),  # in that order
        (" 1 , 0 ", [1, 0]),
        ("GPU-ff00aaaa-bbbb", [2]),
        ("GPU-ff", [2]),  # a prefix will do
        ("GPU-0123,GPU-1a2b,1", [3, 0, 1]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,-1,1", [0]),  # up to the first that names no GPU
        ("0,4,1", [0]),
        ("9", []),
        ("0,,1", [0]),
        ("GPU-1a", []),  # two GPUs begin so
        ("GPU-1a2,GPU-1a", [0]),
        ("GPU-77", []),
        ("ff00", []),  # without the GPU- it is no UUID
        ("MIG-ff00aaaa-bbbb", []),
        ("0,0", []),  # named twice: CUDA sees no device at all
        ("0,1,GPU-1a2b", []),
        ("1.5", []),
        ("0x1", []),
        ("\u00b2", []),  # a digit for Unicode, not for CUDA
    ],
)
def test_forms(chosen: str, indices: list[int]) -> None:
    assert [gpu.index for gpu in select(GPUS, chosen)] == indices


def test_without_gpus_nothing_is_chosen() -> None:
    assert select((), "0") == ()


def test_an_empty_mask_leaves_none_on_any_machine() -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == ()
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == ()


def test_nothing_is_asked_of_no_gpu() -> None:
    assert (processes(()), used_memory(()), utilization(())) == ((), (), ())
