"""PED-ANOVA of many trials: Optuna's evaluator, without the study that it wants them told to.

A study takes a copy of every trial, which takes longer than all the rest for a few thousand.
"""

from __future__ import annotations

import warnings
from collections.abc import Container, Mapping, Sequence
from typing import Any

from optuna.importance import PedAnovaImportanceEvaluator
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState

from nccltune.space import Parameter, Value
from nccltune.study.quiet import optuna
from nccltune.study.sampling.coding import coded
from nccltune.study.sampling.estimates import as_proposed


class _Held(InMemoryStorage):
    """Trials that a study has as they are."""

    def __init__(self, trials: list[FrozenTrial]) -> None:
        super().__init__()
        self._held = trials

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        return self._held


def divergences(
    points: Sequence[Mapping[str, Value]],
    speeds: Sequence[float],
    parameters: Sequence[Parameter],
    fastest: float,
) -> dict[str, float]:
    """How differently the values of each parameter that was varied are spread among the `fastest`
    share of the points and among all; empty where none was, or all are equally fast.
    """
    codes = {p.name: _codes(p, [point[p.name] for point in points]) for p in parameters}
    varied = [p for p in parameters if len(set(map(repr, codes[p.name]))) > 1]
    if not varied or len(set(speeds)) < 2:
        return {}
    names = [p.name for p in varied]
    distributions = {p.name: coded(p, everything=False).distribution for p in varied}
    rows = zip(*(codes[name] for name in names), strict=True)
    trials = [
        _trial(number, speed, dict(zip(names, row, strict=True)), distributions)
        for number, (speed, row) in enumerate(zip(speeds, rows, strict=True))
    ]
    study = optuna.create_study(storage=_Held(trials), direction="maximize")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Optuna: that the fastest are all, say
        return PedAnovaImportanceEvaluator(target_quantile=fastest).evaluate(study)


def _codes(parameter: Parameter, values: Sequence[Value]) -> list[Value]:
    """The codes of its values. Few differ, so each is worked out once."""
    coding, known = coded(parameter, everything=False), dict[tuple[type, Value], Value]()
    for value in values:
        if (type(value), value) not in known:
            known[type(value), value] = coding.to_code(as_proposed(parameter, value))
    return [known[type(value), value] for value in values]


def _trial(
    number: int, speed: float, params: dict[str, Any], distributions: dict[str, Any]
) -> FrozenTrial:
    return FrozenTrial(
        number=number,
        trial_id=number,
        state=TrialState.COMPLETE,
        value=speed,
        datetime_start=None,
        datetime_complete=None,
        params=params,
        distributions=distributions,
        user_attrs={},
        system_attrs={},
        intermediate_values={},
    )
