"""Whether what the ranks report can be a speed of the job as it was asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nccltune.launch.protocol import Failure, Outcome

_LOSS_TOLERANCE = 0.01
"""Of the loss after an optimizer step: another order of summation changes it by 1e-6 or so, in bf16
by 1e-3, and gradients that were not reduced, or reduced wrongly, by more.
"""
_REPEATED = 0.001  # of the loss, at most, between launches of the baseline


def usual_loss(results: Sequence[Mapping[str, Any]]) -> float | None:
    """The loss of the baseline's launches after their first steps. None where there are not two, or
    they differ: a job can draw numbers of its own, and then a loss says nothing.
    """
    losses = [result.get("first_loss") for result in results]
    known = [loss for loss in losses if loss is not None]
    if len(known) < 2 or len(known) < len(losses):
        return None
    alike = max(known) - min(known) <= _REPEATED * abs(known[0])
    return float(known[0]) if alike else None


def checked(outcome: Outcome, usual: float | None = None) -> Outcome:
    """The outcome, as a failure where what the ranks report is wrong. `usual` is the loss of the
    baseline after the first steps, where weights and data were the same.
    """
    if outcome.result is None:
        return outcome
    speed = outcome.result["samples_per_second"]
    if not (isinstance(speed, (int, float)) and math.isfinite(speed) and speed > 0):
        return _wrong(outcome, f"the ranks reported {speed} samples/s")
    if usual is None:
        return outcome
    loss = outcome.result.get("first_loss")
    if loss is None or abs(loss - usual) > _LOSS_TOLERANCE * max(abs(usual), _LOSS_TOLERANCE):
        told = "not finite" if loss is None else f"{loss:.6g}"
        return _wrong(
            outcome,
            f"the loss after the first steps is {told}, in the baseline it is {usual:.6g} with the "
            f"same weights and data (limit {100 * _LOSS_TOLERANCE:.0f}% apart)",
        )
    return outcome


def _wrong(outcome: Outcome, message: str) -> Outcome:
    return replace(outcome, result=None, failure=Failure("wrong_result", message))
