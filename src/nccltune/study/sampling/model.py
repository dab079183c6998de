"""What measurements so far say of the speed of any configuration: an additive Gaussian process.

The log speed of a configuration, beside that of the default, is the sum of what each changed
parameter does by itself and of what each changed pair does together (functional ANOVA kernels,
Durrande et al. 2013), and an observation adds the luck of its launch and of its measurement. The
variances of these parts are learned from the observations under weak priors. So a setting that
never mattered stops being tried, and a lucky measurement is known as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]
"""Configurations, one a row: for each parameter the place of its value among its levels."""

_NEARBY = 0.6  # share of a number's effect that its neighbours have too
_REACH = 1.5  # places over which neighbours are alike
_ROUNDS = 12
_PRIOR = 0.2  # squared effects that the expected variance of a part counts as
_LOOSE = 0.5  # parameters that the usual size of effects counts as


@dataclass(frozen=True)
class Levels:
    """The values of a parameter as the model sees them."""

    count: int
    default: int
    places: tuple[float | None, ...]
    """Where each value lies among the numbers, in steps; None is one apart: unset, a word."""

    def kernel(self) -> Floats:
        """Covariance of the effects of the values, beside the default's: 1 where nothing else is
        known, and 0 for the default itself. Shape (count, count).
        """
        places = np.array([np.nan if p is None else p for p in self.places])
        apart = np.abs(places[:, None] - places[None, :])
        alike = np.where(np.isnan(apart), 0.0, _NEARBY * np.exp(-apart / _REACH))
        full = alike + (1 - np.diag(alike)) * np.eye(self.count)
        d = self.default
        beside = full - full[:, [d]] - full[[d], :] + full[d, d]
        return np.asarray(
            beside / max(float(np.diag(beside).max()), 1e-12) if self.count > 1 else beside
        )


@dataclass(frozen=True)
class Priors:
    """What is expected before anything is measured: standard deviations of log speed."""

    effects: tuple[float, ...]
    """Of a parameter's effect, one each."""
    pairs: tuple[tuple[int, int], ...] = ()
    """Parameters (by place) that are known to act together."""
    pair_effect: float = 0.03
    other_pairs: float = 0.02
    change: float = -0.02
    """Mean effect of changing one parameter: most settings that are not the default lose."""
    change_spread: float = 0.03
    launch: float = 0.02
    measurement: float = 0.015


@dataclass
class Posterior:
    """The model after some observations."""

    kernels: list[Floats]
    variances: Floats
    """Of effects, declared pairs, other pairs (those of each parameter have one in common),
    launches, measurements: in that order.
    """
    pairs: tuple[tuple[int, int], ...]
    priors: Priors
    codes: Codes
    default: Codes
    weights: Floats = field(default_factory=lambda: np.zeros(0))
    root: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    mean: float = 0.0

    def signal(self, a: Codes, b: Codes) -> Floats:
        """Prior covariance of configurations, shape (len(a), len(b))."""
        rows = _rows(self.kernels, a, b)
        common = _common(a, b, self.default, self.priors)
        return _combined(rows, self.pairs, self.variances) + common

    def predict(self, codes: Codes) -> tuple[Floats, Floats]:
        """Mean and standard deviation of log speed, luck left out. Shapes (len(codes),)."""
        across = self.signal(codes, self.codes)
        mean = self.mean + self._expected(codes) + across @ self.weights
        explained = self.root @ across.T
        own = self._own(codes)
        spread = np.sqrt(np.maximum(own - (explained**2).sum(axis=0), 1e-12))
        return mean, spread

    def covariance(self, codes: Codes) -> Floats:
        """Covariance of what `predict` says, shape (len(codes), len(codes))."""
        explained = self.root @ self.signal(self.codes, codes)
        return np.asarray(self.signal(codes, codes) - explained.T @ explained)

    def _expected(self, codes: Codes) -> Floats:
        return np.asarray(self.priors.change * (codes != self.default).sum(axis=1))

    def _own(self, codes: Codes) -> Floats:
        rows = [k[c, c] for k, c in zip(self.kernels, codes.T, strict=True)]
        return np.array(_combined(rows, self.pairs, self.variances)) + self._change_own(codes)

    def _change_own(self, codes: Codes) -> Floats:
        changed = (codes != self.default).sum(axis=1)
        return np.asarray(self.priors.change_spread**2 * changed**2.0)


def _combined(
    rows: Sequence[Floats], pairs: Sequence[tuple[int, int]], variances: Floats
) -> Floats:
    """The sum of all parts, each times its variance: as `_parts` with what is common left out."""
    count = len(rows)
    single, declared, others = np.split(variances, [count, count + len(pairs)])
    whole = np.sum(rows, axis=0)
    total = np.zeros_like(whole)
    for row, v, other in zip(rows, single, others, strict=False):
        part = whole - row
        part *= other / 2
        part += v
        part *= row
        total += part
    for v, (a, b) in zip(declared, pairs, strict=True):
        total += v * rows[a] * rows[b]
    return np.asarray(total)


def _with_any(rows: Sequence[Floats]) -> list[Floats]:
    """For each parameter half of its pairs with all others: together they are all pairs once."""
    whole = sum(rows)
    return [np.asarray(row * (whole - row) / 2) for row in rows]


def _parts(
    kernels: Sequence[Floats],
    pairs: Sequence[tuple[int, int]],
    a: Codes,
    b: Codes,
    default: Codes,
    priors: Priors,
) -> list[Floats]:
    rows = _rows(kernels, a, b)
    common = _common(a, b, default, priors)
    return [*rows, *(rows[i] * rows[j] for i, j in pairs), *_with_any(rows), common]


def _rows(kernels: Sequence[Floats], a: Codes, b: Codes) -> list[Floats]:
    return [k[np.ix_(x, y)] for k, x, y in zip(kernels, a.T, b.T, strict=True)]


def _common(a: Codes, b: Codes, default: Codes, priors: Priors) -> Floats:
    """What changes have in common, whatever they are."""
    changed = [(c != default).sum(axis=1).astype(float) for c in (a, b)]
    return np.asarray(priors.change_spread**2 * np.outer(*changed))


def fit(
    levels: Sequence[Levels],
    codes: Codes,
    launches: NDArray[np.intp],
    values: Floats,
    priors: Priors,
    *,
    loosely_from: Posterior | None = None,
) -> Posterior:
    """The model after `values` (log speeds) of the configurations `codes`, measured in `launches`
    (equal numbers share a launch's luck). `loosely_from`: the model of the same observations, from
    which this one learns how large effects are at all from all of them together, so that where
    nothing matters little is expected of what was not tried.
    """
    kernels = [level.kernel() for level in levels]
    default = np.array([level.default for level in levels], dtype=np.intp)
    parts = _parts(kernels, priors.pairs, codes, codes, default, priors)
    common = parts.pop()
    learned = [
        *parts,
        (launches[:, None] == launches[None, :]).astype(float),
        np.eye(len(values)),
    ]
    expected = np.array(
        [
            *priors.effects,
            *([priors.pair_effect] * len(priors.pairs)),
            *([priors.other_pairs] * len(levels)),
            priors.launch,
            priors.measurement,
        ]
    )
    found = Posterior(kernels, expected**2, priors.pairs, priors, codes, default)
    mean_given = found._expected(codes)
    variances, rounds = expected**2, _ROUNDS
    if loosely_from is not None:
        variances, rounds = loosely_from.variances, _ROUNDS // 2
    stack = np.stack(learned)
    effects, usual = len(learned) - 2, expected**2
    for _ in range(rounds):
        inverse = _inverse(np.tensordot(variances, stack, 1) + common)
        _, weights = _residual(inverse, values - mean_given)
        quadratic = (stack @ weights) @ weights
        trace = stack.reshape(len(stack), -1) @ inverse.ravel()
        variances = variances * np.sqrt(
            (quadratic + _PRIOR * usual / variances**2) / (trace + _PRIOR / variances)
        )
        if loosely_from is not None:
            ratio = float((variances[:effects] / expected[:effects] ** 2).sum())
            usual[:effects] = expected[:effects] ** 2 * (_LOOSE + ratio) / (_LOOSE + effects)
    covariance = np.tensordot(variances, stack, 1) + common
    found.variances = np.asarray(variances, dtype=np.float64)
    found.mean, found.weights = _residual(_inverse(covariance), values - mean_given)
    found.root = np.asarray(np.linalg.inv(_cholesky(covariance)), dtype=np.float64)
    return found


def _inverse(covariance: NDArray[np.floating[Any]]) -> Floats:
    root = np.linalg.inv(_cholesky(covariance))
    return np.asarray(root.T @ root, dtype=np.float64)


def _cholesky(covariance: NDArray[np.floating[Any]]) -> Floats:
    """The lower root, with as much added to the diagonal as rounding asks for."""
    scale = float(np.diag(covariance).mean()) or 1.0
    for power in range(-12, 0, 2):
        try:
            jitter = scale * 10.0**power * np.eye(len(covariance))
            return np.asarray(np.linalg.cholesky(covariance + jitter), dtype=np.float64)
        except np.linalg.LinAlgError:
            continue
    return np.asarray(np.diag(np.sqrt(np.diag(covariance) + scale)), dtype=np.float64)


def _residual(inverse: NDArray[np.floating[Any]], values: Floats) -> tuple[float, Floats]:
    """The mean by generalised least squares, and the weights of what is left."""
    ones = inverse.sum(axis=1)
    mean = float(ones @ values / ones.sum())
    return mean, np.asarray(inverse @ (values - mean), dtype=np.float64)
