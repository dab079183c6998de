"""How many samples a batch has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from nccltune.worker.attach.samples import BatchSize, samples_in


@dataclass
class Batch:
    images: torch.Tensor
    labels: torch.Tensor


class Array:
    """As numpy's: a shape, and no tensor."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


def of(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def packed(*lengths: int) -> Any:
    return pack_sequence([of(n, 3) for n in lengths], enforce_sorted=False)


def boxes(count: int) -> Any:
    """As `collate_fn=lambda batch: tuple(zip(*batch))` gives: images, and a dictionary for each."""
    return tuple(of(3, 8 + n, 8) for n in range(count)), tuple(
        {"b": of(n + 1, 4)} for n in range(count)
    )


@pytest.mark.parametrize(
    ("wanted", "full", "short", "samples"),
    [
        (2, (of(2, 5), of(2)), (of(1, 5), of(1)), 1),
        (3, (of(3, 9), of(3, 9), of(3)), (of(2, 9), of(2, 9), of(2)), 2),
        (4, (of(4, 1), of(4), of(4), of(4)), (of(3, 1), of(3), of(3), of(3)), 3),
        (2, boxes(2), boxes(1), 1),
        (16, (of(100, 16, 3), of(16)), (of(100, 5, 3), of(5)), 5),
        (16, of(100, 16, 3), of(90, 7, 3), 7),
        (16, {"step": of(1), "x": of(16, 3)}, {"step": of(1), "x": of(9, 3)}, 9),
        (16, Batch(of(16, 3), of(16)), Batch(of(4, 3), of(4)), 4),
        (8, [Array(8, 3), Array(8)], [Array(5, 3), Array(5)], 5),
        (3, [of(5, 2), of(4, 2), of(3, 2)], [of(5, 2), of(3, 2)], 2),  # single samples
    ],
)  # fmt: skip
def test_a_short_batch_is_counted_as_the_first_full_one(
    wanted: int, full: Any, short: Any, samples: int
) -> None:
    size = BatchSize(wanted)
    assert [size.of(full), size.of(short), size.of(full)] == [wanted, samples, wanted]


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (of(4, 2), 4), ((of(4, 2), of(4)), 4), ({"a": 3, "b": [of(6)]}, 6), (packed(5, 4), 2),
        (Batch(of(7, 1), of(7)), 7), (torch.tensor(1.0), 0), ("text", 0), ([], 0), (None, 0),
        ([[[[[of(3)]]]]], 0),
    ],
)  # fmt: skip
def test_where_nothing_is_known_the_first_tensor_counts(batch: Any, samples: int) -> None:
    assert samples_in(batch) == samples


def test_what_is_no_full_batch_settles_nothing() -> None:
    size = BatchSize(8)
    assert [size.of(b) for b in (of(5, 2), of(8, 3), of(2, 8))] == [5, 8, 2]


def test_packed_sequences() -> None:
    size = BatchSize(4)
    assert [size.of(packed(*lengths)) for lengths in ((9, 7, 4, 3), (8, 2, 5))] == [4, 3]


def test_another_kind_of_batch_is_counted_all_the_same() -> None:
    size = BatchSize(4)
    assert [size.of(b) for b in ({"x": of(4, 2)}, (of(3, 2),))] == [4, 3]


def test_nested_tensors() -> None:
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([of(3, 2), of(5, 2)], layout=layout)
        assert samples_in((nested, of(2))) == 2 and BatchSize(2).of(nested) == 2
