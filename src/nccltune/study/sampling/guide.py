"""Which configuration to try next, from what was measured: pure in its history and seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nccltune.space.scalars import is_number
from nccltune.study.records import AGAIN, Value
from nccltune.study.sampling.failing import TOLD, ChanceToRun
from nccltune.study.sampling.memory import Code, Memory, Observation
from nccltune.study.sampling.model import Codes, Floats, Levels, Posterior, Priors, fit
from nccltune.study.sampling.neighbours import climbed, doubles, singles

WALK = "walk"

_ALL = 1500  # configurations up to which all are looked at
_STARTS = 3
_REPEATS = 2  # so many configurations for each that is measured again, at least
_LIKELY = 10  # configurations that a draw looks at: what more trials would try
_DRAWS = 400
_ERF = np.vectorize(math.erf)
_CHANGES = 3  # changes of the best looked at, where there are too many for all


@dataclass(frozen=True)
class Knob:
    """A parameter to turn: its values, in order where they are numbers."""

    name: str
    values: tuple[Value, ...]
    default: Value
    costly: bool = False
    """Whether a change of it costs a launch."""
    gain: float | None = None
    """The most that it can win, as a ratio above 1, where a diagnosis says so."""

    def levels(self) -> Levels:
        numbers = sorted({v for v in self.values if is_number(v)})  # type: ignore[type-var]
        span = max(1, len(numbers) - 1)
        step = min(1.0, 6 / span)  # a long range has as many places as a short one
        places = tuple(numbers.index(v) * step if is_number(v) else None for v in self.values)
        return Levels(len(self.values), self.place(self.default), places)

    def place(self, value: Value) -> int:
        """Raises ValueError for a value that is none of these."""
        for i, own in enumerate(self.values):
            if equal(own, value):
                return i
        raise ValueError(f"{self.name}: {value!r} is none of {self.values}")


def equal(one: Value, other: Value) -> bool:
    """Equal as Optuna's values are: 1 is 1.0, but true is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


@dataclass(frozen=True)
class Proposal:
    """`why`: "default", "preset NAME", WALK or AGAIN."""

    code: Code
    why: str


@dataclass(frozen=True)
class Weights:
    """How a proposal is chosen. Worked out on the first 200 seeds of made-up landscapes and of a
    recorded one (benchmarks/quality); the comparison with others begins at another seed.
    """

    cost: float = 0.25
    """Power of the cost that a gain is divided by: 0 is gain a trial, 1 gain a second."""
    launch: float = 1.5
    """What a launch costs, in measurements."""
    effect: float = 0.08
    pair: float = 0.05
    other_pair: float = 0.04
    change: float = -0.01
    change_spread: float = 0.02
    launch_spread: float = 0.02
    spread: float = 0.015


class Guide:
    """Proposes from the knobs and a history. Nothing is kept but what saves computing."""

    def __init__(
        self,
        knobs: Sequence[Knob],
        presets: Mapping[str, Mapping[str, Value]] | None = None,
        together: Sequence[Collection[str]] = (),
        seed: int = 0,
        weights: Weights = Weights(),
    ) -> None:
        self.knobs = tuple(knobs)
        self._presets = {
            self.code(self._defaults() | dict(values)): f"preset {name}"
            for name, values in (presets or {}).items()
        }
        self._seed, self.weights = seed, weights
        names = [k.name for k in self.knobs]
        self._pairs = tuple(
            (i, j)
            for i, a in enumerate(names)
            for j, b in enumerate(names[i + 1 :], start=i + 1)
            if any(a in group and b in group for group in together)
        )
        self._costly = [i for i, k in enumerate(self.knobs) if k.costly]
        self._memory = Memory()
        self._now: _Now | None = None

    def _defaults(self) -> dict[str, Value]:
        return {k.name: k.default for k in self.knobs}

    def code(self, values: Mapping[str, Value]) -> Code:
        return tuple(k.place(values[k.name]) for k in self.knobs)

    def values(self, code: Code) -> dict[str, Value]:
        return {k.name: k.values[i] for k, i in zip(self.knobs, code, strict=True)}

    @cached_property
    def default(self) -> Code:
        return self.code(self._defaults())

    @cached_property
    def _sizes(self) -> NDArray[np.intp]:
        return np.array([len(k.values) for k in self.knobs])

    @cached_property
    def _grid(self) -> Codes | None:
        """All configurations where they are few."""
        if math.prod(len(k.values) for k in self.knobs) > _ALL:
            return None
        axes = np.meshgrid(*[np.arange(len(k.values)) for k in self.knobs], indexing="ij")
        return np.stack([a.ravel() for a in axes], axis=1)

    # What is known.

    def posterior(self, history: Sequence[Observation]) -> Posterior:
        return self._known(history).model

    def _known(self, history: Sequence[Observation]) -> _Now:
        """What is known now: worked out once for a history of one length."""
        if self._now is None or not self._now.is_of(history):
            memory = self._memory
            memory.catch_up(history)
            model = self._fit()
            measured = np.unique(model.codes, axis=0)
            mean = model.predict(measured)[0]
            order = np.argsort(-mean, kind="stable")
            runs = ChanceToRun([o.code for o in memory.good[-TOLD:]], memory.bad, self.default)
            self._now = _Now(
                history, len(history), model, measured[order], float(mean[order[0]]), runs
            )
        return self._now

    def _fit(self, *, loosely_from: Posterior | None = None) -> Posterior:
        good = self._memory.remembered(self.default)
        keys = [self._launch(o) for o in good]
        numbers = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        w = self.weights
        gains = [k.gain for k in self.knobs]
        priors = Priors(
            effects=tuple(
                w.effect if g is None else max(0.002, min(w.effect, math.log(g) / 2)) for g in gains
            ),
            pairs=self._pairs,
            pair_effect=w.pair,
            other_pairs=w.other_pair,
            change=w.change,
            change_spread=w.change_spread,
            launch=w.launch_spread,
            measurement=w.spread,
        )
        return fit(
            [k.levels() for k in self.knobs],
            np.array([o.code for o in good], dtype=np.intp),
            np.array([numbers[k] for k in keys]),
            np.array([o.value for o in good], dtype=float),
            priors,
            loosely_from=loosely_from,
        )

    def _launch(self, observation: Observation) -> Any:
        if observation.launch is not None:
            return observation.launch
        return tuple(observation.code[i] for i in self._costly)

    def answer(self, history: Sequence[Observation]) -> Code:
        """The measured configuration that is the fastest by all that is known."""
        return _code(self._known(history).measured[0])

    def chance(
        self,
        history: Sequence[Observation],
        threshold: float,
        feasible: Callable[[Code], bool] = lambda _code: True,
    ) -> float:
        """The probability that one of the likeliest configurations that were not measured is better
        than the best one measured by more than the share `threshold`: how often draws of the model
        have one.
        """
        now = self._known(history)
        done = self._memory.measured
        codes = self._candidates(now)
        left = np.array([c for c in map(_code, codes) if c not in done], dtype=np.intp)
        if not len(left):
            return 0.0
        model = self._fit(loosely_from=now.model)
        mean, spread = model.predict(left)
        best = now.measured[0]
        reach = float(model.predict(best[None, :])[0][0]) + math.log1p(threshold)
        order = left[np.argsort(-(mean - reach) / spread)]
        likely = list(islice((c for c in order if feasible(_code(c))), _LIKELY))
        if not likely:
            return 0.0
        asked = np.array([best, *likely])
        rng = np.random.default_rng((self._seed, len(history), 1))
        draws = rng.multivariate_normal(
            model.predict(asked)[0], model.covariance(asked), size=_DRAWS, method="eigh"
        )
        runs = rng.random((_DRAWS, len(likely))) < now.runs.of(asked[1:])
        over = runs & (draws[:, 1:] - draws[:, [0]] > math.log1p(threshold))
        return float(over.any(axis=1).mean())

    # What to try.

    def ranked(self, history: Sequence[Observation], live: Code | None) -> list[Proposal]:
        """What to try next, the best first. `live` is the configuration measured last: what needs
        no other launch than it is cheaper.
        """
        self._memory.catch_up(history)
        measured = self._memory.measured
        presets = [Proposal(c, why) for c, why in self._presets.items() if c not in measured]
        rng = np.random.default_rng((self._seed, len(history)))
        if not self._memory.good:
            first = [] if self.default in measured else [Proposal(self.default, "default")]
            others = rng.permutation(singles(np.array(self.default), self._sizes)[1:])
            near = [Proposal(_code(c), WALK) for c in others]
            return [*first, *presets, *(p for p in near if p.code not in measured)]
        now = self._known(history)
        codes = self._candidates(now)
        score = self._scores(now, codes, live)
        score += 1e-9 * score.max() * rng.random(len(codes))
        places = [_code(codes[i]) for i in np.argsort(-score) if score[i] > 0]
        walk = [Proposal(c, AGAIN if c in measured else WALK) for c in places]
        repeats = len(self._memory.good) - len(measured)
        if repeats >= max(2, len(measured) // _REPEATS):
            walk = [p for p in walk if p.why == WALK]
        return [*presets, *walk]

    def _scores(self, now: _Now, codes: Codes, live: Code | None) -> Floats:
        """Expected improvement over the best, over what it costs."""
        mean, spread = now.model.predict(codes)
        z = (mean - now.best) / spread
        gain = spread * (z * _below(z) + np.exp(-z * z / 2) / math.sqrt(2 * math.pi))
        gain *= now.runs.of(codes)
        each = list(map(_code, codes))
        gain[[code in self._memory.failed for code in each]] = 0.0
        cost = np.ones(len(codes))
        if self._costly and live is not None:
            known = np.array([code in self._memory.means for code in each])
            same = np.all(codes[:, self._costly] == np.array(live)[self._costly], axis=1)
            cost = np.where(same & ~known, 1.0, 1.0 + self.weights.launch)
        return np.asarray(gain / cost**self.weights.cost)

    def _candidates(self, now: _Now) -> Codes:
        """What is looked at: all, or what is near the best and what the model leads to."""
        if self._grid is not None:
            return self._grid
        if now.candidates is None:
            best, sizes = now.measured[0], self._sizes
            rng = np.random.default_rng((self._seed, now.count, 2))
            found = [now.measured[:10], doubles(best, sizes, rng)]
            found += [singles(start, sizes) for start in now.measured[:_STARTS]]
            found.append(climbed(best, sizes, lambda codes: now.model.predict(codes)[0]))
            promise = partial(self._scores, now, live=now.history[now.count - 1].code)
            found.append(climbed(best, sizes, promise, changes=_CHANGES))
            now.candidates = np.unique(np.concatenate(found), axis=0)
        return now.candidates


@dataclass
class _Now:
    """What is known after so many observations."""

    history: Sequence[Observation]
    count: int
    model: Posterior
    measured: Codes
    """Configurations with a value that the model knows, the fastest by it first."""
    best: float
    """The mean of that one."""
    runs: ChanceToRun
    candidates: Codes | None = None

    def is_of(self, history: Sequence[Observation]) -> bool:
        return self.history is history and self.count == len(history)


def _code(row: Codes) -> Code:
    return tuple(row.tolist())


def _below(z: Floats) -> Floats:
    """The standard normal distribution."""
    return np.asarray(0.5 * (1 + _ERF(z / math.sqrt(2))), dtype=float)
