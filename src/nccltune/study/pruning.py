"""When a measurement is hopeless: our own rule, which the ranks apply, or a pruner of Optuna, which
is asked after each window.

Optuna's pruners get a study of their own, made of the records: the trials at the user's own batch
size, with what was known after each window. It is the same for a study that goes on later, whatever
the sampler.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nccltune.errors import UsageError
from nccltune.study.live_group import Judge
from nccltune.study.records import Measurement
from nccltune.worker.spec import Settings
from nccltune.worker.windows import CUT_WINDOWS

if TYPE_CHECKING:  # the command line reads the names, and must not pay for Optuna
    from optuna.pruners import BasePruner

    from nccltune.study.quiet import optuna

PRUNERS = ("own", "none", "median", "wilcoxon", "hyperband")
DEFAULT = "own"
_FEWEST = {"median": CUT_WINDOWS + 1, "hyperband": CUT_WINDOWS + 1, "wilcoxon": 5}
"""Windows of a measurement with which it can end one: a signed-rank test at 10 % needs 4."""
_STARTUP_TRIALS = 5  # complete ones before the median says something


@dataclass(frozen=True)
class Pruning:
    """What ends a measurement of the search early.

    `own`: the ranks end one whose median is surely below the incumbent's (worker/windows.py).
    `none`: nothing does. `median`: it is below the median of the trials after as many windows.
    `wilcoxon`: its windows are below those of the best trial, by a signed-rank test at 10 %.
    `hyperband`: it is not in the best third after 3, 9, ... windows.
    """

    name: str = DEFAULT
    windows: int = 4
    """Of a measurement; it may take up to twice as many."""
    _known: dict[str, list[float]] = field(default_factory=dict, repr=False, compare=False)
    """Rates of measurements that were looked at: windows may have to be read from the file."""

    def check(self) -> None:
        """Raises UsageError where measurements are too short for a pruner to end one early."""
        if self.name in ("own", "none") or self.windows >= _FEWEST[self.name]:
            return
        fewest = _FEWEST[self.name]
        raise UsageError(
            f"--pruner {self.name} can end nothing early in {self.windows} windows: it takes "
            f"{fewest} or more, --measure-seconds {fewest * Settings.window_seconds:g}"
        )

    def cut_below(self, incumbent: float | None) -> float | None:
        """The bound that the ranks are given; samples/s."""
        return incumbent if self.name == "own" else None

    def judge(self, measurements: Sequence[Measurement]) -> Judge | None:
        """Of the next measurement, after those on record; None where Optuna is not asked."""
        if self.name in ("own", "none"):
            return None
        searched = [m for m in measurements if _compares(m)]
        for measurement in searched:
            if measurement.id not in self._known:
                self._known[measurement.id] = _rates(measurement)
        study = _studied(searched, self._known, self.name, self.windows)
        return _Judge(self.name, study)


class _Judge:
    """Asked of one measurement after each of its windows; of the same once more from the start."""

    def __init__(self, name: str, study: optuna.Study) -> None:
        self._name, self._study = name, study
        self._trial = study.ask()
        self._told = 0

    def __call__(self, rates: Sequence[float]) -> bool:
        if len(rates) <= self._told:  # it was disturbed or failed, and is measured again
            self._trial, self._told = self._study.ask(), 0
        prunes = _report(self._trial, _reported(rates, self._name), self._told)
        self._told = len(rates)
        return prunes


def _compares(measurement: Measurement) -> bool:
    """Whether it is a trial at the user's own batch size, with a value."""
    ours = measurement.purpose == "search" and measurement.stage == "search"
    return ours and measurement.result is not None and measurement.value is not None


def _studied(
    measurements: Sequence[Measurement], rates: Mapping[str, list[float]], name: str, windows: int
) -> optuna.Study:
    """What the pruner knows. Hyperband notes the rungs of a trial when it is asked, so it is asked
    again for each; others look at what was told, and their answers are not wanted.
    """
    from nccltune.study.quiet import optuna

    study = optuna.create_study(
        study_name="pruning", direction="maximize", pruner=_pruner(name, windows)
    )
    for measurement in measurements:
        trial = study.ask()
        _report(trial, _reported(rates[measurement.id], name), asks=name == "hyperband")
        if measurement.state == "pruned":
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, measurement.value)
    return study


def _pruner(name: str, windows: int) -> BasePruner:
    from nccltune.study.quiet import optuna

    pruners = optuna.pruners
    if name == "median":
        return pruners.MedianPruner(n_startup_trials=_STARTUP_TRIALS, n_warmup_steps=CUT_WINDOWS)
    if name == "wilcoxon":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is experimental
            return pruners.WilcoxonPruner(p_threshold=0.1, n_startup_steps=CUT_WINDOWS)
    assert name == "hyperband", name
    most = max(2 * windows, CUT_WINDOWS + 1)
    return pruners.HyperbandPruner(min_resource=CUT_WINDOWS, max_resource=most)


def _report(
    trial: optuna.Trial, values: Sequence[float], after: int = 0, *, asks: bool = True
) -> bool:
    """Tell what is known after each window from `after` on. Whether the pruner, if it is asked,
    would end it now.
    """
    prunes = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # steps that the best trial lacks
        for step, value in enumerate(values[after:], start=after + 1):
            trial.report(value, step)
            prunes = asks and step >= CUT_WINDOWS and bool(trial.should_prune())
    return prunes


def _reported(rates: Sequence[float], name: str) -> list[float]:
    """What is told after each window: the value of a trial that would end there. The signed-rank
    test wants the windows themselves.
    """
    if name == "wilcoxon":
        return list(rates)
    return [statistics.median(rates[:count]) for count in range(1, len(rates) + 1)]


def _rates(measurement: Measurement) -> list[float]:
    """Samples/s of the windows that counted."""
    assert measurement.result is not None
    return [
        _samples(window, measurement) / max(window["rank_seconds"])
        for window in measurement.result["windows"]
        if window["counts"]
    ]


def _samples(window: dict[str, Any], measurement: Measurement) -> float:
    """Of all ranks in a window; earlier versions did not write it down."""
    if window.get("samples"):
        return float(window["samples"])
    assert measurement.result is not None and measurement.value is not None
    return float(window["steps"] * measurement.value * measurement.result["step_seconds"])
