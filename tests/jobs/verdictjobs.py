"""Jobs of known speed: their steps are sleeps, which other work on the machine hardly disturbs.

The sleeping model takes 12 ms a step, 6 ms more with GLOO_SLOW=1. A batch of two of the sleeping
data takes 24 ms where it is made: in the training process without loader workers, beside it with.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

STEP, SLOWER, SAMPLE, LAYER = 0.012, 0.006, 0.012, 0.01  # seconds
WIDTH = 180


class Sleeper(nn.Module):
    """One small layer, and a step that lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 10)
        self.seconds = STEP + (SLOWER if os.environ.get("GLOO_SLOW") == "1" else 0.0)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return self.layer(inputs)

    def make_batch(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(batch_size, 4), torch.randint(0, 10, (batch_size,))


class SlowData(Dataset[tuple[torch.Tensor, int]]):
    """Samples that take a known time each."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(SAMPLE)
        return torch.full((4,), float(index % 7)), index % 10


def sleeper() -> nn.Module:
    return Sleeper()


def slow_data() -> SlowData:
    return SlowData()


class Switched(Sleeper):
    """Twice as fast with GLOO_QUICK=1. On another machine, which GLOO_WORLD=2 stands for, slower
    with that and twice as fast with GLOO_OTHER=1.
    """

    def __init__(self) -> None:
        super().__init__()
        quick, other = (os.environ.get(n) == "1" for n in ("GLOO_QUICK", "GLOO_OTHER"))
        moved = os.environ.get("GLOO_WORLD") == "2"
        fast, slow = (other, quick) if moved else (quick, False)
        self.seconds = 2 * STEP * (0.5 if fast else 1.5 if slow else 1.0)


def switched() -> nn.Module:
    return Switched()


class _Lasting(torch.autograd.Function):
    """Passes what it gets, and takes its time in the backward pass."""

    @staticmethod
    def forward(context: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.view_as(inputs)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(LAYER)
        return gradient


class Layered(nn.Module):
    """Its backward pass takes 10 ms a layer, in which 130 KB of gradients come up: with a bucket
    for each layer they travel beside it, with one for all after it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = layer(_Lasting.apply(inputs))
        return inputs

    def make_batch(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(batch_size, WIDTH), torch.randint(0, WIDTH, (batch_size,))
