"""Optimizer steps are counted by torch's own hook, in a process of its own since it stays."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNT = """
import inspect
import torch
from torch.optim import optimizer as hooks
from nccltune.worker.attach.guarding import Guard, unguarded
from nccltune.worker.attach.optimizers import count_steps

class Timer:
    steps = 0
    def on_step(self, samples):
        self.steps += 1

timer = Timer()
use = count_steps(timer.on_step, 0, GUARD)
print(all(map(inspect.isfunction, hooks._global_optimizer_post_hooks.values())))
weight = torch.ones(2, requires_grad=True)
first, second = torch.optim.SGD([weight], lr=0.1), torch.optim.Adam([weight], lr=0.1)
for _ in range(3):
    weight.sum().backward()
    first.step()
second.step()
print(timer.steps, use.steps, use.busiest())
"""


@pytest.mark.parametrize("guard", ["unguarded", "Guard(print)"])
def test_steps_are_seen_through_a_plain_function(guard: str) -> None:
    """torch marks what it shall not compile, and a bound method cannot be marked."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT.replace("GUARD", guard)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "True\n3 [3, 1] 0\n"), done.stderr
