"""What is kept of a study, line by line. Plain values, so that any tool can read the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Value = None | bool | int | float | str
Purpose = Literal["search", "noise", "confirm", "diagnose"]
State = Literal["complete", "pruned", "failed"]
Stage = Literal["search", "batch"]


@dataclass(frozen=True)
class Measurement:
    """One configuration measured in one worker group.

    `effective` is what the ranks were given (env, ddp, loader, batch_size), `result` the ranks' own
    record with every window, `nccl` what NCCL's log confirmed, `seconds` the time spent by phase.
    """

    id: str
    launch: int
    launcher: str
    purpose: Purpose
    trial: int | None
    stage: Stage
    origin: str
    configuration: Mapping[str, Value]
    effective: Mapping[str, Any]
    state: State
    value: float | None
    result: Mapping[str, Any] | None
    failure: Mapping[str, Any] | None
    nccl: Mapping[str, Any] | None
    utilization: tuple[float, ...]
    seconds: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        return cls(**{"launcher": "torchrun", **data, "utilization": tuple(data["utilization"])})


@dataclass(frozen=True)
class Trial:
    """One configuration proposed and what came of it. `value` is samples/s of all ranks; a pruned
    trial has one too (it was ended early as surely slower than the best). Trial 0 is the baseline.
    """

    number: int
    stage: Stage
    origin: str
    parameters: Mapping[str, Value]
    state: State
    value: float | None
    failure: str | None
    seconds: float
    measurements: tuple[str, ...] = field(default_factory=tuple)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trial:
        return cls(**{**data, "measurements": tuple(data["measurements"])})

    @classmethod
    def of(cls, measurement: Measurement) -> Trial:
        """The trial that a measurement of the search belongs to."""
        assert measurement.trial is not None
        kind = measurement.failure["kind"] if measurement.failure else None
        return cls(
            number=measurement.trial,
            stage=measurement.stage,
            origin=measurement.origin,
            parameters=measurement.configuration,
            state=measurement.state,
            value=measurement.value,
            failure=kind,
            seconds=round(sum(measurement.seconds.values()), 3),
            measurements=(measurement.id,),
        )


def best_of(trials: list[Trial], stage: Stage) -> Trial | None:
    """The fastest complete trial of a stage. The baseline belongs to the stage `search`."""
    complete = [t for t in trials if t.stage == stage and t.state == "complete"]
    return max(complete, key=lambda t: t.value or 0.0, default=None)
