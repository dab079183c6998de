"""Many trials told to Optuna's journal at once."""

from __future__ import annotations

import os
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from study_jobs import space_of

from nccltune.study.batch_sizes import stage_parameters
from nccltune.study.journal import Journal
from nccltune.study.proposals import Proposer
from nccltune.study.records import Trial
from nccltune.study.sampling.choosing import Choice

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

SPACE = space_of()


def fsyncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    true, calls = os.fsync, list[int]()

    def fsync(file: int) -> None:
        calls.append(file)
        true(file)

    monkeypatch.setattr(os, "fsync", fsync)
    return calls


def trials(count: int) -> list[Trial]:
    return [
        Trial(n, "search", "sampler", SPACE.baseline, "complete", 100.0 + n, None, 1.0)
        for n in range(count)
    ]


def test_the_disk_is_waited_for_as_often_for_many_trials_as_for_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []
    for count in (10, 40):
        journal = tmp_path / f"{count}.journal"
        with monkeypatch.context() as patch:
            calls = fsyncs(patch)
            made = Choice("tpe", SPACE, 0)
            proposer = Proposer(journal, stage_parameters(SPACE), trials(count), made)
            waits.append(len(calls))
        storage = JournalStorage(JournalFileBackend(str(journal)))
        told = optuna.load_study(study_name="search", storage=storage).get_trials()
        assert [t.value for t in told] == [100.0 + n for n in range(count)]
        proposal = proposer.ask("search")  # goes on in the same journal
        following = Trial(count, "search", "sampler", SPACE.baseline, "complete", 1.0, None, 1.0)
        proposer.tell(following, proposal)
        storage = JournalStorage(JournalFileBackend(str(journal)))
        again = optuna.load_study(study_name="search", storage=storage).get_trials()
        assert [t.value for t in again] == [*(t.value for t in told), 1.0]
    assert waits[0] == waits[1]


def test_what_is_told_is_known_before_it_is_written(tmp_path: Path) -> None:
    backend = Journal(tmp_path / "journal")
    study = optuna.create_study(storage=JournalStorage(backend), direction="maximize")
    study.add_trial(optuna.create_trial(value=1.0))
    before = (tmp_path / "journal").read_bytes()
    with backend.at_once():
        study.add_trial(optuna.create_trial(value=2.0))
        assert [t.value for t in study.get_trials()] == [1.0, 2.0]
        assert (tmp_path / "journal").read_bytes() == before
    study.add_trial(optuna.create_trial(value=3.0))
    assert [t.value for t in study.get_trials()] == [1.0, 2.0, 3.0]
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "journal")))
    found = optuna.load_study(study_name=study.study_name, storage=storage)
    assert [t.value for t in found.get_trials()] == [1.0, 2.0, 3.0]


def test_nothing_is_written_where_telling_fails(tmp_path: Path) -> None:
    backend = Journal(tmp_path / "journal")
    study = optuna.create_study(storage=JournalStorage(backend), direction="maximize")
    before = (tmp_path / "journal").read_bytes()
    with pytest.raises(ZeroDivisionError), backend.at_once():
        study.add_trial(optuna.create_trial(value=1.0))
        raise ZeroDivisionError
    assert (tmp_path / "journal").read_bytes() == before
