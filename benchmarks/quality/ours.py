"""The guided sampler in a replay, as `nccltune search` uses it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import optuna
import yaml
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState, create_trial

from nccltune.study.records import AGAIN
from nccltune.study.sampling.choosing import TOGETHER
from nccltune.study.sampling.guided import LAUNCH, NOT_RUN, REJECTED, GuidedSampler
from quality.landscapes import Landscape, Point, Value

_SPACES = Path(__file__).resolve().parents[2] / "search_spaces"
_SHORT = {
    "nsocks": "NCCL_NSOCKS_PERTHREAD",
    "nthreads": "NCCL_SOCKET_NTHREADS",
    "buffsize": "NCCL_BUFFSIZE",
    "algo": "NCCL_ALGO",
    "proto": "NCCL_PROTO",
}
"""Names in older recordings."""


class Guided:
    """`recommends`: the answer is what the sampler makes of all measurements, not the highest."""

    def __init__(
        self, landscape: Landscape, seed: int, *, presets: bool, recommends: bool = True
    ) -> None:
        self._landscape, self._recommends = landscape, recommends
        self._distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values) for name, values in landscape.parameters.items()
        }
        names = {_SHORT.get(name, name): name for name in landscape.parameters}
        together = [tuple(names[n] for n in pair) for pair in TOGETHER if names.keys() >= set(pair)]
        self._sampler = GuidedSampler(
            landscape.values(landscape.default),
            presets=_presets(landscape, names) if presets else None,
            together=together if presets else (),
            costly=landscape.process,
            seed=seed,
        )
        self._study = optuna.create_study(direction="maximize", sampler=self._sampler)
        self._asked: optuna.Trial | None = None
        self._times: dict[Point, int] = {}

    def ask(self) -> Mapping[str, Value] | None:
        self._asked = self._study.ask(self._distributions)
        return dict(self._asked.params)

    def again(self) -> bool:
        return self._sampler.why == AGAIN

    def reject(self, value: float | None) -> None:
        assert self._asked is not None
        self._asked.set_user_attr(NOT_RUN, REJECTED)
        self._study.tell(self._asked, state=TrialState.FAIL)
        self._asked = None

    def tell(self, values: Mapping[str, Value], value: float | None) -> None:
        point = tuple(values[name] for name in self._landscape.parameters)
        times = self._times[point] = self._times.get(point, 0) + 1
        launch = repr((self._landscape.environment(point), times))
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        if self._asked is not None and self._asked.params == values:
            self._asked.set_user_attr(LAUNCH, launch)
            self._study.tell(self._asked, value, state=state)
        else:
            if self._asked is not None:
                self.reject(None)
            self._study.add_trial(
                create_trial(
                    params=dict(values),
                    distributions=self._distributions,
                    value=value,
                    state=state,
                    user_attrs={LAUNCH: launch},
                )
            )
        self._asked = None

    def answer(self) -> Point | None:
        if not self._recommends:
            return None
        found = self._sampler.answer(self._study, self._distributions)
        return None if found is None else tuple(found[n] for n in self._landscape.parameters)


@cache
def _known_presets() -> dict[str, dict[str, Value]]:
    """Of all search spaces that come with nccltune: name -> values."""
    files = sorted([*_SPACES.glob("*.yaml"), *_SPACES.glob("fragments/*.yaml")])
    found = [p for file in files for p in yaml.safe_load(file.read_text()).get("presets", ())]
    return {preset["name"]: preset["values"] for preset in found}


def _presets(landscape: Landscape, names: Mapping[str, str]) -> dict[str, dict[str, Value]]:
    """Those whose parameters are all here with these values."""
    usable = {}
    for preset, values in _known_presets().items():
        renamed = {names[n]: v for n, v in values.items() if n in names}
        if len(renamed) == len(values) and all(
            v in landscape.parameters[n] for n, v in renamed.items()
        ):
            usable[preset] = renamed
    return usable


def disguised(landscape: Landscape, seed: int) -> Landscape:
    """The same landscape under other names, parameters and values in another order."""
    rng = random.Random(seed)
    names = list(landscape.parameters)
    order = rng.sample(range(len(names)), len(names))
    renamed = {name: f"parameter_{rng.getrandbits(32):08x}" for name in names}

    def moved(point: Point) -> Point:
        return tuple(point[i] for i in order)

    def shuffled(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(rng.sample(values, len(values)))

    points = list(landscape.truth)
    return replace(
        landscape,
        parameters={renamed[names[i]]: shuffled(landscape.parameters[names[i]]) for i in order},
        process=frozenset(renamed[name] for name in landscape.process),
        default=moved(landscape.default),
        truth={moved(p): landscape.truth[p] for p in points},
        failing=frozenset(moved(p) for p in landscape.failing),
        seconds={moved(p): landscape.seconds[p] for p in [*points, *landscape.failing]},
    )
