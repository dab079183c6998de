"""The loop: exactly so many trials, nothing twice, every end of it on record."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from study_jobs import (
    DDP,
    PRESETS,
    Asked,
    FormulaLauncher,
    Listener,
    favours_buckets,
    run_study,
    search_in,
    space_of,
)

from nccltune.errors import Interrupted, StudyError
from nccltune.launch.protocol import Failure, Limits
from nccltune.launch.stopping import StopFlag
from nccltune.space import key
from nccltune.study.folder import StudyPaths, locked
from nccltune.study.measuring import _without
from nccltune.study.store import Store

SPACE = space_of(presets=PRESETS)


def some_fail(asked: Asked) -> float | Failure:
    """Ring fails in NCCL, buffers of 1 MiB run out of memory."""
    if "ring" in asked.env.get("NCCL_ALGO", "").rpartition(":")[2]:
        return Failure("nccl_error", "DistBackendError: NCCL error", rank=1, tail=("a", "b"))
    if asked.env.get("NCCL_BUFFSIZE") == "1048576":
        return Failure("out_of_memory", "CUDA out of memory", rank=0)
    return favours_buckets(asked)


@pytest.fixture
def paths(tmp_path: Path) -> StudyPaths:
    return StudyPaths(tmp_path / "study")


@pytest.mark.parametrize("trials", [1, 2, 13])
def test_exactly_so_many_trials_failed_ones_included(paths: StudyPaths, trials: int) -> None:
    launcher, listener = FormulaLauncher(some_fail), Listener()
    with locked(paths):
        search = search_in(paths, launcher, SPACE, trials, listener=listener)
        assert search.run() == "trials"
    assert launcher.all_closed
    # A failure in ranks that had measured before was asked for twice; the last counts.
    last = {asked.message["id"]: asked for asked in launcher.asked}
    assert len(last) == trials
    assert sum(launcher.asked_by_group) == len(launcher.asked)
    assert listener.begun == list(range(trials))
    store = Store(paths)
    assert [t.number for t in store.trials] == list(range(trials))
    assert listener.ended == store.trials == search.store.trials
    assert len({key(t.parameters) for t in store.trials}) == trials
    assert [m.id for m in store.measurements] == [f"m{n:04d}" for n in range(trials)]
    # A launch is a group that was opened.
    assert [m.launch for m in store.measurements] == [
        launcher.groups.index(asked.group) for asked in last.values()
    ]
    if trials == 13:
        failed = {t.origin: t.failure for t in store.trials if t.state == "failed"}
        assert failed["preset ring"] == "nccl_error"
        assert [a.message["id"] for a in launcher.asked].count("m0002") == 2  # the preset
        twice = len(launcher.asked) - trials
        assert 1 <= twice <= len([t for t in store.trials if t.state == "failed"])
        assert listener.messages == trials + twice


def test_what_was_measured_is_on_record(paths: StudyPaths) -> None:
    launcher = FormulaLauncher(some_fail)
    with locked(paths):
        search_in(paths, launcher, SPACE, 3).run()
    baseline, buckets, ring = Store(paths).measurements
    assert (baseline.origin, baseline.state, baseline.value) == ("baseline", "complete", 100.0)
    assert baseline.configuration == SPACE.baseline
    assert baseline.effective == {
        "env": {},
        "ddp": {},
        "loader": {"num_workers": 2, "pin_memory": True, "persistent_workers": True},
        "batch_size": 64,
    }
    assert baseline.result is not None and baseline.result["samples_per_second"] == 100.0
    assert baseline.utilization == (90.0, 80.0)
    assert {"start": 1.0, "measure": 2.0}.items() <= dict(baseline.seconds).items()
    assert set(baseline.seconds) == {"start", "measure", "close", "other"}
    assert baseline.seconds["close"] == 0.0
    assert baseline.seconds["other"] >= 0
    assert buckets.effective["ddp"] == {"bucket_cap_mb": 100}
    assert ring.state == "failed" and ring.value is None and ring.result is None
    assert ring.failure == {
        "kind": "nccl_error",
        "message": "DistBackendError: NCCL error",
        "rank": 1,
        "log": None,
        "tail": ["a", "b"],
    }
    assert ring.effective["env"] == {"NCCL_ALGO": "ring,tree;allreduce:ring"}


def test_logs_are_recorded_relative_to_the_study(paths: StudyPaths) -> None:
    def fails_later(asked: Asked) -> float | Failure:
        log = str(paths.launch_logs(0).absolute() / "rank1.log")
        return Failure("crashed", "gone", 1, log) if asked.ddp else 100.0

    listener = Listener()
    with locked(paths):
        search_in(paths, FormulaLauncher(fails_later), SPACE, 2, listener=listener).run()
    failure = Store(paths).measurements[1].failure
    assert failure is not None and failure["log"] == "logs/launch-0000/rank1.log"
    # The user is shown where it is.
    assert listener.logs == [None, paths.launch_logs(0) / "rank1.log"]
    assert str(paths.folder) not in paths.measurements.read_text()


def test_records_name_neither_the_host_nor_where_they_lie(paths: StudyPaths) -> None:
    host = os.uname().nodename
    where = paths.folder.absolute()

    def fails_later(asked: Asked) -> float | Failure:
        text = f"no connection from {host} to {host}:4711, see {where}/logs/x.log"
        return (
            Failure("crashed", text, 1, None, (f"[{host}] {where}", "fine")) if asked.ddp else 1.0
        )

    with locked(paths):
        search_in(paths, FormulaLauncher(fails_later), SPACE, 2).run()
    failure = Store(paths).measurements[1].failure
    assert failure is not None
    assert failure["message"] == "no connection from HOST to HOST:4711, see ./logs/x.log"
    assert list(failure["tail"]) == ["[HOST] .", "fine"]


def test_nor_where_a_relative_folder_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    relative = StudyPaths(Path("studies") / "s")

    def fails_later(asked: Asked) -> float | Failure:
        log = f"{tmp_path}/studies/s/logs/launch-0000/rank1.log"
        return Failure("crashed", f"see {log}", 1, log, (log,)) if asked.ddp else 1.0

    with locked(relative):
        search_in(relative, FormulaLauncher(fails_later), SPACE, 2).run()
    failure = Store(relative).measurements[1].failure
    assert failure is not None
    assert failure["message"] == "see ./logs/launch-0000/rank1.log"
    assert failure["log"] == "logs/launch-0000/rank1.log"
    assert str(tmp_path) not in relative.measurements.read_text()


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("connect to box failed", "connect to HOST failed"),
        ("[box]:29500, box.cluster", "[HOST]:29500, HOST.cluster"),
        ("a sandbox, a box2 and boxes", "a sandbox, a box2 and boxes"),  # other words
        ("/w/s/logs and /w/s", "./logs and ."),
        ("fine", "fine"),
    ],
)
def test_only_the_hosts_own_name_is_replaced(text: str, public: str) -> None:
    assert _without(text, {"/w/s": ".", "/tmp/x-1": "worker"}, {"box": "HOST"}) == public


def test_a_host_name_with_signs_is_one_name() -> None:
    hosts = {"gpu-7.lab": "HOST"}
    assert _without("at gpu-7.lab, gpu-7xlab", {}, hosts) == "at HOST, gpu-7xlab"


def test_nodes_are_numbered_in_records() -> None:
    told = "rank 1 on node n1 has NCCL_ALGO set, and n0 has not; n12 is fine"
    public = "rank 1 on node 1 has NCCL_ALGO set, and node 0 has not; n12 is fine"
    assert _without(told, {}, {"n0": "node 0", "n1": "node 1"}) == public


def test_a_node_is_numbered_by_whatever_it_is_called() -> None:
    words = {"gpu3": "node 1", "gpu3.cluster.lab": "node 1", "10.0.0.3": "node 1", "gpu2": "HOST"}
    told = "connect to gpu3.cluster.lab [10.0.0.3]:29500 failed on node gpu3; 10.0.0.31, gpu2"
    public = "connect to node 1 [node 1]:29500 failed on node 1; 10.0.0.31, HOST"
    assert _without(told, {}, words) == public


def test_what_the_ranks_are_asked(paths: StudyPaths) -> None:
    space = space_of(
        presets=[{"name": "ctas", "source": "a/b#1",
                  "values": {"NCCL_MIN_CTAS": 4, "NCCL_MAX_CTAS": 16,
                             "NCCL_BUFFSIZE": 8388608}}]
    )  # fmt: skip
    launcher = FormulaLauncher(favours_buckets)
    with locked(paths):
        search_in(paths, launcher, space, 2).run()
    first, second = launcher.asked
    assert first.message["type"] == "measure"
    assert (first.message["id"], second.message["id"]) == ("m0000", "m0001")
    assert second.env == {
        "NCCL_BUFFSIZE": "8388608", "config.min_ctas": "4", "config.max_ctas": "16",
    }  # fmt: skip
    assert second.message["communicator_config"] == {"min_ctas": 4, "max_ctas": 16}
    assert second.group.env == {"NCCL_BUFFSIZE": "8388608"}
    assert second.message["workload"]["model"] == "resnet50"
    # The baseline has no incumbent and constants for limits; then both come from what was seen.
    assert first.limits == Limits()
    assert first.message["settings"]["cut_below"] is None
    assert second.message["settings"]["cut_below"] == 100.0
    assert second.limits == Limits(start=60.0, build=30.0, first_step=30.0, check=30.0, window=20.0)
    json.dumps(second.message)


def test_candidates_compare_with_the_best_so_far_but_larger_batches_with_none(
    paths: StudyPaths,
) -> None:
    launcher = FormulaLauncher(favours_buckets)
    with locked(paths):
        search_in(paths, launcher, SPACE, 12).run()
    best = 0.0
    for asked, trial in zip(launcher.asked, Store(paths).trials, strict=True):
        incumbent = asked.message["settings"]["cut_below"]
        assert incumbent == (best or None if trial.stage == "search" else None)
        if trial.stage == "search" and trial.state == "complete":
            best = max(best, trial.value or 0.0)


def test_a_trial_cut_early_is_pruned_and_keeps_its_number(paths: StudyPaths) -> None:
    def slow_buckets(asked: Asked) -> float:
        return 40.0 if asked.ddp else 100.0

    with locked(paths):
        search_in(paths, FormulaLauncher(slow_buckets), SPACE, 2).run()
    assert [(t.state, t.value) for t in Store(paths).trials] == [
        ("complete", 100.0),
        ("pruned", 40.0),
    ]


def raising(error: BaseException, which: int) -> Callable[[Asked], float]:
    count = iter(range(1000))

    def speed(asked: Asked) -> float:
        if next(count) == which:
            raise error
        return favours_buckets(asked)

    return speed


@pytest.mark.parametrize("error", [Interrupted("stop"), KeyboardInterrupt(), OSError("gone")])
@pytest.mark.parametrize("done", [1, 5])
def test_going_on_after_an_end_in_the_middle_repeats_nothing(
    paths: StudyPaths, error: BaseException, done: int
) -> None:
    first = FormulaLauncher(raising(error, done))
    with locked(paths), pytest.raises(type(error)):
        search_in(paths, first, SPACE, 10).run()
    assert first.all_closed
    assert len(first.asked) == done + 1
    assert len(Store(paths).trials) == done

    second = FormulaLauncher(favours_buckets)
    with locked(paths):
        assert search_in(paths, second, SPACE, 10).run() == "trials"
    assert len(second.asked) == 10 - done
    trials = Store(paths).trials
    assert [t.number for t in trials] == list(range(10))
    assert len({key(t.parameters) for t in trials}) == 10
    assert sum(t.origin == "baseline" for t in trials) == 1


def test_a_finished_study_measures_nothing_and_a_longer_one_goes_on(paths: StudyPaths) -> None:
    for trials, measured in ((6, 6), (6, 0), (3, 0), (9, 3)):
        launcher = FormulaLauncher(favours_buckets)
        with locked(paths):
            assert search_in(paths, launcher, SPACE, trials).run() == "trials"
        assert len(launcher.asked) == measured
        assert launcher.opened <= measured
    assert len(Store(paths).trials) == 9


def test_an_interrupted_study_ends_with_the_trials_of_one_that_was_not(tmp_path: Path) -> None:
    # What does not come from the sampler: baseline, presets, the shares of the stages.
    whole = run_study(tmp_path / "a", favours_buckets, SPACE, 12)
    parts = StudyPaths(tmp_path / "b")
    for trials in range(1, 13):
        with locked(parts):
            search_in(parts, FormulaLauncher(favours_buckets), SPACE, trials).run()
    one, other = Store(whole).trials, Store(parts).trials
    assert [t.origin for t in one[:3]] == [t.origin for t in other[:3]]
    # --trials grew by one each time, so the stages alternate; their shares are kept.
    assert sum(t.stage == "batch" for t in other) == sum(t.stage == "batch" for t in one) == 3


def test_a_stop_that_was_asked_for_starts_nothing_more(paths: StudyPaths) -> None:
    stop = StopFlag()

    def speed(asked: Asked) -> float:
        stop.requested = len(launcher.asked) == 3
        return favours_buckets(asked)

    launcher = FormulaLauncher(speed)
    with locked(paths), pytest.raises(Interrupted):
        search_in(paths, launcher, SPACE, 10, stop=stop).run()
    assert len(Store(paths).trials) == len(launcher.asked) == 3
    assert launcher.all_closed


def test_a_failing_baseline_ends_the_study_and_leaves_no_trial(paths: StudyPaths) -> None:
    failure = Failure("nccl_error", "unhandled system error", 1, "logs/x/rank1.log", ("one", "two"))
    launcher = FormulaLauncher(lambda _asked: failure)
    with locked(paths), pytest.raises(StudyError) as caught:
        search_in(paths, launcher, SPACE, 10).run()
    assert str(caught.value).startswith(
        "the baseline itself failed (nccl_error): unhandled system error\n  | one\n  | two\n"
    )
    assert "see logs/x/rank1.log" in str(caught.value)
    assert launcher.opened == len(launcher.asked) == 1
    assert launcher.all_closed
    assert Store(paths).trials == []
    # Once the cause is gone the same command measures it.
    with locked(paths):
        search_in(paths, FormulaLauncher(favours_buckets), SPACE, 2).run()
    assert [t.origin for t in Store(paths).trials] == ["baseline", "preset buckets"]


def test_no_trial_begins_that_would_end_after_the_time_budget(paths: StudyPaths) -> None:
    launcher = FormulaLauncher(favours_buckets, seconds={"start": 1000.0})
    with locked(paths):
        assert search_in(paths, launcher, SPACE, 10, seconds=900.0).run() == "time"
    assert len(launcher.asked) == 1  # the baseline always fits
    with locked(paths):
        assert search_in(paths, launcher, SPACE, 2, seconds=1100.0).run() == "trials"
    assert len(launcher.asked) == launcher.opened == 2


def test_a_space_that_is_used_up_is_an_end_of_its_own(
    paths: StudyPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nccltune.study.planner._ATTEMPTS", 40)
    space = space_of({"bucket_cap_mb": {**DDP, "choices": [None, 10]}})
    launcher = FormulaLauncher(favours_buckets)
    with locked(paths):
        assert search_in(paths, launcher, space, 10).run() == "exhausted"
    assert len(launcher.asked) == 2


def test_a_larger_batch_gets_more_time_for_its_steps(paths: StudyPaths) -> None:
    space = space_of(fix={"batch_size": 640})
    with locked(paths):
        search = search_in(paths, FormulaLauncher(favours_buckets), space, 1)
        search.run()
        given = search.measurer.effective(space.baseline)
        assert given.batch_size == 640
        search.budget.trials = 2
        search.run()
    launcher = search.measurer.launcher
    assert isinstance(launcher, FormulaLauncher)
    # The window of the baseline lasts 1 s: 12 x 1 s x 640/64.
    assert launcher.asked[1].limits.window == 120.0
    assert launcher.asked[1].limits.build == 30.0


def test_the_store_that_a_search_leaves_is_what_another_reads(tmp_path: Path) -> None:
    paths = run_study(tmp_path / "s", some_fail, SPACE, 9)
    first, second = Store(paths), Store(paths, repair=False)
    assert first.trials == second.trials
    for trial in first.trials:
        own = first.measurement(trial)
        assert own.id in trial.measurements
        assert (own.trial, own.value, own.state) == (trial.number, trial.value, trial.state)
        assert dict(own.configuration) == dict(trial.parameters)
        assert trial.seconds == round(sum(own.seconds.values()), 3)
