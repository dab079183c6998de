"""What NCCL's own log says of the winner: that it took the variables, and how it then ran the
job's gradients, beside the same of the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nccltune.errors import StudyError
from nccltune.launch.protocol import Progress
from nccltune.launch.stopping import StopFlag
from nccltune.nccl.proof import Trace
from nccltune.space import Value, key
from nccltune.study.budget import Budget, launch_seconds
from nccltune.study.effective import Effective
from nccltune.study.effects import traces_of
from nccltune.study.files_check import through_files
from nccltune.study.live_group import Subject
from nccltune.study.records import Measurement

if TYPE_CHECKING:
    from nccltune.study.measuring import Measurer


@dataclass(frozen=True)
class Ran:
    """How NCCL ran the all-reduce of one gradient bucket; `channels` None before NCCL 2.24."""

    bytes: int
    algorithm: str
    protocol: str
    channels: int | None

    def __str__(self) -> str:
        several = "" if self.channels == 1 else "s"
        on = "" if self.channels is None else f" on {self.channels} channel{several}"
        return f"{self.algorithm}/{self.protocol}{on}"


@dataclass(frozen=True)
class Proof:
    """`traces` are of the winner's variables; `ran` and `baseline` by size, largest first."""

    traces: tuple[Trace, ...]
    ran: tuple[Ran, ...]
    baseline: tuple[Ran, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "variables": {
                t.name: {"asked": t.asked, "taken": t.taken, "log": t.meaning} for t in self.traces
            },
            "all_reduce": [vars(ran) for ran in self.ran],
            "all_reduce_by_default": [vars(ran) for ran in self.baseline],
        }


def prove(
    measurer: Measurer,
    budget: Budget,
    stop: StopFlag,
    progress: Progress,
    configuration: Mapping[str, Value],
    trial: int,
) -> str | None:
    """Launch the baseline and the winner, the winner with its files, under NCCL's full log, where
    that was not done before and NCCL is used. Nothing is timed. A launch that fails is on record
    and proves nothing: the reason is returned. No other worker group may be alive.

    Raises: Interrupted.
    """
    store = measurer.store
    if measurer.task.workload.backend != "nccl":
        return None
    short = replace(measurer.settings, windows=1, max_warmup_seconds=1.0)
    logged = replace(measurer, settings=short, tuning_log=True, health=None, disturbed=[])
    try:
        for number, wanted in ((0, store.trials[0].parameters), (trial, configuration)):
            stop.check()
            known = _of(store.measurements, wanted)
            if known or not budget.fits_launch(launch_seconds(store.measurements)):
                continue
            subject = Subject(wanted, "search", "proof", number, purpose="proof", fresh=True)
            if number:
                subject = replace(subject, given=_files(measurer, wanted))
            measurement, failure = logged.measure(subject, progress)
            store.add_extra(measurement)
            if failure is not None:
                return f"{failure.message}; see {failure.log}"
        return None
    except StudyError as error:  # no more hosts, say: the verdict stands without it
        return str(error)
    finally:
        logged.close()


def proof_in(
    measurements: Sequence[Measurement],
    baseline: Mapping[str, Value],
    configuration: Mapping[str, Value],
) -> Proof | None:
    """The proof of a configuration from the records; None where it was not launched for that, or
    failed then.
    """
    winner, usual = _of(measurements, configuration), _of(measurements, baseline)
    if winner is None or winner.state == "failed":
        return None
    return Proof(traces_of(winner), _ran(winner), () if usual is None else _ran(usual))


def _of(
    measurements: Sequence[Measurement], configuration: Mapping[str, Value]
) -> Measurement | None:
    name = key(configuration)
    found = (m for m in measurements if m.purpose == "proof" and key(m.configuration) == name)
    return next(found, None)


def _files(measurer: Measurer, configuration: Mapping[str, Value]) -> Effective:
    """With the files, where a shell can source them."""
    given = measurer.effective(configuration)
    try:
        return through_files(given)
    except StudyError:
        return given


def _ran(measurement: Measurement) -> tuple[Ran, ...]:
    """The last choice for each size of a gradient bucket: DDP rebuilds its buckets after the first
    step.
    """
    if measurement.nccl is None or measurement.result is None:
        return ()
    chosen = {
        choice["bytes"]: Ran(
            choice["bytes"], choice["algorithm"], choice["protocol"], choice["channels"]
        )
        for choice in measurement.nccl.get("choices", ())
        if choice["function"] in ("AllReduce", "")
    }
    sizes = sorted(set(measurement.result["bucket_bytes"]), reverse=True)
    return tuple(chosen[size] for size in sizes if size in chosen)
