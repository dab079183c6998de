"""Which parameters mattered in a search: PED-ANOVA, as Optuna computes it.

S. Watanabe, A. Bansal, F. Hutter, PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in
Arbitrary Subspaces, IJCAI 2023: how differently the values of a parameter are spread among the
fastest configurations and among all. That ranks parameters by the search's own values; it is no
gain, and says nothing of a parameter that was always the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from nccltune.space import ResolvedSpace, Value
from nccltune.study.records import Trial

FEWEST = 16
"""Configurations with a value. With 12 of them a parameter worth 10 % among 10 was ranked first in
43 of 60 made-up searches with a noise of 2 %, with 16 in 48, with 20 in 54, with 48 in all.
"""
_FASTEST = 0.3  # share of the configurations that count as the fastest: of 0.1 to 0.3 the surest


def importance(trials: Sequence[Trial], space: ResolvedSpace) -> dict[str, float] | None:
    """The share of each parameter that was varied at the user's own batch size, the largest first;
    they add up to 1. None where there are too few trials, or nothing differs between them.
    """
    names, points = _points(trials, space)
    if len(points) < FEWEST:
        return None
    speeds = [statistics.fmean(several) for several in points.values()]
    return _shares([dict(zip(names, point, strict=True)) for point in points], speeds, space)


def why_unknown(trials: Sequence[Trial], space: ResolvedSpace) -> str:
    """Why there are no shares."""
    found = len(_points(trials, space)[1])
    if found < FEWEST:
        return f"known from {FEWEST} different configurations with a value on, here are {found}"
    return "all configurations were equally fast"


def _points(
    trials: Sequence[Trial], space: ResolvedSpace
) -> tuple[list[str], dict[tuple[Value, ...], list[float]]]:
    """The names of the parameters, and by their values the samples/s that were measured."""
    names = [p.name for p in space.parameters if p.target != "batch"]
    points: dict[tuple[Value, ...], list[float]] = {}
    for trial in trials:
        if trial.stage == "search" and trial.value is not None:
            point = tuple(map(trial.parameters.get, names))
            points.setdefault(point, []).append(trial.value)
    return names, points


def _shares(
    points: Sequence[dict[str, Value]], speeds: Sequence[float], space: ResolvedSpace
) -> dict[str, float] | None:
    """Of configurations and their samples/s. Here alone Optuna is needed, which takes time."""
    from nccltune.study.ped_anova import divergences

    parameters = [p for p in space.parameters if p.name in points[0]]
    told = divergences(points, speeds, parameters, _FASTEST)
    total = sum(told.values())
    if not total > 0:
        return None
    return {n: told[n] / total for n in sorted(told, key=lambda n: -told[n])}
