"""What a job's own DDP says of how it was made. No printing here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nccltune.output.findings import Finding


def unused_parameters_finding(ddp_logging: Mapping[str, Any]) -> Finding | None:
    """find_unused_parameters left on where no parameter was unused. `ddp_logging` is what DDP logs
    of itself on one rank (`_get_ddp_logging_data()` of the model), read after a step or more.

    DDP counts unused parameters in its first ten steps and in every hundredth from there on. None
    where it has not counted yet, and with static_graph, which finds them in the first step alone.
    """
    if not ddp_logging.get("find_unused_parameters") or ddp_logging.get("static_graph"):
        return None
    if ddp_logging.get("unused_parameter_size") != 0:
        return None
    step = ddp_logging.get("iteration")
    when = f"step {step}" if step else "the step that DDP logged last"
    return Finding(
        "warning",
        "DDP",
        f"find_unused_parameters is on, and in {when} every parameter was used: each step walks "
        "the graph once more and reduces a map of what was used, and buckets are never rebuilt in "
        "the order in which gradients come, so that less communication is hidden",
        "leave it out if no step skips a part of the model; DDP stops with an error if one does",
    )
