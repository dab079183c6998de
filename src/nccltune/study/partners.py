"""What a search asks of the tuners beside it, and the answers where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from nccltune.space import Value
from nccltune.study.records import Measurement, Stage, Trial
from nccltune.study.store import Store


@dataclass(frozen=True)
class Elsewhere:
    """What another tuner measures now."""

    number: int
    tuner: str
    stage: Stage
    configuration: Mapping[str, Value]


@dataclass(frozen=True)
class Wanted:
    """What a tuner would measure next. Configurations of the same `effect` are one."""

    configuration: Mapping[str, Value]
    effect: str
    stage: Stage
    origin: str


@dataclass(frozen=True)
class Confirmer:
    """The tuner that confirms the result, and the name of its study folder."""

    tuner: str
    folder: str


class Partners(Protocol):
    """The other tuners on a study."""

    def news(self) -> Sequence[str]:
        """What the user should know of them since the last call, a line each."""

    def catch_up(self) -> Sequence[Trial]:
        """Records what others have finished since; returns their trials."""

    def taken(self) -> int:
        """Trials that are finished or under way, of all tuners."""

    def elsewhere(self) -> Sequence[Elsewhere]:
        """What other tuners measure now."""

    def at_work(self, searching: bool) -> None:
        """Say whether this tuner still finds something to try."""

    def others_at_work(self) -> bool:
        """Whether another tuner does."""

    def claim(self, wanted: Wanted, limit: int) -> int | None:
        """The number of a trial that is ours to measure; None where another tuner was first."""

    def publish(self, measurement: Measurement) -> bool:
        """Tell of a trial of ours. False: it was given up meanwhile, and does not count."""


class Alone:
    """No other tuner."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def news(self) -> Sequence[str]:
        return ()

    def catch_up(self) -> Sequence[Trial]:
        return ()

    def taken(self) -> int:
        return len(self._store.trials)

    def elsewhere(self) -> Sequence[Elsewhere]:
        return ()

    def at_work(self, searching: bool) -> None:
        return

    def others_at_work(self) -> bool:
        return False

    def claim(self, wanted: Wanted, limit: int) -> int | None:
        return max((trial.number for trial in self._store.trials), default=-1) + 1

    def publish(self, measurement: Measurement) -> bool:
        return True
