"""Searches of several tuners on one study, with a launcher without ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from sharing_jobs import wanted
from study_jobs import (
    DDP,
    PARAMETERS,
    PRESETS,
    Asked,
    FormulaLauncher,
    Listener,
    Speed,
    definition,
    measurement,
    planner_of,
    search_in,
    space_of,
)

from nccltune.cli.studying import _ours_to_confirm, _write
from nccltune.errors import Interrupted, UsageError
from nccltune.launch.cluster import Node
from nccltune.launch.parts import Followers, Split
from nccltune.launch.protocol import Failure
from nccltune.launch.slurm import Allocation
from nccltune.space import ResolvedSpace, key
from nccltune.study.folder import StudyPaths, locked
from nccltune.study.partners import Elsewhere
from nccltune.study.records import AGAIN
from nccltune.study.search import Search
from nccltune.study.shared_storage import open_storage
from nccltune.study.sharing import Exchange
from nccltune.study.store import Store
from nccltune.study.summary import Summary
from nccltune.study.together import Team, confirmed_elsewhere, refuse_shared, take_over

SPACE = space_of(PARAMETERS, presets=PRESETS)
SMALL = space_of({"bucket_cap_mb": {**DDP, "choices": [None, 10, 50, 100]}})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nccltune.study.search.POLL_SECONDS", 0.05)
    monkeypatch.setattr("nccltune.study.planner._ATTEMPTS", 40)


class Tuner:
    """One with its own folder, on the study in a journal file."""

    def __init__(self, folder: Path, name: str, space: ResolvedSpace, lost: float = 60.0) -> None:
        self.paths = StudyPaths(folder / name)
        self.paths.folder.mkdir(exist_ok=True)
        self.name, self.space = name, space
        shared = open_storage(str(folder / "shared.journal"))
        self.exchange = Exchange(
            shared, "s", definition(space), name, name, beat_seconds=0.1, lost_seconds=lost
        )
        self.listener = Listener()

    def search(
        self,
        speed: Speed,
        trials: int,
        *,
        seconds: float | None = None,
        sampler: str = "tpe",
    ) -> Search:
        seed = int.from_bytes(self.name.encode(), "big")
        found = search_in(
            *(self.paths, FormulaLauncher(speed), self.space, trials),
            listener=self.listener,
            seed=seed,
            seconds=seconds,
            planner=planner_of(
                self.paths, self.space, self.store.trials, seed=seed, sampler=sampler
            ),
        )
        found.partners = Team(self.exchange, found.store)
        return found

    @property
    def store(self) -> Store:
        return Store(self.paths, repair=False)


@pytest.fixture
def tuner(tmp_path: Path) -> Iterator[Callable[..., Tuner]]:
    made: list[Tuner] = []

    def one_more(name: str, space: ResolvedSpace = SPACE, lost: float = 60.0) -> Tuner:
        made.append(Tuner(tmp_path, name, space, lost))
        return made[-1]

    yield one_more
    for each in made:
        each.exchange.close()


def takes_a_moment(asked: Asked) -> float | Failure:
    time.sleep(0.05)
    if asked.env.get("NCCL_ALGO", "").endswith("tree"):
        return Failure("crashed", "gone", 0, "/var/log/rank0.log", ("a",))
    cap = asked.ddp.get("bucket_cap_mb") or 25
    return 100.0 * asked.batch_size / 64 + cap / 10 + asked.loader["num_workers"]


@pytest.mark.parametrize("sampler", ["tpe", "guided"])
def test_together_they_run_the_trials_of_one_search(
    tuner: Callable[..., Tuner], sampler: str
) -> None:
    tuners = [tuner(name) for name in "abc"]
    with ThreadPoolExecutor(3) as pool:
        searches = [each.search(takes_a_moment, 20, sampler=sampler) for each in tuners]
        endings = list(pool.map(Search.run, searches))
    assert endings == ["trials"] * 3
    stores = [each.store for each in tuners]
    for each, store in zip(tuners, stores, strict=True):
        # Everybody has the whole study, the baseline first.
        assert len(store.trials) == 20
        assert store.trials[0].number == 0 and store.trials[0].origin == "baseline"
        assert len({trial.number for trial in store.trials}) == 20
        new = [trial for trial in store.trials if trial.origin != AGAIN]
        assert len({key(trial.parameters) for trial in new}) == len(new)
        assert [m.id for m in store.measurements] == [f"m{n:04d}" for n in range(20)]
        own = {m.trial for m in store.measurements if m.tuner is None}
        assert own == {m.trial for m in store.measurements if m.trial in each.listener.begun}
        assert len(each.listener.ended) == 20
        failed = [m for m in store.measurements if m.state == "failed"]
        assert all((m.failure or {})["log"] is None for m in failed if m.tuner is not None)
    ways = [{t.number: (key(t.parameters), t.state, t.value) for t in s.trials} for s in stores]
    assert ways[0] == ways[1] == ways[2]
    begun = [number for each in tuners for number in each.listener.begun]
    assert sorted(begun) == sorted(ways[0])
    # Larger batches get their share of all trials, not of each tuner's.
    assert 0 < sum(trial.stage == "batch" for trial in stores[0].trials) <= 5
    # One after the other had the baseline, and the rest was shared out.
    assert sum(0 in each.listener.begun for each in tuners) == 1
    assert all(each.listener.begun for each in tuners)


def test_one_that_comes_late_measures_nothing(tuner: Callable[..., Tuner]) -> None:
    first = tuner("a")
    assert first.search(takes_a_moment, 5).run() == "trials"
    late = tuner("b")
    search = late.search(takes_a_moment, 5)
    search.confirm = True  # not even its own noise: others have confirmed, or will
    assert search.run() == "trials"
    assert late.listener.begun == [] and late.listener.noises == []
    assert [t.number for t in late.store.trials] == [t.number for t in first.store.trials]
    assert {m.tuner for m in late.store.measurements} == {"a"}
    # Asked for more, it goes on from there.
    assert late.search(takes_a_moment, 7).run() == "trials"
    assert len(late.store.trials) == 7 and len(late.listener.begun) == 2


def test_each_tuner_learns_its_own_noise(tuner: Callable[..., Tuner]) -> None:
    first = tuner("a")
    assert first.search(takes_a_moment, 1).run() == "trials"
    second = tuner("b")
    search = second.search(takes_a_moment, 4)
    search.confirm = True
    assert search.run() == "trials"
    # The baseline's first launch was another's, on other GPUs.
    assert len(search.store.noise()) == 6
    assert sum(m.purpose == "noise" for m in search.store.measurements) == 6
    first_again = first.search(takes_a_moment, 4)
    first_again.confirm = True
    assert first_again.run() == "trials"
    assert len(first_again.store.noise()) == 1
    first_again.complete_noise()  # it is to confirm
    assert len(first_again.store.noise()) == 6


def test_a_tuner_that_is_lost_leaves_its_configuration_to_the_others(
    tuner: Callable[..., Tuner],
) -> None:
    first = tuner("a", SMALL)
    assert first.search(takes_a_moment, 1).run() == "trials"
    lost = tuner("lost", SMALL)
    (ten,) = [c for c in configurations(SMALL) if c["bucket_cap_mb"] == 10]
    assert lost.exchange.claim(wanted(ten), 9) is not None
    lost.exchange._heart._over.set()  # as a kill does: nothing more is heard of it
    other = tuner("b", SMALL, lost=5.0)
    assert other.search(takes_a_moment, 4).run() == "trials"
    assert {t.parameters["bucket_cap_mb"] for t in other.store.trials} == {None, 10, 50, 100}
    assert "waiting for a trial of other tuners" in other.listener.notes


def configurations(space: ResolvedSpace) -> list[dict[str, object]]:
    return [{**space.baseline, "bucket_cap_mb": cap} for cap in (10, 50, 100)]


def test_what_was_held_for_lost_does_not_count(tuner: Callable[..., Tuner]) -> None:
    slow, watcher = tuner("slow", SMALL), tuner("w", SMALL, lost=0.5)

    def stalls(asked: Asked) -> float:
        if asked.ddp and not slow.exchange._heart._over.is_set():
            slow.exchange._heart._over.set()
            until = time.monotonic() + 60
            while watcher.exchange.elsewhere() and time.monotonic() < until:
                time.sleep(0.05)
        return 100.0

    assert slow.search(stalls, 4).run() == "trials"
    assert len(slow.store.trials) == 4
    assert len({key(t.parameters) for t in slow.store.trials}) == 4
    assert any("does not count" in note for note in slow.listener.notes)
    numbers = [trial.number for trial in slow.store.trials]
    assert numbers == sorted(numbers) and numbers[-1] > 3  # one number was lost


def test_an_interrupted_search_leaves_its_trial_to_the_others(
    tuner: Callable[..., Tuner],
) -> None:
    first = tuner("a", SMALL)

    def interrupted(asked: Asked) -> float:
        if asked.ddp:
            raise Interrupted("stop")
        return 100.0

    with pytest.raises(Interrupted):
        first.search(interrupted, 4).run()
    first.exchange.close()
    second = tuner("b", SMALL)
    assert second.exchange.elsewhere() == []
    assert second.search(takes_a_moment, 4).run() == "trials"
    assert len(second.store.trials) == 4


def test_a_trial_published_but_not_recorded_comes_back(tuner: Callable[..., Tuner]) -> None:
    one = tuner("a", SMALL)
    assert one.search(takes_a_moment, 2).run() == "trials"
    (cap,) = [c for c in configurations(SMALL) if c["bucket_cap_mb"] == 100]
    number = one.exchange.claim(wanted(cap), 9)
    assert number is not None
    made = measurement(number, 7.0, id="m0002", launch=9, configuration=cap)
    assert one.exchange.publish(number, made)  # and killed here
    search = one.search(takes_a_moment, 3)
    assert search.run() == "trials"
    back = search.store.measurements[-1]
    assert back == replace(made, configuration=back.configuration)
    assert (back.tuner, back.launch) == (None, 9)


def test_out_of_time_the_confirmation_is_left_to_those_that_go_on(
    tuner: Callable[..., Tuner],
) -> None:
    one, other = tuner("a", SMALL), tuner("b", SMALL)
    assert one.search(takes_a_moment, 1).run() == "trials"
    busy = configurations(SMALL)[0]
    number = other.exchange.claim(wanted(busy), 9)
    assert number is not None
    search = one.search(takes_a_moment, 9, seconds=0.001)
    assert search.run() == "time"
    team = Team(one.exchange, search.store)
    assert team.leave_to(out_of_time=True) == (
        "other tuners go on; the last one confirms the result"
    )
    other.exchange.withdraw(number)
    assert team.leave_to(out_of_time=True) is None and team.confirms
    late = Team(other.exchange, other.store)
    assert late.leave_to(out_of_time=False) == (
        "tuner a confirms the result: `nccltune show a` there has it, and this command, given "
        "again later"
    )
    assert not late.confirms


def test_without_time_or_a_verdict_the_confirmation_is_left_to_others(
    tuner: Callable[..., Tuner],
) -> None:
    one, late = tuner("a", SMALL), tuner("b", SMALL)
    assert one.search(takes_a_moment, 4).run() == "trials"
    search = late.search(takes_a_moment, 4, seconds=0.001)
    search.confirm = True
    assert search.run() == "trials"
    team, other = Team(late.exchange, search.store), Team(one.exchange, one.store)
    assert not _ours_to_confirm(search, team, "trials")
    assert len(late.listener.refused) == 1 and not team.confirms
    search.confirm, search.budget.reserved = True, 1.0
    assert not _ours_to_confirm(search, team, "trials")
    assert late.listener.noises == []  # no launch fits either
    assert other.leave_to(out_of_time=False) is None and other.confirms
    summary = Summary.of(other._store, definition(SMALL).to_dict())
    assert summary.own is not None and summary.own.trial is not None
    _write(summary, other, finished=True)
    assert team.others_result() is None


def test_a_leader_confirms_though_one_that_it_started_was_just_lost(
    tuner: Callable[..., Tuner], tmp_path: Path
) -> None:
    leader, lost = tuner("a", SMALL, lost=2.0), tuner("lost", SMALL)
    assert leader.search(takes_a_moment, 1).run() == "trials"
    assert lost.exchange.claim(wanted(configurations(SMALL)[0]), 9) is not None
    lost.exchange._heart._over.set()  # as a kill does
    search = leader.search(takes_a_moment, 9)
    search.confirm = True
    alone = Allocation(job="77", nodes=(Node("n1", "10.0.0.1", "n1"),), here=0)
    followers = Followers(Split({1: alone}, 1), (), {}, tmp_path, Path, search.stop)
    team = Team(leader.exchange, search.store, followers)
    assert team.elsewhere()
    assert _ours_to_confirm(search, team, "time") and team.confirms


def test_a_confirmation_waits_until_no_other_measures(
    tuner: Callable[..., Tuner], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tuner("a", SMALL), tuner("b", SMALL)
    search = one.search(takes_a_moment, 2)
    assert search.run() == "trials"
    monkeypatch.setattr("nccltune.study.search.QUIET_SECONDS", 0.2)
    monkeypatch.setattr("nccltune.study.search.QUIET_LAUNCHES", 0.0)
    assert not search.wait_for_quiet()  # the other is at its noise, which is nobody's trial
    monkeypatch.setattr("nccltune.study.search.QUIET_SECONDS", 60.0)
    with ThreadPoolExecutor(1) as pool:
        quiet = pool.submit(search.wait_for_quiet)
        time.sleep(0.3)
        assert not quiet.done()
        other.exchange.at_work(False)
        assert quiet.result(60)
    assert "waiting until no other tuner measures any more" in one.listener.notes


def test_one_that_was_started_by_another_leaves_the_confirmation_to_it(
    tuner: Callable[..., Tuner],
) -> None:
    one = tuner("a", SMALL)
    search = one.search(takes_a_moment, 2)
    assert search.run() == "trials"
    team = Team(one.exchange, search.store, led=True)
    left = team.leave_to(out_of_time=False)
    assert left == "the tuner that has started this one confirms the result"
    assert not team.confirms


def test_the_result_of_one_is_taken_over_by_the_others(tuner: Callable[..., Tuner]) -> None:
    one, other = tuner("a", SMALL), tuner("b", SMALL)
    search = one.search(takes_a_moment, 2)
    assert search.run() == "trials"
    team = Team(one.exchange, search.store)
    assert team.leave_to(out_of_time=False) is None
    one.paths.best_yaml.write_text("of one\n")
    team.publish_result("Faster than the defaults")
    assert team.others_result() is None  # it is its own
    search = other.search(takes_a_moment, 2)
    assert search.run() == "trials"
    late = Team(other.exchange, search.store)
    told = "Confirmed by tuner a (study a): Faster than the defaults."
    assert late.leave_to(out_of_time=False) == told
    other.paths.best_batch_yaml.write_text("of an earlier run\n")
    result = late.others_result()
    assert result is not None
    take_over(result, other.paths)
    assert other.paths.best_yaml.read_text() == "of one\n"
    assert not other.paths.best_batch_yaml.exists()
    kept = confirmed_elsewhere(other.paths, 2)
    assert kept is not None and kept["verdict"] == "Faster than the defaults"
    assert confirmed_elsewhere(other.paths, 3) is None  # more was measured since
    other.paths.others_result.write_text("[]")
    assert confirmed_elsewhere(other.paths, 2) is None


def test_another_storage_is_no_place_to_go_on(tuner: Callable[..., Tuner], tmp_path: Path) -> None:
    one = tuner("a", SMALL)
    assert one.search(takes_a_moment, 3).run() == "trials"
    shared = open_storage(str(tmp_path / "other.journal"))
    elsewhere = Exchange(shared, "s", definition(SMALL), "a", "a")
    with pytest.raises(UsageError, match="lacks trials 0, 1, 2, which this study has"):
        Team(elsewhere, one.store)
    elsewhere.close()


def test_a_shared_study_does_not_go_on_alone(tmp_path: Path) -> None:
    paths = StudyPaths(tmp_path / "s")
    with locked(paths):
        refuse_shared(paths)
        paths.tuner.write_text("0a\n")
        refuse_shared(paths)  # nothing was measured yet
        assert not paths.tuner.exists()
        paths.tuner.write_text("0a\n")
        paths.trials.write_text("")
        with pytest.raises(UsageError, match="is shared with other tuners; give the --storage"):
            refuse_shared(paths)


@pytest.mark.parametrize("sampler", ["tpe", "guided"])
def test_what_others_measure_is_not_proposed_but_not_known_either(
    tmp_path: Path, sampler: str
) -> None:
    paths = StudyPaths(tmp_path / "s")
    paths.folder.mkdir()
    planner = planner_of(paths, SMALL, [], sampler=sampler)
    search = search_in(paths, FormulaLauncher(takes_a_moment), SMALL, 1, planner=planner)
    search.run()
    budget = search.budget
    budget.trials = 9
    busy = [Elsewhere(n, "b", "search", c) for n, c in enumerate(configurations(SMALL)[:2], 1)]
    planner.elsewhere = busy
    following = planner.next(search.store.trials, budget, lambda _: False)
    assert following is not None and following.configuration["bucket_cap_mb"] == 100
    planner.hold(following)  # another was first
    planner.elsewhere = [*busy, Elsewhere(3, "b", "search", configurations(SMALL)[2])]
    more = planner.next(search.store.trials, budget, lambda _: False)
    assert more is None or more.origin == AGAIN  # the guided sampler looks at its best once more
    # One was finished; the others were lost, and come back here.
    other = measurement(1, 50.0, id="m0001", configuration=configurations(SMALL)[0])
    planner.tell(search.store.add(other), None)
    planner.elsewhere = []
    found = []
    for _ in range(6):
        following = planner.next(search.store.trials, budget, lambda _: False)
        if following is not None and following.origin != AGAIN:
            found.append(following.configuration["bucket_cap_mb"])
    assert sorted(found) == [50, 100]
    planner.close()


def test_a_search_that_waits_can_be_stopped(tuner: Callable[..., Tuner]) -> None:
    first = tuner("a", SMALL)
    baseline = dict(SMALL.baseline)
    assert first.exchange.claim(wanted(baseline, origin="baseline"), 9) == 0
    search = tuner("b", SMALL).search(takes_a_moment, 4)
    threading.Timer(0.5, lambda: setattr(search.stop, "requested", True)).start()
    with pytest.raises(Interrupted):
        search.run()
    assert search.store.trials == []


def test_a_space_that_is_used_up_ends_all_their_searches_together(
    tuner: Callable[..., Tuner],
) -> None:
    first, second = tuner("a", SMALL), tuner("b", SMALL)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(first.search(takes_a_moment, 9).run)
        until = time.monotonic() + 60
        waits = "waiting for other tuners, which still find something to try"
        while waits not in first.listener.notes and time.monotonic() < until:
            time.sleep(0.05)
        assert not one.done()  # the other has not even begun
        assert second.search(takes_a_moment, 9).run() == "exhausted"
        assert one.result(60) == "exhausted"
    assert second.listener.begun == []
    assert len(first.store.trials) == len(second.store.trials) == 4
