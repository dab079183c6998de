"""The Gaussian process in a process of its own: what it proposes, and how it starts and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from nccltune.errors import StudyError
from nccltune.study.sampling import gp
from nccltune.study.sampling.gp import STARTUP_TRIALS, GpSampler
from nccltune.study.sampling.gp_child import remembered

SPACE: dict[str, BaseDistribution] = {
    "places": IntDistribution(0, 9),
    "size": IntDistribution(1, 64, log=True),
    "word": CategoricalDistribution([None, "Ring", "Tree"]),
    "switch": CategoricalDistribution([False, True]),
}


def speed(c: Mapping[str, Any]) -> float:
    return 100.0 - (c["places"] - 6) ** 2 + 5 * (c["word"] == "Tree") - abs(c["size"] - 20) / 10


def search(study: optuna.Study, trials: int) -> list[dict[str, Any]]:
    for _ in range(trials):
        trial = study.ask(fixed_distributions=SPACE)
        study.tell(trial, speed(trial.params))
    return [dict(trial.params) for trial in study.trials]


def study_of(sampler: GpSampler, trials: list[optuna.trial.FrozenTrial] | None = None) -> Any:
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.add_trials(trials or [])
    return study


def pid_of(sampler: GpSampler) -> int:
    assert sampler._child is not None
    return sampler._child.pid


def is_gone(pid: int) -> bool:
    """Waits for it; the test's own time limit is the bound."""
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.02)
    return True


@pytest.fixture
def sampler() -> Iterator[GpSampler]:
    made = GpSampler(seed=5)
    yield made
    made.close()


def test_it_proposes_what_is_fast_and_the_tuner_has_no_torch(sampler: GpSampler) -> None:
    study = study_of(sampler)
    search(study, STARTUP_TRIALS)
    assert sampler._child is None  # nothing is started for random trials
    search(study, 12)
    values = [trial.value for trial in study.trials]
    drawn, proposed = values[:STARTUP_TRIALS], values[STARTUP_TRIALS:]
    assert sum(proposed) / len(proposed) > sum(drawn) / len(drawn)
    assert max(proposed) > max(drawn)
    code = (
        "import sys, nccltune.study.sampling.gp\n"
        "assert 'optuna' in sys.modules and 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_the_same_seed_and_trials_give_the_same_proposals_resumed_or_not(
    sampler: GpSampler,
) -> None:
    first = study_of(sampler)
    search(first, 10)
    whole = search(first, 3)
    again = GpSampler(seed=5)
    resumed = study_of(again, first.trials[:10])
    assert search(resumed, 3) == whole
    again.close()
    assert search(study_of(GpSampler(seed=6)), 3) != whole[:3]  # random ones, by another seed


def test_only_new_trials_are_told_and_those_that_run_are_known(
    sampler: GpSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    ask = gp._Child.ask

    def counted(child: gp._Child, request: Mapping[str, Any]) -> dict[str, Any]:
        told.append((len(request["trials"]), len(request["running"])))
        return ask(child, request)

    monkeypatch.setattr(gp._Child, "ask", counted)
    study = study_of(sampler)
    search(study, STARTUP_TRIALS + 2)
    waiting = [study.ask(fixed_distributions=SPACE) for _ in range(3)]
    assert told == [(STARTUP_TRIALS, 0), (1, 0), (1, 0), (0, 1), (0, 2)]
    assert len({tuple(trial.params.values()) for trial in waiting}) == 3
    study.tell(waiting[0], state=TrialState.FAIL)  # says nothing
    study.tell(waiting[1], 90.0)
    study.ask(fixed_distributions=SPACE)
    assert told[-1] == (1, 1)


@pytest.mark.slow
def test_trials_that_end_in_another_order_are_the_same_trials(sampler: GpSampler) -> None:
    study = study_of(sampler)
    search(study, STARTUP_TRIALS + 1)
    waiting = [study.ask(fixed_distributions=SPACE) for _ in range(2)]
    study.tell(waiting[1], speed(waiting[1].params))
    study.ask(fixed_distributions=SPACE)  # told of the second, before the first
    study.tell(waiting[0], speed(waiting[0].params))
    proposed = study.ask(fixed_distributions=SPACE).params
    again = GpSampler(seed=5)
    resumed = optuna.create_study(direction="maximize", sampler=again)
    resumed.add_trials(study.trials[:-1])
    assert resumed.ask(fixed_distributions=SPACE).params == proposed
    again.close()


@pytest.mark.parametrize(("direction", "best"), [("maximize", 3000), ("minimize", 0)])
def test_of_very_many_trials_the_best_and_the_newest_are_remembered(
    direction: str, best: int
) -> None:
    speeds = [(7 * n) % 3001 for n in range(3001)]
    ended = [{"number": n, "value": float(value)} for n, value in enumerate(speeds)]
    found = remembered(ended, direction)
    assert len(found) == 400 and found[-100:] == ended[-100:]
    assert best in [told["value"] for told in found]
    assert [told["number"] for told in found] == sorted(told["number"] for told in found)
    assert remembered(ended[:400], direction) == ended[:400]


@pytest.mark.slow
def test_a_sampler_goes_from_one_study_to_another(sampler: GpSampler) -> None:
    one, other = study_of(sampler), study_of(sampler)
    search(one, 10)
    pid = pid_of(sampler)
    search(other, 10)
    assert pid_of(sampler) != pid and is_gone(pid)
    alone = GpSampler(seed=5)
    assert [t.params for t in other.trials] == search(study_of(alone), 10)
    alone.close()


def test_a_parameter_that_is_left_out_is_no_part_of_proposals(sampler: GpSampler) -> None:
    study = study_of(sampler)
    search(study, 10)
    fewer = {name: d for name, d in SPACE.items() if name != "word"}
    trial = study.ask(fixed_distributions=fewer)
    assert trial.params.keys() == fewer.keys()


def test_one_that_is_killed_is_an_error_that_says_what_to_do(sampler: GpSampler) -> None:
    study = study_of(sampler)
    whole = search(study, 10)
    os.kill(pid_of(sampler), signal.SIGKILL)
    child = sampler._child
    assert child is not None
    with pytest.raises(StudyError) as error:
        child.ask({"seed": 0})
    assert str(error.value) == (
        "--sampler gp: the process of the Gaussian process ended by signal 9: choose another "
        "--sampler, guided or tpe; what was measured is kept"
    )
    assert len(search(study, 1)) == len(whole) + 1  # by a new one


def test_one_that_cannot_start_says_why(
    tmp_path: Path, sampler: GpSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"No module named 'torch'\" >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(gp.sys, "executable", str(python))
    study = study_of(sampler)
    with pytest.raises(
        StudyError, match=r"exit code 1 \(No module named 'torch'\): choose another"
    ):
        search(study, STARTUP_TRIALS + 1)


def test_one_that_does_not_answer_is_ended(
    sampler: GpSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_of(sampler)
    search(study, 10)
    pid = pid_of(sampler)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(gp, "_ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(gp, "_CLOSE_SECONDS", 0.2)
    with pytest.raises(StudyError, match="did not answer within 0 s: choose another --sampler"):
        search(study, 1)
    assert is_gone(pid)


def test_closing_ends_it_and_closing_again_does_nothing(sampler: GpSampler) -> None:
    search(study_of(sampler), 9)
    pid = pid_of(sampler)
    sampler.close()
    sampler.close()
    assert is_gone(pid)


def test_it_ends_with_a_tuner_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, signal, optuna\n"
        "from test_study_sampling_gp import *\n"
        "sampler = GpSampler(seed=1)\n"
        "search(study_of(sampler), 9)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(pid_of(sampler)))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": here}, timeout=120
    )
    assert done.returncode == -signal.SIGKILL
    assert is_gone(int((tmp_path / "pid").read_text()))
