"""Communication that computing does not hide, as DDP itself measures it.

DDP's reducer notes when a backward pass is through with computing and when its last bucket is
reduced and unpacked (torch/csrc/distributed/c10d/reducer.cpp, finalize_backward). Of the iterations
it samples, `_get_ddp_logging_data` gives

    backward_comm_time                     first bucket ready .. last bucket reduced
    backward_compute_comm_overlap_time     first bucket ready .. end of computing

in nanoseconds (logger.cpp, set_runtime_stats_and_log), so that their difference is the time in
which nothing else is done. Both are of the last iteration that was sampled, whose number is
`iteration`; averages over all samples stand beside them and are of no use here, since a change
late in a long job would not show in them.

* Sampled are the first 10 iterations and each one whose number is a multiple of the sampling rate,
  100 unless it is set (reducer.cpp, should_collect_runtime_stats). Iterations are counted where
  gradients are synchronised: a forward pass in no_sync is none.
* Figures are taken over when the next forward pass begins, so that a report sees the sample of the
  one before.
* With parameters on a GPU the times are of CUDA events on the stream that computes
  (reducer_cuda.cpp). The next forward pass waits for those of the iteration that was sampled,
  whether anybody asks for the figures or not: reading them costs nothing, a lower rate does. With
  parameters on the CPU they are of the host's clock.
* 0 means that a time was not had: in a module on several GPUs, or where gradients are reduced in
  another way (the reducer in Python, delay_all_reduce_named_params).
* Waiting for a slower rank is part of it, and so is copying out of the buckets.
"""

from __future__ import annotations

from typing import Any

from nccltune.worker.attach.ddp import DdpUse

USUAL_RATE = 100
"""Iterations from one sample of DDP's own to the next."""


class ExposedShare:
    """Of the one module in DDP that this process has."""

    def __init__(self, ddp: DdpUse, rate: int) -> None:
        """`rate`: iterations from one sample to the next; above 100 DDP's own stays."""
        self._ddp = ddp
        self._rate = rate
        self._rounds = 1
        self._seen = 0
        self.found = False
        """Whether there was a figure yet."""

    def settle(self, steps: int, batches_a_step: int) -> str | None:
        """After the first steps. Why nothing will be known, or None.

        A step of a script that accumulates gradients without no_sync has several backward passes
        that synchronise.
        """
        modules = self._ddp.modules()
        if len(modules) != 1:
            return _other_than_one(len(modules))
        try:
            if self._rate < USUAL_RATE:
                modules[0]._set_ddp_runtime_logging_sample_rate(self._rate)
            modules[0]._get_ddp_logging_data()
        except (AttributeError, AssertionError, RuntimeError) as error:
            return f"this torch does not tell it ({type(error).__name__})"
        if self._ddp.synchronised:
            forwards = round(self._ddp.forwards / max(1, steps))
            self._rounds = max(1, min(forwards, batches_a_step))
        return None

    def share(self, step_seconds: float) -> float | None:
        """Of a step that takes so long; None where nothing was sampled since it was last asked."""
        modules = self._ddp.modules()
        if len(modules) != 1:
            return None
        told = modules[0]._get_ddp_logging_data()
        iteration, seconds = int(told.get("iteration", 0)), exposed_seconds(told)
        if iteration == self._seen or seconds is None:
            return None
        self._seen, self.found = iteration, True
        return min(1.0, self._rounds * seconds / step_seconds)


def exposed_seconds(told: dict[str, Any]) -> float | None:
    """Of the last backward pass that was sampled, from DDP's own figures."""
    communication = int(told.get("backward_comm_time", 0))
    hidden = int(told.get("backward_compute_comm_overlap_time", 0))
    return (communication - hidden) / 1e9 if communication > 0 and hidden >= 0 else None


def _other_than_one(count: int) -> str:
    if count == 0:
        return "the script has no DistributedDataParallel, which measures it"
    return f"the script has {count} modules in DistributedDataParallel, whose shares do not add up"
