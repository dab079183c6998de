"""What a landscape is recorded of: configurations drawn at random, and which of them to repeat."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nccltune.space import Parameter, ResolvedSpace, Value, canonical, key, violation
from nccltune.space.configuration import scope
from nccltune.study.batch_sizes import stage_parameters

GROUP = 10  # measurements that the product takes from one worker group
FAST = 8  # of 14 repeated ones so many are the fastest
OF = 14
ATTEMPTS = 300  # draws in a row that are illegal or known: then nothing is left

Configuration = Mapping[str, Value]


@dataclass(frozen=True)
class Point:
    """One configuration measured in one launch. `place` is its process environment; `speed` in
    samples/s, None where it failed.
    """

    name: str
    place: str
    launch: int
    speed: float | None


@dataclass
class Costs:
    """Wall seconds of the measurements so far: of the first of each launch, and of the others."""

    firsts: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    @property
    def measurement(self) -> float:
        """The mean: slow configurations take longer, and some of them are repeated too."""
        return statistics.fmean(self.others or self.firsts or [0.0])

    @property
    def launch(self) -> float:
        """What a launch costs on top of its measurements."""
        first = statistics.median(self.firsts) if self.firsts else 0.0
        return max(0.0, first - self.measurement)

    def of_repeats(self, count: int, launches: int, places: int) -> float:
        """Of so many configurations that were measured in one launch and shall be in `launches`,
        spread over so many environments.
        """
        shares = [len(range(place, count, places)) for place in range(places)]
        return self.of([launches - 1] * share for share in shares)

    def of(self, lacking: Iterable[Collection[int]]) -> float:
        """Of all launches still lacking: for each environment those of each configuration."""
        return sum(
            launches_for(counts) * self.launch + sum(counts) * self.measurement
            for counts in lacking
        )


def launches_for(lacking: Collection[int]) -> int:
    """Launches of one environment that give each configuration the launches that it lacks."""
    return max(max(lacking, default=0), math.ceil(sum(lacking) / GROUP))


def drawn(parameter: Parameter, draw: random.Random) -> Value:
    """A legal value at random."""
    if parameter.choices is not None:
        return draw.choice(parameter.choices)
    span = parameter.range
    assert span is not None  # choices of the machine's interfaces are settled by now
    if span.log:
        value = math.exp(draw.uniform(math.log(span.low), math.log(span.high)))
        value = min(span.high, max(span.low, value))
        return round(value) if span.type == "int" else value
    if span.step is None and span.type == "float":
        return draw.uniform(span.low, span.high)
    step = span.step or 1
    value = span.low + step * draw.randint(0, round((span.high - span.low) / step))
    return int(value) if span.type == "int" else value


class Source:
    """Draws configurations that are legal here, in canonical form."""

    def __init__(
        self,
        space: ResolvedSpace,
        process_env: Callable[[Configuration], Mapping[str, str]],
        seed: int,
    ) -> None:
        """`process_env`: the variables that a configuration needs a new worker group for."""
        self._space, self._process_env = space, process_env
        self._searched = stage_parameters(space)["search"]
        self._draw = random.Random(seed)
        self.default = canonical({}, space)
        self.names = [parameter.name for parameter in self._searched]

    def place(self, configuration: Configuration) -> str:
        """Its process environment as text: what has the same can be measured in one launch."""
        return key(self._process_env(configuration))

    def environment(self, known: Collection[str]) -> dict[str, Value] | None:
        """A process environment at a place that is not known, as the configuration that changes
        nothing else where there is one. None when none is found.
        """
        for _ in range(ATTEMPTS):
            configuration = self._drawn({})
            base, place = (
                canonical(self._held(configuration), self._space),
                self.place(configuration),
            )
            if self.place(base) != place:  # a variable acts only beside a setting of another scope
                base = configuration
            if place not in known and self._legal(base):
                return base
        return None

    def beside(
        self, base: Configuration, known: Collection[str], count: int
    ) -> list[dict[str, Value]]:
        """At most `count` configurations of the same process environment that are not known."""
        held, place = self._held(base), self.place(base)
        found: dict[str, dict[str, Value]] = {}
        fruitless = 0
        while len(found) < count and fruitless < ATTEMPTS:
            configuration = self._drawn(held)
            name, fruitless = key(configuration), fruitless + 1
            new = name not in known and name not in found and name != key(base)
            if new and self.place(configuration) == place and self._legal(configuration):
                found[name], fruitless = configuration, 0
        return list(found.values())

    def _drawn(self, held: Configuration) -> dict[str, Value]:
        values = {p.name: drawn(p, self._draw) for p in self._searched}
        return canonical({**values, **held}, self._space)

    def _legal(self, configuration: Configuration) -> bool:
        return violation(configuration, self._space) is None

    def _held(self, configuration: Configuration) -> dict[str, Value]:
        """What of it makes its process environment, unset variables too."""
        given = self._process_env(configuration)
        return {
            p.name: configuration[p.name]
            for p in self._searched
            if p.name in given or scope(p.name, p.target) == "process"
        }


def speeds(points: Iterable[Point]) -> dict[str, float]:
    """Median samples/s of each configuration that has not failed every time."""
    found: dict[str, list[float]] = {}
    for point in points:
        if point.speed is not None:
            found.setdefault(point.name, []).append(point.speed)
    return {name: statistics.median(several) for name, several in found.items()}


def choose(points: Sequence[Point], default: str, count: int, places: int) -> list[str]:
    """The configurations to repeat: the default, the fastest, and others spread evenly over fast
    and slow ones, all at `places` places: the default's, and those with most of the fastest.
    """
    place = {point.name: point.place for point in points}
    found, own = speeds(points), place.get(default)
    order = sorted((n for n in found if n != default), key=lambda n: -found[n])
    top = [place[name] for name in order[:FAST]]
    wins = {p: top.count(p) for p in dict.fromkeys(place[name] for name in order)}
    rest = sorted((p for p in wins if p != own), key=lambda p: -wins[p])
    within = {own, *rest[: max(0, places - 1)]}
    order = [name for name in order if place[name] in within]
    fast = min(len(order), max(1, round((count - 1) * FAST / (OF - 1)))) if count > 1 else 0
    others = order[fast:]
    several = max(0, min(len(others), count - 1 - fast))
    spread = [others[(2 * n + 1) * len(others) // (2 * several)] for n in range(several)]
    return [default, *order[:fast], *spread]
