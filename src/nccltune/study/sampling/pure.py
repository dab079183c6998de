"""What our samplers have in common."""

from __future__ import annotations

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.trial import FrozenTrial

from nccltune.study.quiet import optuna


class PureSampler(BaseSampler):
    """A sampler whose proposals follow from its seed and the study's trials alone. It is asked for
    the parameters that finished trials share, those with one value left out.
    """

    def __init__(self, *, include_pruned: bool = False) -> None:
        self._space = IntersectionSearchSpace(include_pruned=include_pruned)

    def reseed_rng(self) -> None:
        """There is nothing that draws on between two trials."""

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        found = self._space.calculate(study)
        return {name: d for name, d in found.items() if not d.single()}
