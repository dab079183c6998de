"""Optimizer steps of the script, by torch's hook for all optimizers, or told by the script."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from nccltune.worker import stepping
from nccltune.worker.attach.guarding import Guarded, unguarded
from nccltune.worker.attach.process import ours

OnStep = Callable[[int | None], None]
"""Called when a step that counts is done, with its samples where the script tells."""


@dataclass
class OptimizerUse:
    """Optimizers are numbered from 0, in the order in which they take their first steps.

    `counted` is the one whose steps count. A script that calls `nccltune.step` counts itself.
    """

    on_step: OnStep
    counted: int | None
    """None: every step of each of them."""
    steps: list[int] = field(default_factory=list)
    """Of each optimizer."""
    told: int = 0
    """Steps that the script told of."""
    _numbers: weakref.WeakKeyDictionary[Optimizer, int] = field(
        default_factory=weakref.WeakKeyDictionary
    )

    def stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not ours():
            return
        number = self._numbers.get(optimizer)
        if number is None:
            number = self._numbers[optimizer] = len(self.steps)
            self.steps.append(0)
        self.steps[number] += 1
        if self.counted in (None, number) and not self.told:
            self.on_step(None)

    def tell(self, samples: int | None) -> None:
        if ours():
            self.told += 1
            self.on_step(samples)

    def busiest(self) -> int:
        """The optimizer that has taken most steps."""
        return max(range(len(self.steps)), key=lambda n: self.steps[n], default=0)


def count_steps(on_step: OnStep, counted: int | None, guard: Guarded = unguarded) -> OptimizerUse:
    """`guard` makes what is called in the script's course of our functions. To be called once."""
    use = OptimizerUse(on_step, counted)
    stepped = guard(use.stepped)

    # Where a script compiles its optimizer's steps, dynamo would trace into what is called there,
    # and compile anew for each count. By this way dynamo is imported by the first step, as by torch
    # itself for every optimizer, and not before the script.
    @torch._disable_dynamo  # type: ignore[attr-defined]
    def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        stepped(optimizer, args, kwargs)

    register_optimizer_step_post_hook(after_step)
    stepping.listener = guard(use.tell)
    return use
