"""Worker groups in the search: shared where the process environment is the same, always closed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from study_jobs import (
    DDP,
    ENV,
    PARAMETERS,
    Asked,
    FormulaGroup,
    FormulaLauncher,
    Listener,
    Script,
    search_in,
    space_of,
)

from nccltune.errors import Interrupted, StudyError
from nccltune.launch.protocol import Failure, Outcome
from nccltune.launch.stopping import StopFlag
from nccltune.nccl.site import SiteVariable
from nccltune.study.folder import StudyPaths, locked
from nccltune.study.measuring import Measurer
from nccltune.study.records import Measurement
from nccltune.study.search import Search
from nccltune.study.store import Store

SPACE = space_of(
    {
        "NCCL_BUFFSIZE": {**ENV, "choices": [None, 1048576, 2097152, 4194304, 8388608]},
        "NCCL_ALGO": {**ENV, "choices": [None, "Ring", "Tree"]},
        "NCCL_MIN_CTAS": {**ENV, "choices": [None, 4, 16]},
        "NCCL_MAX_CTAS": {**ENV, "choices": [None, 4, 16]},
        "bucket_cap_mb": {**DDP, "choices": [None, *range(1, 400)]},
        "num_workers": {"target": "loader", "range": {"low": 0, "high": 8}, "default": None},
    }
)
MIB = 1 << 20
CRASH = Failure("crashed", "rank 1 was ended by SIGSEGV", 1)
Values = Mapping[str, Any]


def values(**changes: Any) -> dict[str, Any]:
    return {**SPACE.baseline, **changes}


def buckets(*sizes: int) -> list[Values]:
    return [values(bucket_cap_mb=size) for size in sizes]


def constant(_asked: Asked) -> float:
    return 100.0


def failing(*which: int) -> Callable[[Asked], float | Failure]:
    """The measurements with these numbers fail."""

    def speed(asked: Asked) -> float | Failure:
        return CRASH if int(asked.message["id"][1:]) in which else 100.0

    return speed


@pytest.fixture
def paths(tmp_path: Path) -> StudyPaths:
    return StudyPaths(tmp_path / "study")


def scripted(
    paths: StudyPaths,
    proposals: list[Values],
    speed: Callable[[Asked], float | Failure] = constant,
    trials: int | None = None,
    **more: Any,
) -> tuple[FormulaLauncher, Script, list[Measurement]]:
    """A search that proposes these, to its end; what it opened, what it proposed, its records."""
    script, launcher = Script(proposals, SPACE.baseline), FormulaLauncher(speed)
    with locked(paths):
        search_in(
            paths, launcher, SPACE, trials or len(proposals) + 1, planner=script.planner(SPACE),
            **more,
        ).run()  # fmt: skip
    assert launcher.all_closed
    return launcher, script, Store(paths).measurements


def launches(measurements: list[Measurement]) -> list[int]:
    return [m.launch for m in measurements]


def test_configurations_with_the_same_process_environment_share_a_launch(
    paths: StudyPaths,
) -> None:
    # Algorithm, limits on CTAS, DDP and loader settings are all set in live ranks.
    launcher, _, found = scripted(
        paths,
        [
            values(bucket_cap_mb=10),
            values(NCCL_ALGO="Ring"),
            values(NCCL_MIN_CTAS=4, NCCL_MAX_CTAS=16),
            values(num_workers=6),
            values(NCCL_ALGO="Tree", bucket_cap_mb=50),
        ],
    )
    assert launches(found) == [0] * 6
    assert [(g.env, g.log_dir) for g in launcher.groups] == [({}, paths.launch_logs(0))]
    assert [m.id for m in found] == [f"m{n:04d}" for n in range(6)]
    assert [a.message["id"] for a in launcher.asked] == [m.id for m in found]


def test_another_process_environment_opens_a_group_of_its_own(paths: StudyPaths) -> None:
    launcher, _, found = scripted(
        paths,
        [
            values(NCCL_BUFFSIZE=8 * MIB),
            values(NCCL_BUFFSIZE=8 * MIB, bucket_cap_mb=10),
            values(NCCL_MIN_CTAS=4),  # without a maximum it needs new processes
            values(NCCL_MIN_CTAS=4, NCCL_ALGO="Ring"),
        ],
    )
    assert launches(found) == [0, 1, 1, 2, 2]
    assert [g.env for g in launcher.groups] == [
        {}, {"NCCL_BUFFSIZE": str(8 * MIB)}, {"NCCL_MIN_CTAS": "4"},
    ]  # fmt: skip
    assert [g.log_dir for g in launcher.groups] == [paths.launch_logs(n) for n in range(3)]


def test_of_some_proposals_those_that_fit_the_live_group_come_first(paths: StudyPaths) -> None:
    first, second = values(NCCL_BUFFSIZE=8 * MIB), values(NCCL_BUFFSIZE=8 * MIB, bucket_cap_mb=10)
    launcher, script, found = scripted(paths, [first, *buckets(20), second, *buckets(30, 40)])
    # The two with a buffer size wait for each other, then share a group.
    assert [m.configuration for m in found] == [
        SPACE.baseline, *buckets(20, 30, 40), first, second,
    ]  # fmt: skip
    assert launches(found) == [0, 0, 0, 0, 1, 1]
    assert launcher.opened == 2
    assert script.told == {1: 1, 3: 2, 4: 3, 0: 4, 2: 5}


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        # A failure in ranks that measured before is repeated in new ones, which end with it too.
        ((1,), [0, 1, 2, 2, 2, 2]),
        ((2, 3), [0, 0, 1, 2, 3, 3]),
        ((5,), [0, 0, 0, 0, 0, 1]),
        ((1, 2, 3, 4, 5), [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_group_that_failed_measures_nothing_more(
    paths: StudyPaths, which: tuple[int, ...], expected: list[int]
) -> None:
    launcher, _, found = scripted(paths, buckets(10, 20, 30, 40, 50), failing(*which))
    assert launches(found) == expected
    assert launcher.opened == expected[-1] + 1
    assert [m.trial for m in found if m.state == "failed"] == list(which)


def ids(launcher: FormulaLauncher) -> list[str]:
    return [asked.message["id"] for asked in launcher.asked]


def test_a_failure_of_ranks_that_measured_before_counts_only_when_it_comes_again(
    paths: StudyPaths,
) -> None:
    failures = iter([CRASH])

    def once(asked: Asked) -> float | Failure:
        return next(failures, 100.0) if asked.message["id"] == "m0002" else 100.0

    launcher, _, found = scripted(paths, buckets(10, 20, 30), once)
    assert [(m.state, m.value) for m in found] == [("complete", 100.0)] * 4
    assert launches(found) == [0, 0, 1, 1]
    assert ids(launcher) == ["m0000", "m0001", "m0002", "m0002", "m0003"]
    one, other = launcher.asked[2:4]
    assert {**one.message} == {**other.message}
    assert launcher.asked_by_group == [3, 2]


def test_it_is_repeated_once(paths: StudyPaths) -> None:
    failures = iter([CRASH, Failure("timeout", "silent", 0)])

    def twice(asked: Asked) -> float | Failure:
        return next(failures, 100.0) if asked.message["id"] == "m0001" else 100.0

    launcher, _, found = scripted(paths, buckets(10, 20), twice)
    assert ids(launcher) == ["m0000", "m0001", "m0001", "m0002"]
    assert [m.state for m in found] == ["complete", "failed", "complete"]
    assert found[1].failure is not None and found[1].failure["kind"] == "timeout"  # the second


def test_a_failure_that_came_with_the_end_of_the_host_is_not_the_configurations(
    paths: StudyPaths,
) -> None:
    sizes = [values(NCCL_BUFFSIZE=n * MIB) for n in (4, 8)]
    failures = iter([CRASH])

    def once(asked: Asked) -> float | Failure:
        return next(failures, 100.0) if asked.message["id"] == "m0001" else 100.0

    script, launcher = Script(sizes, SPACE.baseline), FormulaLauncher(once, hosts_lost=1)
    with locked(paths):
        search_in(paths, launcher, SPACE, 3, planner=script.planner(SPACE)).run()
    found = Store(paths).measurements
    assert ids(launcher) == ["m0000", "m0001", "m0001", "m0002"]
    assert [m.state for m in found] == ["complete"] * 3
    assert launches(found) == [0, 1, 2]


@pytest.mark.parametrize(
    ("held", "groups"),
    [
        ([10, 10, 10, 10, 10, 10], [6]),
        ([10, 500, 522, 522, 522, 522], [6]),  # within 512 MiB of the first
        ([10, 10, 523, 10, 10, 10], [3, 3]),
        ([600, 10, 600, 1113, 1113, 1113], [4, 2]),
    ],
)
def test_a_group_whose_memory_does_not_come_back_is_replaced(
    paths: StudyPaths, held: list[int], groups: list[int]
) -> None:
    def mib(asked: Asked) -> list[int]:
        return [10 * MIB, held[int(asked.message["id"][1:])] * MIB]

    script = Script(buckets(1, 2, 3, 4, 5), SPACE.baseline)
    launcher = FormulaLauncher(constant, held=mib)
    with locked(paths):
        search_in(paths, launcher, SPACE, 6, planner=script.planner(SPACE)).run()
    assert launcher.asked_by_group == groups
    assert launcher.all_closed


def test_every_measurement_reads_the_data_in_an_order_of_its_own(paths: StudyPaths) -> None:
    launcher, _, _ = scripted(paths, buckets(10, 20, 30))
    assert len({asked.message["data_seed"] for asked in launcher.asked}) == 4


def test_a_failure_of_new_ranks_is_recorded_at_once(paths: StudyPaths) -> None:
    sizes = [values(NCCL_BUFFSIZE=n * MIB) for n in (4, 8)]
    launcher, _, found = scripted(paths, sizes, failing(1))
    assert ids(launcher) == ["m0000", "m0001", "m0002"]
    assert [m.state for m in found] == ["complete", "failed", "complete"]
    assert launches(found) == [0, 1, 2]


def test_only_the_first_launch_of_a_run_gets_time_for_a_cold_start(paths: StudyPaths) -> None:
    scripted(paths, [])  # the baseline alone
    launcher, _, _ = scripted(paths, [values(NCCL_BUFFSIZE=n * MIB) for n in (4, 8)], trials=3)
    assert [asked.limits.start for asked in launcher.asked] == [300.0, 60.0]


def test_what_the_site_holds_is_not_given_again_and_never_changed(
    paths: StudyPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = {"NCCL_ALGO": SiteVariable("NCCL_ALGO", "Tree", "/etc/nccl.conf")}
    launcher, _, found = scripted(paths, [values(NCCL_ALGO="Ring")], site=site)
    assert [m.effective["env"] for m in found] == [{}, {}]
    assert [asked.env for asked in launcher.asked] == [{}, {}]

    whole = Measurer.effective

    def careless(measurer: Measurer, configuration: Values) -> Any:
        return replace(whole(measurer, configuration), communicator_env={"NCCL_ALGO": "Ring"})

    monkeypatch.setattr(Measurer, "effective", careless)
    other = StudyPaths(paths.folder.with_name("other"))
    launcher = FormulaLauncher(constant)
    with locked(other), pytest.raises(StudyError, match="NCCL_ALGO=Ring would override"):
        search_in(other, launcher, SPACE, 1, site=site).run()
    assert launcher.asked == []


@pytest.mark.parametrize(
    ("trials", "groups"), [(10, [10]), (11, [10, 1]), (20, [10, 10]), (25, [10, 10, 5])]
)
def test_an_eleventh_measurement_opens_a_new_group(
    paths: StudyPaths, trials: int, groups: list[int]
) -> None:
    launcher, _, found = scripted(paths, buckets(*range(1, trials)))
    assert launcher.asked_by_group == groups
    assert launches(found) == [n // 10 for n in range(trials)]
    assert [g.env for g in launcher.groups] == [{}] * len(groups)


def test_the_count_begins_anew_with_each_group(paths: StudyPaths) -> None:
    launcher, _, _ = scripted(paths, buckets(*range(1, 20)), failing(4))
    assert launcher.asked_by_group == [5, 1, 10, 5]  # the fifth once more, alone


def test_presets_share_the_baselines_group_too(paths: StudyPaths) -> None:
    presets = [
        {"name": "buckets", "source": "a/b#1", "values": {"bucket_cap_mb": 100}},
        {"name": "large", "source": "a/b#2", "values": {"NCCL_BUFFSIZE": 8 * MIB}},
        {"name": "ring", "source": "a/b#3", "values": {"NCCL_ALGO": "Ring"}},
    ]
    launcher = FormulaLauncher(constant)
    with locked(paths):
        search_in(paths, launcher, space_of(PARAMETERS, presets=presets), 4).run()
    # Their order is the file's: each is a launch dearer than need be rather than out of turn.
    assert launches(Store(paths).measurements) == [0, 0, 1, 2]
    assert launcher.all_closed


def test_one_that_fits_no_group_is_measured_once_the_live_group_is_used_up(
    paths: StudyPaths,
) -> None:
    lonely = values(NCCL_BUFFSIZE=8 * MIB)
    launcher, script, found = scripted(paths, [lonely, *buckets(*range(1, 40))], trials=30)
    # Ten in the first group, the baseline included; then it is the oldest that waits.
    assert script.told[0] == 10
    assert found[10].configuration == lonely
    assert launches(found) == [0] * 10 + [1] + [2] * 10 + [3] * 9
    assert launcher.asked_by_group == [10, 1, 10, 9]


def test_four_that_fit_no_group_wait_no_longer(paths: StudyPaths) -> None:
    lonely = [values(NCCL_BUFFSIZE=n * MIB) for n in (1, 2, 4, 8)]
    _, script, _ = scripted(paths, [*lonely, *buckets(*range(1, 40))], trials=12)
    assert script.told[0] == 1
    # The next four that wait are these three and one that suits no group of theirs.
    assert [script.told[n] for n in (1, 2, 3)] == [2, 3, 4]


@pytest.mark.parametrize("seed", range(4))
def test_no_proposal_waits_for_ever(paths: StudyPaths, seed: int) -> None:
    draw = random.Random(seed)
    sizes = [None] * draw.choice((1, 4, 12)) + [n * MIB for n in (1, 2, 4, 8)]
    proposals = [values(bucket_cap_mb=n, NCCL_BUFFSIZE=draw.choice(sizes)) for n in range(1, 110)]
    broken = {n for n in range(1, 80) if draw.random() < 0.05}
    launcher, script, found = scripted(paths, proposals, failing(*broken), trials=80)
    assert len(found) == 80
    waits = {place: trial - script.asked[place] for place, trial in script.told.items()}
    # A group measures ten at most, then the oldest is next, and no more than four wait.
    assert max(waits.values()) <= 40
    late = [place for place in range(script.asks) if place not in script.told]
    assert len(late) <= 3
    assert all(80 - script.asked[place] <= 40 for place in late)
    # And it pays: were each measured in its turn, so many groups would have been needed.
    in_turn = 1 + sum(
        one["NCCL_BUFFSIZE"] != other["NCCL_BUFFSIZE"]
        for one, other in zip(proposals[:78], proposals[1:79], strict=True)
    )
    assert launcher.opened <= in_turn + 12 + len(broken)


def test_every_group_serves_one_environment_and_at_most_ten_measurements(
    paths: StudyPaths,
) -> None:
    launcher = FormulaLauncher(failing(7, 19))
    with locked(paths):
        search_in(paths, launcher, space_of(), 40).run()  # with Optuna's own sampler
    found = Store(paths).measurements
    assert len(found) == 40
    assert max(launcher.asked_by_group) <= 10
    assert launcher.opened < 40
    assert launcher.all_closed
    for group, asked in ((a.group, a) for a in launcher.asked):
        process = {n: v for n, v in asked.env.items() if not n.startswith("config.")}
        assert group.env.items() <= process.items()
        assert set(process) - set(group.env) <= {"NCCL_ALGO"}
    numbers = launches(found)
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(launcher.opened))
    for one, other in zip(found, found[1:], strict=False):
        if one.state == "failed":
            assert other.launch == one.launch + 1


# However a search ends, and whatever raises: no group is left open.


def test_a_group_is_closed_before_the_next_is_opened(paths: StudyPaths) -> None:
    def speed(asked: Asked) -> float:
        assert [g.closed for g in launcher.groups] == [True] * (launcher.opened - 1) + [False]
        return 100.0

    launcher = FormulaLauncher(speed)
    script = Script([values(NCCL_BUFFSIZE=n * MIB) for n in (1, 2, 4, 8)], SPACE.baseline)
    with locked(paths):
        search_in(paths, launcher, SPACE, 5, planner=script.planner(SPACE)).run()
    assert launcher.opened == 5
    assert launcher.all_closed


@pytest.mark.parametrize(
    ("ending", "trials", "seconds"),
    [("trials", 3, None), ("exhausted", 40, None), ("time", 40, 5.0)],
)
def test_it_is_closed_at_each_end(
    paths: StudyPaths, ending: str, trials: int, seconds: float | None
) -> None:
    spent = {"start": 1000.0} if seconds else {"start": 1.0}
    launcher = FormulaLauncher(constant, seconds=spent)
    script = Script(buckets(10, 20, 30), SPACE.baseline)
    with locked(paths):
        search = search_in(
            paths, launcher, SPACE, trials, seconds=seconds, planner=script.planner(SPACE)
        )
        assert search.run() == ending
    assert launcher.opened == 1
    assert launcher.all_closed


ERRORS = [Interrupted("stop"), KeyboardInterrupt(), OSError("gone"), StudyError("full")]


class Faulty:
    """Makes one of the parts of a search raise at its second call."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.calls = error, 0

    def __call__(self, *_arguments: Any, **_more: Any) -> Any:
        self.calls += 1
        if self.calls == 2:
            raise self.error
        return None

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **more: Any) -> Any:
            self()
            return function(*arguments, **more)

        return wrapped


PARTS = {
    "ranks": lambda s, f: setattr(
        s.measurer.launcher, "speed", f.before(s.measurer.launcher.speed)
    ),
    "launcher": lambda s, f: setattr(
        s.measurer.launcher, "open", f.before(s.measurer.launcher.open)
    ),
    "trial begins": lambda s, f: setattr(s.reporter, "trial_begins", f),
    "progress": lambda s, f: setattr(s.reporter, "progress", f),
    "trial ends": lambda s, f: setattr(s.reporter, "trial_ends", f),
    "record": lambda s, f: setattr(s.store, "add", f.before(s.store.add)),
    "told": lambda s, f: setattr(s.planner, "tell", f.before(s.planner.tell)),
    "plan": lambda s, f: setattr(s.planner, "next", f.before(s.planner.next)),
    "stop": lambda s, f: setattr(s.stop, "check", f),
    "budget": lambda s, f: setattr(s.budget, "fits", f.before(s.budget.fits)),
}


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("part", PARTS)
def test_it_is_closed_whatever_raises(paths: StudyPaths, part: str, error: BaseException) -> None:
    script = Script(
        [values(NCCL_BUFFSIZE=n * MIB) for n in (1, 2, 4, 8)] + buckets(10, 20), SPACE.baseline
    )
    launcher = FormulaLauncher(constant)
    with locked(paths):
        search = search_in(
            paths, launcher, SPACE, 7, planner=script.planner(SPACE), listener=Listener()
        )
        PARTS[part](search, Faulty(error))
        with pytest.raises(type(error)) as caught:
            search.run()
    assert caught.value is error
    assert 1 <= launcher.opened <= 2
    assert launcher.all_closed


def test_it_is_closed_when_the_baseline_fails_and_when_a_stop_is_asked_for(
    tmp_path: Path,
) -> None:
    launcher = FormulaLauncher(lambda _asked: CRASH)
    one = StudyPaths(tmp_path / "one")
    with locked(one), pytest.raises(StudyError, match="the baseline itself failed"):
        search_in(one, launcher, SPACE, 7).run()
    assert launcher.opened == 1
    assert launcher.all_closed

    stop = StopFlag()

    def stops(asked: Asked) -> float:
        stop.requested = True
        return 100.0

    launcher, other = FormulaLauncher(stops), StudyPaths(tmp_path / "other")
    with locked(other), pytest.raises(Interrupted):
        search_in(other, launcher, SPACE, 7, stop=stop).run()
    assert launcher.opened == 1
    assert launcher.all_closed
    assert len(Store(other).trials) == 1


def test_a_search_can_be_run_again_and_opens_a_group_of_its_own(paths: StudyPaths) -> None:
    script, launcher = Script(buckets(10, 20, 30), SPACE.baseline), FormulaLauncher(constant)
    with locked(paths):
        search: Search = search_in(paths, launcher, SPACE, 2, planner=script.planner(SPACE))
        search.run()
        search.budget.trials = 4
        search.run()
        search.measurer.close()  # and once more does no harm
    assert launcher.asked_by_group == [2, 2]
    assert launches(Store(paths).measurements) == [0, 0, 1, 1]
    assert launcher.all_closed


# What numbers and folders say after an interruption.


def test_going_on_counts_groups_and_measurements_on(paths: StudyPaths) -> None:
    _, _, first = scripted(paths, buckets(10, 20))
    assert launches(first) == [0, 0, 0]
    launcher, _, whole = scripted(paths, [*buckets(30), values(NCCL_BUFFSIZE=8 * MIB)], trials=5)
    assert launches(whole) == [0, 0, 0, 1, 2]
    assert [m.id for m in whole] == [f"m{n:04d}" for n in range(5)]
    assert [m.trial for m in whole] == list(range(5))
    assert [g.log_dir for g in launcher.groups] == [paths.launch_logs(1), paths.launch_logs(2)]


def test_an_interrupted_measurement_leaves_no_number_behind(paths: StudyPaths) -> None:
    def interrupted(asked: Asked) -> float:
        if asked.message["id"] == "m0002":
            raise Interrupted("stop")
        return 100.0

    with pytest.raises(Interrupted):
        scripted(paths, [*buckets(10), values(NCCL_BUFFSIZE=8 * MIB)], interrupted)
    launcher, _, whole = scripted(paths, buckets(20), trials=3)
    # The launch that was interrupted is on no record, so its number and its folder are used again.
    assert launches(whole) == [0, 0, 1]
    assert whole[2].id == "m0002"
    assert launcher.groups[0].log_dir == paths.launch_logs(1)


# What is recorded of NCCL's log: the part that belongs to the measurement.


def says(group: FormulaGroup, *lines: str) -> None:
    group.log_dir.mkdir(parents=True, exist_ok=True)
    with (group.log_dir / "nccl.7.log").open("a") as file:
        file.writelines(f"box:7:7 [0] NCCL INFO {line}\n" for line in lines)


def test_each_measurement_has_the_facts_of_its_own_part_of_the_log(paths: StudyPaths) -> None:
    def speed(asked: Asked) -> float:
        group, first = asked.group, asked.message["id"] == "m0000"
        if first:
            says(group, "NCCL version 2.28.9+cuda13.0",
                 "NCCL_SOCKET_IFNAME set by environment to eth0",
                 "NCCL_DEBUG set by environment to INFO.")  # fmt: skip
        if "NCCL_ALGO" in asked.env:
            says(group, f"NCCL_ALGO set by environment to {asked.env['NCCL_ALGO']}")
        if "config.max_ctas" in asked.env:
            says(group, f"Comm config Max CTAs set to {asked.env['config.max_ctas']}")
        channels = 8 if first else 16
        says(group, f"{channels} coll channels, 8 collnet channels, 8 nvls channels, 8 p2p",
             "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")  # fmt: skip
        return 100.0

    site = {
        "NCCL_SOCKET_IFNAME": SiteVariable("NCCL_SOCKET_IFNAME", "eth0", "environment"),
        "NCCL_DEBUG": SiteVariable("NCCL_DEBUG", "WARN", "environment"),
    }
    launcher, _, found = scripted(
        paths, [values(NCCL_ALGO="Tree", NCCL_MAX_CTAS=16), *buckets(10)], speed, site=site
    )
    assert launcher.opened == 1
    facts = [m.nccl for m in found]
    assert all(one is not None for one in facts)
    baseline, tree, last = (dict(one or {}) for one in facts)
    own = {"NCCL_SOCKET_IFNAME": "eth0"}
    assert baseline["environment"] == own
    assert tree["environment"] == {**own, "NCCL_ALGO": "ring,tree;allreduce:tree"}
    # The log still names it, but this measurement was not given it.
    assert last["environment"] == own
    assert [one["config"] for one in (baseline, tree, last)] == [{}, {"max_ctas": 16}, {}]
    assert [one["channels"] for one in (baseline, tree, last)] == [8, 16, 16]
    for one in (baseline, tree, last):
        assert (one["version"], one["transport"]) == ("2.28.9", ["P2P"])


def test_without_a_log_there_are_no_facts(paths: StudyPaths) -> None:
    _, _, found = scripted(paths, buckets(10))
    assert [m.nccl for m in found] == [None, None]


def test_the_time_to_replace_a_group_is_the_next_trials(
    paths: StudyPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("nccltune.study.measuring.time.monotonic", lambda: now[0])

    class Slow(FormulaGroup):
        def close(self) -> None:
            now[0] += 5.0
            super().close()

        def request(self, *arguments: Any) -> Outcome:
            now[0] += 3.0
            return super().request(*arguments)

    class SlowLauncher(FormulaLauncher):
        def open(
            self, process_env: Values, log_dir: Path, *, probe: bool = False, **_: object
        ) -> Slow:
            now[0] += 1.0
            self.groups.append(Slow(self, process_env, log_dir))
            return self.groups[-1]  # type: ignore[return-value]

    launcher = SlowLauncher(constant)  # its ranks tell of 3 s: start 1, measure 2
    script = Script([*buckets(10), values(NCCL_BUFFSIZE=8 * MIB)], SPACE.baseline)
    with locked(paths):
        search_in(paths, launcher, SPACE, 3, planner=script.planner(SPACE)).run()
    assert [m.seconds["close"] for m in Store(paths).measurements] == [0.0, 0.0, 5.0]
    assert [m.seconds["other"] for m in Store(paths).measurements] == [1.0, 0.0, 1.0]
    assert [t.seconds for t in Store(paths).trials] == [4.0, 3.0, 9.0]
