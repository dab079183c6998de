"""What is said of memory."""

from __future__ import annotations

import torch

from nccltune.worker.memory import forget_peak_memory, peak_memory


def test_the_peak_of_memory_is_that_since_it_was_forgotten() -> None:
    device = torch.device("cpu")
    size = 256 << 20
    slack = 64 << 20
    held = torch.ones(size, dtype=torch.uint8)
    del held
    high, same = peak_memory(device)
    assert high == same > size
    forget_peak_memory(device)
    low = peak_memory(device)[0]
    assert low < high - size + slack
    held = torch.ones(size // 2, dtype=torch.uint8)
    assert low + size // 2 - slack < peak_memory(device)[0] < high
    del held
    assert peak_memory(device)[0] > low + size // 2 - slack  # a peak, not what is held now
