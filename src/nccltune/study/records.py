"""What is kept of a study, line by line. Plain values, so that any tool can read the files."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

Value = None | bool | int | float | str
Purpose = Literal["search", "noise", "confirm", "diagnose", "proof"]
State = Literal["complete", "pruned", "failed"]
Stage = Literal["search", "batch"]
STAGES: tuple[Stage, ...] = get_args(Stage)
AGAIN = "again"
"""Origin of a trial that measures a configuration once more, which luck may have made look good."""
_SIDES = ("baseline", "candidate")
_PURPOSES, _STATES = frozenset(get_args(Purpose)), frozenset(get_args(State))


@dataclass(frozen=True)
class Compared:
    """A measurement's place in a comparison: one block has one launch of each side."""

    comparison: str
    block: int
    side: str
    """"baseline" or "candidate"; among finalists the number of the trial."""
    limit: int
    """The most blocks that were allowed."""
    of: str
    """A digest of what is compared: launches of another pair do not count."""
    run: str
    """The run of the tuner: a block is whole when both sides were launched in one."""
    turns: bool = False
    """Whether both sides were alive at the same time and measured in turn."""


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
    compared: Compared | None = None
    taints: tuple[str, ...] = ()
    """What disturbed it: heat, other processes, errors of a GPU."""
    tuner: str | None = None
    """Who measured it, where it was another tuner on the same study."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def spent(self) -> float:
        """Wall seconds of its own: without those in which another group had its turn."""
        return sum(self.seconds.values()) - self.seconds.get("wait", 0.0)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        found = {"launcher": "torchrun", "compared": None, "taints": (), "tuner": None, **data}
        for name in ("utilization", "taints"):
            found[name] = tuple(_list(name, found[name]))
        _check(found)
        if found["compared"] is not None:
            found["compared"] = Compared(**found["compared"])
            _check_place(found["compared"])
        return cls(**found)


def _check(found: Mapping[str, Any]) -> None:
    """Raises TypeError, ValueError, KeyError for what a record of ours cannot hold."""
    if found["purpose"] not in _PURPOSES or found["state"] not in _STATES:
        raise ValueError(f"purpose {found['purpose']!r}, state {found['state']!r}")
    if not isinstance(found["id"], str) or not isinstance(found["configuration"], dict):
        raise TypeError("id or configuration")
    if not isinstance(found["tuner"], (str, type(None))):
        raise TypeError("tuner")
    if not all(isinstance(spent, (int, float)) for spent in dict(found["seconds"]).values()):
        raise TypeError("seconds")
    if found["purpose"] in ("noise", "confirm") and found["state"] == "complete":
        _check_speed(found["value"])
        for window in found["result"]["windows"]:
            if window["counts"]:
                _check_speed(max(window["rank_seconds"]))
                _check_speed(window["steps"])


def _check_place(place: Compared) -> None:
    texts = (place.comparison, place.side, place.of, place.run)
    counts = (place.block, place.limit)
    if not all(isinstance(text, str) for text in texts) or not isinstance(place.turns, bool):
        raise TypeError("compared")
    if not all(type(count) is int for count in counts):  # True is an int too
        raise TypeError("compared")
    if min(counts) < 0 or not (place.side in _SIDES or place.side.isdecimal()):
        raise ValueError("compared")


def _check_speed(value: Any) -> None:
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"value {value!r}")


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(name)
    return list(value)


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
            seconds=round(measurement.spent, 3),
            measurements=(measurement.id,),
        )


def noise_speeds(measurements: Iterable[Measurement]) -> list[float]:
    """Samples/s of the baseline's launches in the search: trial 0 and its repetitions. Those of
    another tuner, on other GPUs, say nothing of the noise here.
    """
    return [
        m.value
        for m in measurements
        if m.value is not None
        and m.state == "complete"
        and m.tuner is None
        and (m.purpose == "noise" or (m.purpose == "search" and m.trial == 0))
    ]


def larger_winner(trials: Sequence[Trial]) -> Trial | None:
    """The fastest with a larger batch, if it is faster than all at the user's own."""
    found, winner = best_of(list(trials), "batch"), best_of(list(trials), "search")
    if found is None or winner is None or (found.value or 0) <= (winner.value or 0):
        return None
    return found


def best_of(trials: list[Trial], stage: Stage) -> Trial | None:
    """The fastest complete trial of a stage. The baseline belongs to the stage `search`. Of trials
    that repeat a configuration the first stands for all, with the mean of their values.
    """
    complete = [t for t in trials if t.stage == stage and t.state == "complete"]
    if any(t.origin == AGAIN for t in complete):
        complete = merged(complete)
    return max(complete, key=lambda t: t.value or 0.0, default=None)


def merged(trials: Sequence[Trial]) -> list[Trial]:
    """One of each configuration, the first, with the mean of the values."""
    alike: dict[str, list[Trial]] = {}
    for trial in trials:
        alike.setdefault(json.dumps(trial.parameters, sort_keys=True), []).append(trial)
    return [
        replace(same[0], value=statistics.fmean(t.value or 0.0 for t in same))
        for same in alike.values()
    ]
