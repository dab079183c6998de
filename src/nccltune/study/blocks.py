"""Launches of a confirmation: what is asked for, and their speeds as the records hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nccltune.space import Value, key
from nccltune.stats.verdict import FEWEST, Block
from nccltune.study.records import Measurement, Stage

DROP_BLOCKS = 3
"""After so many, settings that clearly carry nothing are dropped."""
DROPPING = "without "
"""How comparisons begin that say whether settings pay; their names follow."""

FILES = "files"
"""The comparison by plain torchrun commands, the candidate with best.env sourced and best.yaml
loaded.
"""


_AGAINST_BASELINE = ("winner", "reduced", "larger batch")


class CandidateFailed(Exception):
    """A launch of the candidate failed: it is no answer, however fast. `side` is "baseline" where
    it was the other side of a comparison, which is not the user's own configuration then.
    """

    def __init__(self, message: str, side: str = "candidate") -> None:
        super().__init__(message)
        self.side = side


@dataclass(frozen=True)
class Launch:
    """One fresh launch of a comparison."""

    comparison: str
    block: int
    side: str
    configuration: Mapping[str, Value]
    stage: Stage
    trial: int | None
    limit: int
    of: str
    """A digest of all that is compared."""


Speeds = Callable[[Sequence[Launch]], "list[float] | None"]
"""Samples/s of the launches of a block, in the order in which they are to be made; None when they
cannot be had (any more). Raises CandidateFailed.
"""


@dataclass
class DropTest:
    """The blocks of one dropping, without the settings and with them. It is over early where not
    even the best of the first blocks shows a gain that counts: a wrong guess costs a setting, not
    the result, since what stays is confirmed anew.
    """

    block: Callable[..., Block | None]
    threshold: float
    gains: list[float] = field(default_factory=list)
    over: bool = False

    def __call__(self, number: int) -> Block | None:
        self.over = number == DROP_BLOCKS and max(self.gains) < 1 + self.threshold
        found = None if self.over else self.block(FEWEST, number)
        if found is not None:
            self.gains.append(found[1] / found[0])
        return found


def recorded(measurements: Sequence[Measurement]) -> Speeds:
    """Launches from the records; None for those that are not there. In a block of two sides both
    have to be there, from one run of the tuner, or they would not be of the same time.
    """
    known: dict[tuple[str, str, int], dict[str, Measurement]] = {}
    for measurement in measurements:
        place = measurement.compared
        if place is None:
            continue
        sides = known.setdefault((place.comparison, place.of, place.block), {})
        runs = {m.compared.run for m in sides.values() if m.compared is not None}
        if place.comparison != "finalists" and runs - {place.run} and not _whole(sides):
            sides.clear()
        sides[place.side] = measurement

    def speeds(launches: Sequence[Launch]) -> list[float] | None:
        found = [speed(launch) for launch in launches]
        return None if None in found else [value for value in found if value is not None]

    def speed(launch: Launch) -> float | None:
        sides = known.get((launch.comparison, launch.of, launch.block), {})
        alone = launch.comparison == "finalists"
        told = [m for side, m in sides.items() if side == launch.side or not alone]
        failed = [m for m in told if m.state == "failed" and not _of_baseline(m)]
        if failed:
            raise CandidateFailed(launch.comparison, _side_of(failed))
        if launch.side not in sides or not (alone or _whole(sides)):
            return None
        return sides[launch.side].value

    return speeds


def against_baseline(
    measurements: Sequence[Measurement], configuration: Mapping[str, Value], count: int
) -> list[Block] | None:
    """The first `count` blocks of this configuration against the user's own, the newest such
    comparison; None where they are not all in the records.
    """
    name = key(configuration)
    places = [
        m.compared
        for m in measurements
        if m.compared is not None
        and m.compared.comparison in _AGAINST_BASELINE
        and m.compared.side == "candidate"
        and key(m.configuration) == name
    ]
    if not places:
        return None
    speeds, place = recorded(measurements), places[-1]
    blocks: list[Block] = []
    for number in range(count):
        launches = [
            Launch(place.comparison, number, side, {}, "search", None, place.limit, place.of)
            for side in ("baseline", "candidate")
        ]
        try:
            found = speeds(launches)
        except CandidateFailed:
            found = None
        if found is None:
            return None
        blocks.append((found[0], found[1]))
    return blocks


def _whole(sides: Mapping[str, Measurement]) -> bool:
    return len(sides) == 2 and all(m.state != "failed" for m in sides.values())


def _side_of(failed: Sequence[Measurement]) -> str:
    sides = {m.compared.side for m in failed if m.compared is not None}
    return "baseline" if sides == {"baseline"} else "candidate"


def _of_baseline(measurement: Measurement) -> bool:
    """Whether it is the user's own configuration: its failure is no candidate's."""
    place = measurement.compared
    return place is not None and place.side == "baseline" and measurement.trial == 0
