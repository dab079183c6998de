"""What a study of thousands of trials must not cost more than one of hundreds: work that is the
same for every trial is done once, and what nobody looks at stays on the disk.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.importance import PedAnovaImportanceEvaluator
from study_jobs import definition, measurement, result, space_of

from nccltune.errors import StudyError
from nccltune.space import Parameter, Value
from nccltune.study import ped_anova
from nccltune.study.confirm import Confirmation
from nccltune.study.folder import StudyPaths
from nccltune.study.importance import importance
from nccltune.study.ped_anova import divergences
from nccltune.study.records import Measurement, Trial
from nccltune.study.sampling import estimates
from nccltune.study.sampling.coding import coded
from nccltune.study.sampling.estimates import estimated
from nccltune.study.sampling.model import Codes, Floats, Posterior
from nccltune.study.store import Store
from nccltune.study.summary import Summary

SPACE = space_of()
SEARCHED = [p for p in SPACE.parameters if p.target != "batch"]


@pytest.fixture
def paths(tmp_path: Path) -> StudyPaths:
    return StudyPaths(tmp_path)


def values_of(parameter: Parameter) -> Sequence[Value]:
    if parameter.range is None:
        return parameter.choices or ()
    return range(int(parameter.range.low), int(parameter.range.high) + 1)


def configurations(count: int) -> list[dict[str, Value]]:
    """Different ones, of which the first is the baseline."""
    found = [dict(SPACE.baseline)]
    for number in range(1, count):
        values, left = dict(SPACE.baseline), number
        for parameter in SEARCHED:
            choices = values_of(parameter)
            left, place = divmod(left, len(choices))
            values[parameter.name] = choices[place]
        found.append(values)
    return found


def measured(count: int) -> list[Measurement]:
    return [
        measurement(n, 100.0 + n % 7, configuration=values)
        for n, values in enumerate(configurations(count))
    ]


def write(paths: StudyPaths, measurements: list[Measurement]) -> StudyPaths:
    lines = {paths.measurements: measurements, paths.trials: [Trial.of(m) for m in measurements]}
    for path, records in lines.items():
        path.write_text("".join(json.dumps(r.to_dict()) + "\n" for r in records))
    return paths


def with_windows(number: int, count: int) -> Measurement:
    found = result(100.0)
    windows = [{**found["windows"][0], "response": i / 7} for i in range(count)]
    return measurement(number, result={**found, "windows": windows})


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """The first arguments of the calls of a function from now on."""
    calls: list[Any] = []
    true: Callable[..., Any] = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return true(*arguments, **options)

    monkeypatch.setattr(owner, name, call)
    return calls


def test_windows_of_the_search_stay_on_the_disk(paths: StudyPaths) -> None:
    held = []
    for windows in (2, 40):
        write(paths, [with_windows(n, windows) for n in range(100)])
        tracemalloc.start()
        store = Store(paths)
        held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert len(store.measurements) == 100
    assert held[1] < 1.3 * held[0]


def test_windows_are_there_for_whoever_asks(paths: StudyPaths) -> None:
    written = [with_windows(n, 3 + n) for n in range(3)]
    store = Store(write(paths, written))
    assert store.measurements == [Measurement.from_dict(m.to_dict()) for m in written]
    for found, true in zip(store.measurements, written, strict=True):
        assert found.result is not None and true.result is not None
        windows = found.result["windows"]
        assert (len(windows), windows[1], windows[-1:]) == (
            len(true.result["windows"]), true.result["windows"][1], true.result["windows"][-1:],
        )  # fmt: skip
        assert [w["response"] for w in windows] == [w["response"] for w in true.result["windows"]]
        assert json.loads(json.dumps(found.to_dict())) == json.loads(json.dumps(true.to_dict()))
    assert store.measurements[2] != written[1]


def test_windows_that_are_gone_are_told(paths: StudyPaths) -> None:
    store = Store(write(paths, [with_windows(n, 3) for n in range(2)]))
    found = store.measurements[1].result
    paths.measurements.write_bytes(b"{}\n")
    assert found is not None
    with pytest.raises(StudyError, match=r"measurements\.jsonl: was changed meanwhile; restore"):
        list(found["windows"])


def test_the_garbage_collector_is_back_after_reading(paths: StudyPaths) -> None:
    assert gc.isenabled()
    Store(write(paths, measured(3)))
    assert gc.isenabled()
    paths.measurements.write_bytes(b"null\n")
    with pytest.raises(StudyError):
        Store(paths)
    assert gc.isenabled()


def test_a_result_that_is_none_is_damage(paths: StudyPaths) -> None:
    write(paths, measured(3))
    lines = [json.loads(line) for line in paths.measurements.read_text().splitlines()]
    lines[2]["result"] = "fast"
    paths.measurements.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(StudyError, match=r"line 3 is not a record of ours"):
        Store(paths)


def test_values_are_coded_once_not_once_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, run in (
        (estimates, lambda found: estimated([Trial.of(m) for m in found], found, SPACE)),
        (ped_anova, lambda found: importance([Trial.of(m) for m in found], SPACE)),
    ):
        count = []
        for trials in (100, 200):
            with monkeypatch.context() as patch:
                calls = counted(patch, module, "as_proposed")
                assert run(measured(trials))
                count.append(len(calls))
        values = sum(len(values_of(p)) for p in SEARCHED)
        assert max(count) <= 3 * values


def test_the_model_is_asked_for_a_part_of_the_trials_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = measured(280)
    trials = [Trial.of(m) for m in found]
    with monkeypatch.context() as patch:
        patch.setattr(estimates, "_AT_ONCE", 1000)
        at_once = estimated(trials, found, SPACE)
    asked = []
    predict = Posterior.predict

    def recorded(model: Posterior, codes: Codes) -> tuple[Floats, Floats]:
        asked.append(len(codes))
        return predict(model, codes)

    monkeypatch.setattr(Posterior, "predict", recorded)
    assert estimated(trials, found, SPACE) == at_once
    # the first are those that the model is fitted to
    assert sum(asked[1:]) == 280 and max(asked) < 280


def test_the_same_importance_as_of_a_study_that_was_told() -> None:
    points = configurations(150)
    speeds = [100.0 + (n * n) % 31 for n in range(150)]
    study = optuna.create_study(direction="maximize")
    for point, speed in zip(points, speeds, strict=True):
        codings = {p.name: coded(p, everything=False) for p in SEARCHED}
        study.add_trial(
            optuna.create_trial(
                params={name: coding.to_code(point[name]) for name, coding in codings.items()},
                distributions={name: coding.distribution for name, coding in codings.items()},
                value=speed,
            )
        )
    true = PedAnovaImportanceEvaluator(target_quantile=0.3).evaluate(study)
    assert divergences(points, speeds, SEARCHED, 0.3) == true


def test_importance_copies_no_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    count = []
    for trials in (100, 200):
        with monkeypatch.context() as patch:
            calls = counted(patch, copy, "deepcopy")
            assert importance([Trial.of(m) for m in measured(trials)], SPACE)
            count.append(len(calls))
    assert count[0] == count[1]


def test_what_was_never_confirmed_is_not_looked_for_trial_by_trial(
    paths: StudyPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = counted(monkeypatch, Confirmation, "of_trial")
    write(paths, measured(60))
    definition(SPACE).write(paths)
    summary = Summary.read(paths)
    summary.check()
    assert summary.own is not None and summary.own.verdict is None
    assert len(asked) <= 1


def test_the_measurement_of_a_trial_is_found_at_once(paths: StudyPaths) -> None:
    store = Store(write(paths, measured(5)))
    looked = iter(store.measurements)
    store.measurements = looked  # type: ignore[assignment]  # so that a search uses it up
    assert [store.measurement(t).id for t in store.trials] == [f"m000{n}" for n in range(5)]
    assert len(list(looked)) == 5


THREADS = """
import os, sys
before = dict(os.environ)
from nccltune.study.sampling.linear_algebra import on_one_thread
on_one_thread()
assert dict(os.environ) == before
import numpy
numpy.linalg.inv(numpy.eye(400))
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core: one thread in any case")
def test_linear_algebra_keeps_to_one_thread_unless_the_user_says_otherwise() -> None:
    for set_by_user, threads in ((None, "1"), ("2", "2")):
        env = {n: v for n, v in os.environ.items() if not n.endswith("_NUM_THREADS")}
        env |= {} if set_by_user is None else {"OPENBLAS_NUM_THREADS": set_by_user}
        done = subprocess.run(
            [sys.executable, "-c", THREADS], env=env, capture_output=True, text=True, timeout=120
        )
        assert (done.returncode, done.stdout.strip()) == (0, threads), done.stderr
