"""Optuna's journal follows the records, whatever became of it."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from study_jobs import (
    DDP,
    ENV,
    Asked,
    FormulaLauncher,
    favours_buckets,
    planner_of,
    run_study,
    search_in,
    space_of,
)

from nccltune.launch.protocol import Failure
from nccltune.space import Parameter
from nccltune.study.batch_sizes import stage_parameters
from nccltune.study.folder import StudyPaths, locked
from nccltune.study.proposals import Proposer
from nccltune.study.records import Trial
from nccltune.study.sampling.choosing import Choice
from nccltune.study.sampling.coding import distribution
from nccltune.study.sampling.estimates import as_proposed
from nccltune.study.store import Store

SPACE = space_of()
COUNT = 16  # 12 at the user's batch, 4 at larger ones


def told(journal: Path) -> dict[str, list[FrozenTrial]]:
    """What Optuna itself finds in the journal, by stage."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        storage = JournalStorage(JournalFileBackend(str(journal)))
        return {
            name: optuna.load_study(study_name=name, storage=storage).get_trials()
            for name in ("search", "batch")
        }


def agrees(journal: Path, trials: list[Trial], waiting: int = 0) -> bool:
    """Every trial on record is there once, finished, with its value; what is not finished are no
    more than `waiting` proposals of a stage that the search ended before.
    """
    found = told(journal)
    for stage in found.values():
        open_ones = [t for t in stage if not t.state.is_finished()]
        assert len(open_ones) <= waiting
        assert not any("trial" in t.user_attrs for t in open_ones)
    values = {
        (stage, t.user_attrs["trial"]): t.value
        for stage, several in found.items()
        for t in several
        if "trial" in t.user_attrs
    }
    count = sum("trial" in t.user_attrs for several in found.values() for t in several)
    assert count == len(values)
    wanted = {(t.stage, t.number): t.value for t in trials}
    return values.keys() == wanted.keys() and all(
        values[which] == value for which, value in wanted.items() if value is not None
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> StudyPaths:
    return run_study(tmp_path_factory.mktemp("study") / "s", favours_buckets, SPACE, COUNT)


@pytest.fixture
def study(recorded: StudyPaths, tmp_path: Path) -> tuple[StudyPaths, list[Trial]]:
    """A copy of a study of 16 trials."""
    paths = StudyPaths(tmp_path / "s")
    shutil.copytree(recorded.folder, paths.folder)
    trials = Store(paths).trials
    assert len(trials) == COUNT
    # Of four proposals one is measured.
    assert agrees(paths.journal, trials, waiting=3)
    return paths, trials


def reopened(paths: StudyPaths, trials: list[Trial]) -> Proposer:
    return Proposer(paths.journal, stage_parameters(SPACE), trials, Choice("tpe", SPACE, 0))


def test_a_journal_that_agrees_is_left_alone(study: tuple[StudyPaths, list[Trial]]) -> None:
    paths, trials = study
    reopened(paths, trials)  # proposals that waited when the search ended are gone now
    before = paths.journal.read_bytes()
    reopened(paths, trials)
    assert paths.journal.read_bytes().startswith(before)
    assert agrees(paths.journal, trials)


def test_a_deleted_journal_is_made_again(study: tuple[StudyPaths, list[Trial]]) -> None:
    paths, trials = study
    before = told(paths.journal)
    paths.journal.unlink()
    reopened(paths, trials)
    assert agrees(paths.journal, trials)
    for stage, several in told(paths.journal).items():
        own = [t for t in before[stage] if "trial" in t.user_attrs]
        own.sort(key=lambda t: t.user_attrs["trial"])  # a proposal may have waited
        assert [(t.params, t.value) for t in several] == [(t.params, t.value) for t in own]


@pytest.mark.parametrize("damage", [b"garbage\n", b"\x00\x00\x00\x00\n", b'{"op_code": 99}\n'])
def test_a_damaged_journal_is_made_again(
    study: tuple[StudyPaths, list[Trial]], damage: bytes
) -> None:
    paths, trials = study
    lines = paths.journal.read_bytes().splitlines(keepends=True)
    lines[5] = damage
    paths.journal.write_bytes(b"".join(lines))
    reopened(paths, trials)
    assert agrees(paths.journal, trials)


def test_a_journal_behind_the_records_catches_up(study: tuple[StudyPaths, list[Trial]]) -> None:
    # Killed after the record was on disk and before Optuna was told.
    paths, trials = study
    lines = paths.journal.read_bytes().splitlines(keepends=True)
    for kept in (len(lines) - 1, len(lines) - 4, len(lines) // 2, 1, 0):
        paths.journal.write_bytes(b"".join(lines[:kept]))
        reopened(paths, trials)
        assert agrees(paths.journal, trials)


def test_a_journal_ahead_of_the_records_is_cut_back(study: tuple[StudyPaths, list[Trial]]) -> None:
    # As after restoring the records from a backup.
    paths, trials = study
    for left in (COUNT - 1, 3, 0):
        reopened(paths, trials[:left])
        assert agrees(paths.journal, trials[:left])


def test_a_trial_left_running_by_a_kill_is_gone(study: tuple[StudyPaths, list[Trial]]) -> None:
    paths, trials = study
    proposer = reopened(paths, trials)
    assert agrees(paths.journal, trials)
    proposer.ask("search")
    proposer.ask("batch")
    states = [t.state for several in told(paths.journal).values() for t in several]
    assert states.count(TrialState.RUNNING) == 2
    reopened(paths, trials)
    assert agrees(paths.journal, trials)


def test_a_lock_left_by_a_kill_does_not_hold_up(study: tuple[StudyPaths, list[Trial]]) -> None:
    paths, trials = study
    lock = paths.journal.with_name("optuna.journal.lock")
    lock.symlink_to(paths.journal)
    reopened(paths, trials)
    assert not lock.is_symlink()


def test_a_journal_made_again_leads_on(study: tuple[StudyPaths, list[Trial]]) -> None:
    paths, trials = study
    paths.journal.unlink()
    launcher = FormulaLauncher(favours_buckets)
    with locked(paths):
        search_in(paths, launcher, SPACE, COUNT + 4).run()
    assert len(launcher.asked) == 4
    assert agrees(paths.journal, Store(paths).trials, waiting=3)
    assert Store(paths).trials[:COUNT] == trials


def test_a_failed_trial_is_told_as_the_worst_seen(tmp_path: Path) -> None:
    values = [100.0, 80.0, None, 120.0, 60.0, None, 90.0, None]

    def speed(asked: Asked) -> float | Failure:
        value = values[int(asked.message["id"][1:])]
        return Failure("crashed", "rank 1 was ended") if value is None else value

    paths = run_study(
        tmp_path / "s", speed, space_of({"bucket_cap_mb": BUCKETS, "NCCL_ALGO": ALGO}), 8
    )
    found = sorted(told(paths.journal)["search"], key=lambda t: t.user_attrs.get("trial", -1))
    own = [t for t in found if "trial" in t.user_attrs]
    assert [t.value for t in own] == [100.0, 80.0, 80.0, 120.0, 60.0, 60.0, 90.0, 60.0]
    assert {t.state for t in own} == {TrialState.COMPLETE}
    kept = [
        "complete",
        "complete",
        "failed",
        "complete",
        "complete",
        "failed",
        "complete",
        "failed",
    ]
    assert [t.user_attrs["state"] for t in own] == kept
    # The same from the records alone.
    paths.journal.unlink()
    planner_of(paths, space_of({"bucket_cap_mb": BUCKETS, "NCCL_ALGO": ALGO}), Store(paths).trials)
    again = told(paths.journal)["search"]
    assert [t.value for t in again] == [100.0, 80.0, 80.0, 120.0, 60.0, 60.0, 90.0, 60.0]


BUCKETS = {**DDP, "choices": [None, 5, 10, 25, 50, 100, 250]}
ALGO = {**ENV, "choices": [None, "Ring", "Tree"]}


def parameter(name: str, target: str, **more: object) -> Parameter:
    return Parameter.model_validate({"name": name, "target": target, **more})


@pytest.mark.parametrize(
    ("searched", "value", "expected"),
    [
        (parameter("NCCL_ALGO", "env", choices=[None, "Ring"], default="Ring"), None, None),
        (parameter("NCCL_ALGO", "env", choices=["Tree", "Ring"], default="Ring"), "Tree", "Tree"),
        (parameter("NCCL_ALGO", "env", choices=["Tree", "Ring"], default="Ring"), None, "Ring"),
        (parameter("batch_size", "batch", choices=[96, 64], default=None), None, 96),
        (parameter("NCCL_MIN_CTAS", "env", range={"low": 2, "high": 8}, default=4), 7, 7),
        (parameter("NCCL_MIN_CTAS", "env", range={"low": 2, "high": 8}, default=4), None, 4),
        (parameter("num_workers", "loader", range={"low": 2, "high": 8}, default=None), None, 2),
    ],
)
def test_what_does_nothing_stands_for_something_that_can_be_proposed(
    searched: Parameter, value: object, expected: object
) -> None:
    assert as_proposed(searched, value) == expected  # type: ignore[arg-type]


def test_what_does_nothing_in_a_configuration_can_be_told_and_told_again(tmp_path: Path) -> None:
    only_ring = {"when": {"param": {"NCCL_ALGO": ["Ring"]}}}
    space = space_of(
        {
            "NCCL_ALGO": ALGO,
            "NCCL_MIN_CTAS": {
                "target": "env", "range": {"low": 2, "high": 8}, "default": 4, **only_ring,
            },
            "NCCL_NTHREADS": {
                "target": "env", "choices": [64, 128], "default": 128, **only_ring,
            },
        },
        presets=[{"name": "tree", "source": "a/b#1", "values": {"NCCL_ALGO": "Tree"}}],
    )  # fmt: skip
    paths = run_study(tmp_path / "s", favours_buckets, space, 6)
    trials = Store(paths).trials
    # Neither the baseline nor the preset has Ring.
    for trial in trials[:2]:
        assert (trial.parameters["NCCL_MIN_CTAS"], trial.parameters["NCCL_NTHREADS"]) == (None,) * 2
    assert agrees(paths.journal, trials, waiting=3)
    paths.journal.unlink()
    planner_of(paths, space, trials)
    assert agrees(paths.journal, trials)
    again = told(paths.journal)["search"]
    assert len(again) == 6
    assert [t.params for t in again[:2]] == [
        {"NCCL_ALGO": None, "NCCL_MIN_CTAS": 4, "NCCL_NTHREADS": 128},
        {"NCCL_ALGO": "Tree", "NCCL_MIN_CTAS": 4, "NCCL_NTHREADS": 128},
    ]


def test_rejected_proposals_are_told_and_do_not_count(tmp_path: Path) -> None:
    proposer = Proposer(tmp_path / "journal", stage_parameters(SPACE), [], Choice("tpe", SPACE, 0))
    known, illegal = proposer.ask("search"), proposer.ask("search")
    proposer.reject(known, 70.0)
    proposer.reject(illegal, None)
    found = told(tmp_path / "journal")["search"]
    assert [t.value for t in found] == [70.0, 70.0]
    assert all("trial" not in t.user_attrs for t in found)
    assert agrees(tmp_path / "journal", [])


def test_stages_are_studies_of_their_own(study: tuple[StudyPaths, list[Trial]]) -> None:
    # Samples/s at different batch sizes do not compare.
    paths, trials = study
    found = told(paths.journal)
    own = {
        stage: [t for t in several if "trial" in t.user_attrs] for stage, several in found.items()
    }
    assert (len(own["search"]), len(own["batch"])) == (12, 4)
    assert all(set(t.params) == {"batch_size", "num_workers"} for t in found["batch"])
    assert all("batch_size" not in t.params for t in found["search"])
    assert sum(t.stage == "batch" for t in trials) == 4


def test_distributions() -> None:
    def of(name: str, target: str, **more: object) -> object:
        return distribution(Parameter.model_validate({"name": name, "target": target, **more}))

    assert of("NCCL_ALGO", "env", choices=[None, "Ring"]) == CategoricalDistribution([None, "Ring"])
    workers = {"low": 0, "high": 32}
    assert of("num_workers", "loader", range=workers) == IntDistribution(0, 32)
    stepped = {"low": 0, "high": 32, "step": 4}
    assert of("num_workers", "loader", range=stepped) == IntDistribution(0, 32, step=4)
    log = {"low": 1, "high": 64, "log": True}
    assert of("NCCL_MIN_CTAS", "env", range=log, default=1) == IntDistribution(1, 64, log=True)
    floats = {"low": 0.5, "high": 64.0, "type": "float"}
    assert of("bucket_cap_mb", "ddp", range=floats, default=25.0) == FloatDistribution(0.5, 64.0)
