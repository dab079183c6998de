"""Parameters as numbers: what has distances keeps its order, and every value comes back."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from nccltune.errors import UsageError
from nccltune.space import Parameter
from nccltune.study.sampling import extras
from nccltune.study.sampling.coding import Coding, cmaes_sampler, coded, coded_distribution


def parameter(name: str, **fields: Any) -> Parameter:
    target = "env" if name.isupper() else "loader" if name == "num_workers" else "ddp"
    return Parameter(name=name, target=target, **{"default": None, **fields})


BUCKETS = parameter("bucket_cap_mb", choices=(100, None, 5, 25))
PROTO = parameter("NCCL_PROTO", choices=(None, "LL", "Simple"))
SWITCH = parameter("gradient_as_bucket_view", choices=(False, True), default=False)
WORKERS = parameter("num_workers", range={"low": 1, "high": 16, "log": True})


def test_numbers_are_places_in_order_and_unset_is_the_first() -> None:
    found = coded(BUCKETS, everything=False)
    assert found.distribution == IntDistribution(0, 3)
    assert [found.to_value(code) for code in range(4)] == [None, 5, 25, 100]
    assert [found.to_code(value) for value in (None, 5, 25, 100)] == [0, 1, 2, 3]


@pytest.mark.parametrize("words", [PROTO, SWITCH])
def test_words_and_switches_stay_what_they_are_unless_everything_is_coded(
    words: Parameter,
) -> None:
    kept = coded(words, everything=False)
    assert isinstance(kept.distribution, CategoricalDistribution) and kept.places is None
    places = coded(words, everything=True)
    assert places.distribution == IntDistribution(0, len(words.choices or ()) - 1)
    assert places.places == words.choices


@pytest.mark.parametrize("everything", [True, False])
def test_a_range_is_its_own_coding(everything: bool) -> None:
    found = coded(WORKERS, everything)
    assert found == Coding(IntDistribution(1, 16, log=True))
    assert found.to_value(7) == found.to_code(7) == 7


VALUES = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["LL", "Ring", "0x1"])


@given(
    st.lists(VALUES, min_size=1, max_size=8, unique_by=lambda v: (isinstance(v, bool), v)),
    st.booleans(),
)
def test_every_choice_comes_back(choices: list[Any], everything: bool) -> None:
    found = coded_distribution(CategoricalDistribution(choices), everything)
    for value in choices:
        again = found.to_value(found.to_code(value))
        assert again == value and type(again) is type(value)


@given(st.integers(0, 40))
def test_every_code_comes_back(code: int) -> None:
    found = coded_distribution(CategoricalDistribution([None, *range(40)]), everything=True)
    assert found.to_code(found.to_value(code)) == code


@pytest.mark.parametrize(
    ("coding", "value"),
    [
        (coded(BUCKETS, True), 6),
        (coded(BUCKETS, True), "5"),
        (coded(SWITCH, True), 1),
        (coded(SWITCH, False), 0),
        (coded(WORKERS, True), 17),
        (coded(WORKERS, True), None),
        (Coding(FloatDistribution(0.0, 1.0)), "half"),
    ],
)
def test_a_value_of_another_parameter_has_no_code(coding: Coding, value: Any) -> None:
    with pytest.raises(ValueError, match="one of"):
        coding.to_code(value)


def test_cmaes_searches_places() -> None:
    codings = {p.name: coded(p, everything=True) for p in (BUCKETS, PROTO, SWITCH, WORKERS)}
    distributions = {name: coding.distribution for name, coding in codings.items()}
    study = optuna.create_study(direction="maximize", sampler=cmaes_sampler(seed=3))
    for _ in range(60):
        trial = study.ask(fixed_distributions=distributions)
        values = {name: coding.to_value(trial.params[name]) for name, coding in codings.items()}
        study.tell(trial, (values["bucket_cap_mb"] or 0) - abs(values["num_workers"] - 9))
    by_cmaes = [t for t in study.trials if "cma:generation" in t.system_attrs]
    assert len(by_cmaes) == 60 - 8
    assert study.best_trial in by_cmaes
    assert codings["bucket_cap_mb"].to_value(study.best_params["bucket_cap_mb"]) == 100


@pytest.mark.parametrize(
    ("option", "package"),
    [("--sampler cmaes", "cmaes"), ("--sampler gp", "scipy"), ("--pruner wilcoxon", "scipy")],
)
def test_without_its_package_an_option_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, option: str, package: str
) -> None:
    monkeypatch.setattr(
        extras, "find_spec", lambda name: None if name == package else find_spec(name)
    )
    with pytest.raises(UsageError) as refused:
        extras.require(option)
    assert str(refused.value) == (
        f"{option} needs the package {package}: pip install 'nccltune[samplers]'"
    )
    extras.require("--sampler tpe")


def test_cmaes_without_its_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs the package cmaes"):
        cmaes_sampler(seed=0)
