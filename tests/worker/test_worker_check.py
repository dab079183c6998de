"""Known answers: exact in every type, different for every rank, and bits that tell."""

from __future__ import annotations

import pytest
import torch

from nccltune.worker import check
from nccltune.worker.check import _compare, _digest, _first_difference, pattern
from nccltune.worker.status import WrongResult

CPU = torch.device("cpu")
TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
SIZES = (1, 3, 1021, 20_015)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 64])
def test_sums_are_exact_in_every_order(world_size: int, dtype: torch.dtype) -> None:
    for size in SIZES:
        parts = [pattern(rank, size, world_size, dtype, CPU) for rank in range(world_size)]
        exact = torch.stack([part.to(torch.int64) for part in parts]).sum(0)
        upwards = torch.zeros(size, dtype=dtype)
        downwards = torch.zeros(size, dtype=dtype)
        for part in parts:
            upwards += part
        for part in reversed(parts):
            downwards += part
        while len(parts) > 1:  # as a tree adds
            pairs = zip(parts[::2], [*parts[1::2], None], strict=False)
            parts = [a if b is None else a + b for a, b in pairs]
        for total in (upwards, downwards, parts[0]):
            assert torch.equal(total.to(torch.int64), exact)


def test_the_values_by_hand() -> None:
    # fp32: modulus 8191. Position 97 of rank 1: 97 x 31 + 2 x (1 + 11) = 3031.
    found = pattern(1, 300, 2, torch.float32, CPU)
    assert [found[p].item() for p in (0, 1, 97)] == [22, 53, 3031]
    # bf16 on 8 ranks: modulus 32, so that 8 x 31 = 248 is below 256.
    found = pattern(0, 4, 8, torch.bfloat16, CPU)
    assert found.tolist() == [11, 10, 9, 8]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("world_size", [2, 4, 8, 16])
def test_every_rank_and_neighbouring_positions_differ(world_size: int, dtype: torch.dtype) -> None:
    parts = [pattern(rank, 1021, world_size, dtype, CPU) for rank in range(world_size)]
    for rank, part in enumerate(parts):
        assert part.dtype == dtype
        assert not torch.equal(part[1:], part[:-1])
        for other in parts[rank + 1 :]:
            assert not torch.equal(part, other)
            assert part[0] != other[0]  # even for a single element


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_data_in_another_place_is_seen(dtype: torch.dtype) -> None:
    # A chunk at a wrong offset, which would be a power of two or a multiple of a buffer.
    data = pattern(1, 300_000, 2, dtype, CPU)
    for offset in (1, 64, 512, 4096, 65_536, 131_072, 3 * 65_536):
        assert not torch.equal(data[offset:], data[:-offset])
        chunk = min(4096, 300_000 - offset)
        assert not torch.equal(data[offset : offset + chunk], data[:chunk])


def test_a_shorter_pattern_is_the_start_of_a_longer_one() -> None:
    long = pattern(3, 30_000, 8, torch.float16, CPU)
    for size in (1, 10_006, 10_007, 10_008, 20_014, 29_999):
        assert torch.equal(pattern(3, size, 8, torch.float16, CPU), long[:size])


def test_a_wrong_sum_is_told_with_place_and_values() -> None:
    right = torch.tensor([1.0, 2.0, 3.0, 4.0])
    _compare("all_reduce", right.clone(), right)
    wrong = right.clone()
    wrong[2] = 7.0
    with pytest.raises(WrongResult) as caught:
        _compare("all_reduce", wrong, right)
    assert str(caught.value) == ("all_reduce of 4 x float32 gave 7.0 at position 2, right is 3.0")
    wrong[2] = float("nan")
    with pytest.raises(WrongResult, match="gave nan at position 2"):
        _compare("broadcast", wrong, right)


def test_the_first_parameter_that_differs() -> None:
    assert _first_difference([[1, 2, 3], [1, 2, 3]]) is None
    assert _first_difference([[1, 2, 3], [1, 9, 3], [1, 2, 4]]) == (1, 1)
    assert _first_difference([[1, 7], [1, 8]]) == (1, 1)
    assert _first_difference([[1, 7], [1, 8], [1, 8]]) == (1, 0)
    assert _first_difference([[1, 2]]) is None
    assert _first_difference([[], []]) is None


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_digests_tell_bits(dtype: torch.dtype) -> None:
    data = torch.randn(1000, generator=torch.Generator().manual_seed(1)).to(dtype)
    digest = int(_digest(data))
    assert -(2**63) <= digest < 2**63
    assert _digest(data.clone()) == digest
    assert _digest(data.reshape(10, 100)) == digest
    assert _digest(data.reshape(100, 10).t().contiguous().t().reshape(-1)) == digest

    swapped = data.clone()
    swapped[[3, 4]] = swapped[[4, 3]]
    assert _digest(swapped) != digest
    assert _digest(data.flip(0)) != digest

    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    for bit in range(8 * dtype.itemsize):
        changed = data.clone()
        mask = 1 << bit if bit < 8 * dtype.itemsize - 1 else -(1 << bit)
        changed.view(integer)[500] ^= mask
        assert _digest(changed) != digest, bit


def test_digests_are_of_bits_not_of_values() -> None:
    assert _digest(torch.tensor([0.0])) != _digest(torch.tensor([-0.0]))
    nan = torch.tensor([float("nan"), 1.0])
    assert _digest(nan) == _digest(nan.clone())


def test_digests_of_other_shapes_and_layouts() -> None:
    weight = torch.randn(8, 3, 4, 4)
    last = weight.to(memory_format=torch.channels_last)
    assert _digest(weight) == _digest(last)
    assert _digest(torch.tensor(2.0)) == _digest(torch.tensor([2.0]))
    assert _digest(torch.empty(0)) == 0
    parameter = torch.nn.Parameter(weight.clone())
    assert _digest(parameter) == _digest(weight)


def test_digests_by_hand_and_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    integers = torch.tensor([5, 0, 7], dtype=torch.int32)
    assert _digest(integers) == 5 * 1 + 0 * 2 + 7 * 3
    data = torch.randn(1000, generator=torch.Generator().manual_seed(2))
    whole = _digest(data)
    monkeypatch.setattr(check, "_CHUNK", 7)
    assert _digest(data) == whole


def test_large_digests_wrap_around() -> None:
    huge = torch.full((5,), 2**62, dtype=torch.int64)
    total = 2**62 * (1 + 2 + 3 + 4 + 5)
    assert _digest(huge) == (total + 2**63) % 2**64 - 2**63
