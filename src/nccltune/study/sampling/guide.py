"""Which configuration to try next, from what was measured: pure in its history and seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nccltune.space.scalars import is_number
from nccltune.study.records import AGAIN, Value
from nccltune.study.sampling.model import Codes, Floats, Levels, Posterior, Priors, fit
from nccltune.study.sampling.neighbours import doubles, singles

Code = tuple[int, ...]

WALK = "walk"

_ALL = 1500  # configurations up to which all are looked at
_STARTS = 3
_REPEATS = 2  # so many configurations for each that is measured again, at least
_LIKELY = 10  # configurations that a draw looks at: what more trials would try
_DRAWS = 400
_ERF = np.vectorize(math.erf)
_REMEMBERED = 160  # observations that the model is fitted to


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
class Observation:
    """A configuration measured: log speed, or None where it failed."""

    code: Code
    value: float | None
    launch: Any = None
    """Equal for measurements of one launch; None: one with the costly values of it."""


@dataclass(frozen=True)
class Proposal:
    """`why`: "default", "preset NAME", WALK or AGAIN."""

    code: Code
    why: str


@dataclass(frozen=True)
class Weights:
    """How a proposal is chosen. Worked out on the first 100 seeds of made-up landscapes and of a
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
        self._fitted: tuple[int, Posterior] | None = None

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
    def _grid(self) -> Codes | None:
        """All configurations where they are few."""
        if math.prod(len(k.values) for k in self.knobs) > _ALL:
            return None
        axes = np.meshgrid(*[np.arange(len(k.values)) for k in self.knobs], indexing="ij")
        return np.stack([a.ravel() for a in axes], axis=1)

    # What is known.

    def posterior(self, history: Sequence[Observation]) -> Posterior:
        if self._fitted is None or self._fitted[0] != len(history):
            self._fitted = (len(history), self._fit(history))
        return self._fitted[1]

    def _fit(self, history: Sequence[Observation], *, loose: bool = False) -> Posterior:
        good = self._remembered(history)
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
            loose=loose,
        )

    def _remembered(self, history: Sequence[Observation]) -> list[Observation]:
        """All that has a value; of very many the default, the fastest configurations with all that
        was measured of them, or a lucky one would stand for each, and the last.
        """
        good = [o for o in history if o.value is not None]
        if len(good) <= _REMEMBERED:
            return good
        values: dict[Code, list[float]] = {}
        for o in good:
            values.setdefault(o.code, []).append(o.value or 0.0)
        ranked = sorted(values, key=lambda c: -sum(values[c]) / len(values[c]))
        kept, room = {self.default, *(o.code for o in good[-_REMEMBERED // 4 :])}, _REMEMBERED
        room -= sum(len(values.get(c, ())) for c in kept)
        for code in ranked:
            if code not in kept and (room := room - len(values[code])) >= 0:
                kept.add(code)
        return [o for o in good if o.code in kept]

    def _launch(self, observation: Observation) -> Any:
        if observation.launch is not None:
            return observation.launch
        return tuple(observation.code[i] for i in self._costly)

    def answer(self, history: Sequence[Observation]) -> Code:
        """The measured configuration that is the fastest by all that is known."""
        measured, mean = self._leading(history)
        return tuple(int(v) for v in measured[int(mean.argmax())])

    def _leading(self, history: Sequence[Observation]) -> tuple[Codes, Floats]:
        """The measured configurations that the model knows, and what it makes of them."""
        model = self.posterior(history)
        measured = np.unique(model.codes, axis=0)
        return measured, model.predict(measured)[0]

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
        rng = np.random.default_rng((self._seed, len(history), 1))
        codes = self._candidates(history, rng)
        done = {o.code for o in history}
        left = np.array([c for c in map(tuple, codes.tolist()) if c not in done], dtype=np.intp)
        if not len(left):
            return 0.0
        model = self._fit(history, loose=True)
        mean, spread = model.predict(left)
        best = np.array([self.answer(history)], dtype=np.intp)
        reach = float(model.predict(best)[0][0]) + math.log1p(threshold)
        order = left[np.argsort(-(mean - reach) / spread)]
        likely = list(islice((c for c in order if feasible(tuple(c.tolist()))), _LIKELY))
        if not likely:
            return 0.0
        asked = np.array([best[0], *likely])
        draws = rng.multivariate_normal(
            model.predict(asked)[0], model.covariance(asked), size=_DRAWS, method="eigh"
        )
        runs = rng.random((_DRAWS, len(likely))) < self._chance_to_run(history, asked[1:])
        over = runs & (draws[:, 1:] - draws[:, [0]] > math.log1p(threshold))
        return float(over.any(axis=1).mean())

    # What to try.

    def ranked(self, history: Sequence[Observation], live: Code | None) -> list[Proposal]:
        """What to try next, the best first. `live` is the configuration measured last: what needs
        no other launch than it is cheaper.
        """
        measured = {o.code for o in history}
        presets = [Proposal(c, why) for c, why in self._presets.items() if c not in measured]
        rng = np.random.default_rng((self._seed, len(history)))
        if not any(o.value is not None for o in history):
            first = [] if self.default in measured else [Proposal(self.default, "default")]
            sizes = np.array([len(k.values) for k in self.knobs])
            others = rng.permutation(singles(np.array(self.default), sizes)[1:])
            near = [Proposal(tuple(int(v) for v in c), WALK) for c in others]
            return [*first, *presets, *(p for p in near if p.code not in measured)]
        codes = self._candidates(history, rng)
        score = self._scores(history, codes, live)
        score += 1e-9 * score.max() * rng.random(len(codes))
        order = np.argsort(-score)
        places = [tuple(int(v) for v in codes[i]) for i in order if score[i] > 0]
        walk = [Proposal(c, AGAIN if c in measured else WALK) for c in places]
        repeats = sum(o.value is not None for o in history) - len(measured)
        if repeats >= max(2, len(measured) // _REPEATS):
            walk = [p for p in walk if p.why == WALK]
        return [*presets, *walk]

    def _scores(self, history: Sequence[Observation], codes: Codes, live: Code | None) -> Floats:
        """Expected improvement over the best, over what it costs."""
        model = self.posterior(history)
        measured = {o.code for o in history if o.value is not None}
        mean, spread = model.predict(codes)
        best = float(self._leading(history)[1].max())
        z = (mean - best) / spread
        gain = spread * (z * _below(z) + np.exp(-z * z / 2) / math.sqrt(2 * math.pi))
        gain *= self._chance_to_run(history, codes)
        known = np.array([tuple(c) in measured for c in codes.tolist()])
        failed = {o.code for o in history if o.value is None}
        gain[[tuple(c) in failed for c in codes.tolist()]] = 0.0
        cost = np.ones(len(codes))
        if self._costly and live is not None:
            same = np.all(codes[:, self._costly] == np.array(live)[self._costly], axis=1)
            cost = np.where(same & ~known, 1.0, 1.0 + self.weights.launch)
        return np.asarray(gain / cost**self.weights.cost)

    def _chance_to_run(self, history: Sequence[Observation], codes: Codes) -> Floats:
        """That a configuration does not fail: lower for those that share values with ones that did,
        values alone and in pairs.
        """
        bad = [o.code for o in history if o.value is None][-_REMEMBERED // 2 :]
        if not bad:
            return np.ones(len(codes))
        good = [o.code for o in history if o.value is not None][-_REMEMBERED // 2 :]
        every = np.array([*bad, *good], dtype=np.intp)
        label = np.array([-1.0] * len(bad) + [0.0] * len(good))
        default = np.array(self.default)

        def kernel(a: Codes, b: Codes) -> Floats:
            same = (a[:, None, :] == b[None, :, :]) & (a[:, None, :] != default)
            n = same.sum(axis=2).astype(float)
            return np.asarray(n + n * (n - 1) / 4) * 0.05

        k = kernel(every, every) + 0.015 * np.eye(len(every))
        told = kernel(codes, every) @ np.linalg.solve(k, label)
        return np.clip(0.95 + told, 0.002, 1.0)

    def _candidates(self, history: Sequence[Observation], rng: np.random.Generator) -> Codes:
        if self._grid is not None:
            return self._grid
        model = self.posterior(history)
        measured, mean = self._leading(history)
        best = measured[np.argsort(-mean)[:_STARTS]]
        sizes = np.array([len(k.values) for k in self.knobs])
        found = [measured[np.argsort(-mean)[:10]]]
        found += [singles(start, sizes) for start in best]
        found.append(doubles(best[0], sizes, rng))
        found.append(self._climbed(model, best[0], sizes))
        return np.unique(np.concatenate(found), axis=0)

    def _climbed(self, model: Posterior, start: Codes, sizes: NDArray[Any]) -> Codes:
        """Where steps of one parameter lead that the model expects to gain: what it holds for the
        best, and the way there.
        """
        here = start
        path = []
        for _ in range(2 * len(sizes)):
            options = singles(here, sizes)
            mean, _ = model.predict(options)
            top = options[int(mean.argmax())]
            path.append(top)
            if np.array_equal(top, here):
                break
            here = top
        return np.array(path)


def _below(z: Floats) -> Floats:
    """The standard normal distribution."""
    return np.asarray(0.5 * (1 + _ERF(z / math.sqrt(2))), dtype=float)
