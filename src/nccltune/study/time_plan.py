"""What a confirmation costs, and how much time each part of it leaves to what comes after it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from nccltune.stats.verdict import FEWEST
from nccltune.study.blocks import DROP_BLOCKS, DROPPING, FILES, Launch
from nccltune.study.budget import Budget, own_seconds
from nccltune.study.confirm import FINALISTS, ROUNDS
from nccltune.study.records import Measurement

PLAIN_MORE = 20.0
"""Seconds that a plain torchrun launch takes beyond one from a warm host: Python and torch anew."""
_DIAGNOSIS = 2.0  # so many launches


@dataclass(frozen=True)
class Costs:
    """Seconds of one launch: `launch` of the confirmation, `plain` by a torchrun command."""

    launch: float
    plain: float

    @property
    def files(self) -> float:
        """The block that tries the files."""
        return 2 * self.plain

    @property
    def verdict(self) -> float:
        """The shortest comparison, and the files."""
        return 2 * FEWEST * self.launch + self.files

    @property
    def usual(self) -> float:
        """With several finalists too."""
        return FINALISTS * ROUNDS * self.launch + self.verdict

    def begun_with(self, noise: int, trials: int, *, diagnosis: bool) -> float:
        """All that has to fit for a confirmation: the noise (so many launches of the baseline are
        to be made), the diagnosis, so many trials, and the verdict.
        """
        before = noise + (_DIAGNOSIS if diagnosis else 0) + trials
        return before * self.launch + self.verdict

    def of(self, launches: Sequence[Launch]) -> float:
        """What these cost together."""
        plain = launches[0].comparison == FILES
        return len(launches) * (self.plain if plain else self.launch)

    def kept(self, launch: Launch) -> float:
        """What is left to others when this one is made: no test of which settings pay takes the
        time of the files, nor is one begun that could not be ended.
        """
        name, block = launch.comparison, launch.block
        if name == "finalists":
            return FINALISTS * max(0, ROUNDS - 1 - block) * self.launch + self.verdict
        if name.startswith(DROPPING):
            until = DROP_BLOCKS if block < DROP_BLOCKS else FEWEST
            return 2 * (until - 1 - block) * self.launch + self.verdict
        if name == "reduced" or (name == "winner" and block >= FEWEST):
            return self.files
        return 0.0


def costs(measurements: Sequence[Measurement], windows: float, plain_more: float) -> Costs | None:
    """From what launches took so far; None before the first. `windows`: how many times the windows
    of the search a launch of the confirmation has, `plain_more`: the seconds that a plain launch
    takes longer. Those of the confirmation itself are believed rather than both.
    """
    known = [m for m in measurements if m.value is not None]
    first = [m for m in known if m.purpose == "noise" or (m.purpose == "search" and m.trial == 0)]
    if not first:
        return None
    launch = statistics.median(map(own_seconds, first))
    launch += (windows - 1) * statistics.median(m.seconds.get("measure", 0.0) for m in first)
    compared = [(m.compared.comparison == FILES, own_seconds(m)) for m in known if m.compared]
    launch = _median([spent for plain, spent in compared if not plain], launch)
    return Costs(launch, _median([s for plain, s in compared if plain], launch + plain_more))


def _median(found: Sequence[float], otherwise: float) -> float:
    return statistics.median(found) if found else otherwise


def reserve(budget: Budget, shortest: Costs, usual: Costs) -> float:
    """Seconds that the search leaves to the confirmation, whose launches cost `shortest` if need
    be: half of the budget at most, unless not even one verdict could be had then.
    """
    if budget.seconds is None:
        return usual.usual
    return min(usual.usual, max(shortest.verdict, budget.seconds / 2))
