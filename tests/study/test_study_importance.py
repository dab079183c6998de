"""Which parameters mattered: told where there is enough to go by, and not otherwise."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from study_jobs import PARAMETERS, space_of

from nccltune.space import ResolvedSpace
from nccltune.study.importance import FEWEST, importance
from nccltune.study.records import Trial

SPACE = space_of()
Speed = Callable[[Mapping[str, Any], random.Random], float | None]


def searched(space: ResolvedSpace, count: int, speed: Speed, seed: int = 0) -> list[Trial]:
    """Trials of random configurations; None is a failure."""
    source, trials = random.Random(seed), []
    for number in range(count):
        configuration = {p.name: source.choice(p.choices or (None,)) for p in space.parameters}
        value = speed(configuration, source)
        trials.append(
            Trial(
                number, "search", "sampler", configuration,
                "failed" if value is None else "complete",
                value, "crashed" if value is None else None, 1.0,
            )
        )  # fmt: skip
    return trials


def by_buckets(c: Mapping[str, Any], source: random.Random) -> float:
    return 100.0 + 10 * (c["bucket_cap_mb"] in (50, 100)) + source.gauss(0, 1)


def test_the_parameter_that_matters_comes_first_and_shares_add_up_to_one() -> None:
    firsts = []
    for seed in range(10):
        found = importance(searched(SPACE, 40, by_buckets, seed), SPACE)
        assert found is not None
        assert sum(found.values()) == pytest.approx(1)
        assert list(found.values()) == sorted(found.values(), reverse=True)
        firsts.append(next(iter(found)))
    assert firsts.count("bucket_cap_mb") >= 9


def test_few_configurations_say_nothing() -> None:
    trials = searched(SPACE, FEWEST, by_buckets)
    assert importance(trials, SPACE) is not None
    assert importance(trials[:-1], SPACE) is None
    repeated = [*trials[:-1], replace(trials[0], number=99)]
    assert importance(repeated, SPACE) is None


def test_failed_trials_and_other_batch_sizes_do_not_count_but_those_cut_early_do() -> None:
    trials = searched(SPACE, FEWEST, by_buckets)
    failed = replace(trials[0], state="failed", value=None, failure="crashed")
    assert importance([failed, *trials[1:]], SPACE) is None
    assert importance([replace(trials[0], stage="batch"), *trials[1:]], SPACE) is None
    assert importance([replace(trials[0], state="pruned"), *trials[1:]], SPACE) is not None


def test_where_all_are_equally_fast_nothing_mattered() -> None:
    assert importance(searched(SPACE, 30, lambda *_: 100.0), SPACE) is None


def test_a_parameter_that_was_never_varied_is_not_told() -> None:
    trials = searched(SPACE, 30, by_buckets)
    held = [replace(t, parameters={**t.parameters, "NCCL_ALGO": None}) for t in trials]
    found = importance(held, SPACE)
    assert found is not None and "NCCL_ALGO" not in found and "bucket_cap_mb" in found


def test_a_value_that_did_nothing_is_null_in_the_record() -> None:
    """Though null is none of the parameter's own values."""
    switch = {"target": "ddp", "default": False, "choices": [False, True]}
    space = space_of({**PARAMETERS, "gradient_as_bucket_view": switch})
    trials = searched(space, 30, by_buckets)
    unset = {**trials[3].parameters, "gradient_as_bucket_view": None}
    found = importance([*trials, replace(trials[3], number=30, parameters=unset)], space)
    assert found is not None and "gradient_as_bucket_view" in found


def test_optuna_is_loaded_only_where_there_is_enough_to_go_by() -> None:
    code = (
        "import sys\n"
        "from types import SimpleNamespace\n"
        "from nccltune.study.importance import importance\n"
        "assert importance([], SimpleNamespace(parameters=())) is None\n"
        "assert 'optuna' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
