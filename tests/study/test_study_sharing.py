"""Several tuners on one study: in a journal file and in a real PostgreSQL server."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from sharing_jobs import (
    CONFIGURATIONS,
    SPACE,
    baseline,
    claim,
    claim_and_die,
    claim_everything,
    join,
    publish,
    wanted,
)
from study_jobs import TASK, definition, measurement, space_of

from nccltune.errors import StudyError, UsageError
from nccltune.study.definition import Definition
from nccltune.study.folder import StudyPaths, first_free, locked
from nccltune.study.heartbeat import Watch
from nccltune.study.nodes import fingerprints
from nccltune.study.records import AGAIN
from nccltune.study.shared_storage import open_storage
from nccltune.study.sharing import Exchange, own_tuner
from postgres import PASSWORD, QUOTED, Postgres

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(params=["journal", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "journal":
        return str(tmp_path / "shared.journal")
    server: Postgres = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture
def tuners(where: str) -> Iterator[Callable[..., Exchange]]:
    joined: list[Exchange] = []

    def one_more(tuner: str, **changes: Any) -> Exchange:
        joined.append(join(where, tuner, **changes))
        return joined[-1]

    yield one_more
    for exchange in joined:
        exchange.close()


def test_one_configuration_is_claimed_once(tuners: Callable[..., Exchange]) -> None:
    one, other = tuners("a"), tuners("b")
    assert baseline(one) == 0
    assert baseline(other) is None
    assert claim(other, 1) is not None
    assert claim(one, 1) is None
    (busy,) = one.elsewhere()
    assert (busy.tuner, busy.stage, busy.configuration) == ("b", "search", CONFIGURATIONS[1])
    assert [each.number for each in other.elsewhere()] == [0]


def test_nor_one_of_the_same_effect(tuners: Callable[..., Exchange]) -> None:
    one, other = tuners("a"), tuners("b")
    assert one.claim(wanted(CONFIGURATIONS[1], "x"), 9) is not None
    # Another effect by what this tuner knows, and yet the same configuration.
    assert other.claim(wanted(CONFIGURATIONS[1], "y"), 9) is None
    assert other.claim(wanted(CONFIGURATIONS[2], "x"), 9) is None
    assert other.claim(wanted(CONFIGURATIONS[2], "z"), 9) is not None


def test_a_repetition_on_purpose_is_of_what_was_measured(tuners: Callable[..., Exchange]) -> None:
    one, other = tuners("a"), tuners("b")
    again = wanted(CONFIGURATIONS[1], origin=AGAIN)
    number = claim(one, 1)
    assert number is not None
    assert other.claim(again, 9) is None  # not while another is at it
    assert publish(one, number, 1, 100.0)
    assert claim(other, 1) is None
    second = other.claim(again, 9)
    assert second is not None and second > number
    assert one.claim(again, 9) is None
    assert publish(other, second, 1, 90.0)
    assert [m.value for m in one.news(())] == [100.0, 90.0]


def test_what_one_finds_out_the_other_comes_to_know(tuners: Callable[..., Exchange]) -> None:
    one, other = tuners("a"), tuners("b")
    assert baseline(one) == 0
    assert other.news(()) == []
    assert publish(one, 0, None, 100.0)
    failed = claim(one, 3)
    assert failed is not None and publish(one, failed, 3, None)
    first, second = other.news(())
    assert (first.trial, first.value, first.tuner) == (0, 100.0, "a")
    assert first.result == measurement(0).result
    assert (second.trial, second.state, second.value) == (failed, "failed", None)
    # The log lies with the tuner that has it.
    assert second.failure is not None and second.failure["log"] is None
    assert second.failure["kind"] == "out_of_memory"
    assert other.news({0, failed}) == [] and other.elsewhere() == []
    # One's own, lost between the two writes, comes back as it was.
    own = one.news({0})
    assert [m.tuner for m in own] == [None]
    assert own[0].failure is not None and own[0].failure["log"] is not None


def test_optuna_reads_the_study_as_any_other(where: str, tuners: Callable[..., Exchange]) -> None:
    one = tuners("a")
    assert baseline(one) == 0 and publish(one, 0, None, 100.0)
    for which, value in ((1, 150.0), (2, None)):
        number = claim(one, which)
        assert number is not None and publish(one, number, which, value)
    assert claim(one, 5) is not None
    study = optuna.load_study(study_name="s", storage=open_storage(where).storage)
    assert [t.state.name for t in study.trials] == ["COMPLETE", "COMPLETE", "COMPLETE", "RUNNING"]
    # A failure counts as bad as the worst.
    assert [t.value for t in study.trials] == [100.0, 150.0, 100.0, None]
    assert study.best_trial.params == dict(CONFIGURATIONS[1])
    assert study.trials[1].user_attrs["tuner"] == "a"
    assert [t.user_attrs.get("state") for t in study.trials[:3]] == [
        "complete", "complete", "failed",
    ]  # fmt: skip


def test_no_more_trials_than_asked_for_whoever_runs_them(
    tuners: Callable[..., Exchange],
) -> None:
    one, other = tuners("a"), tuners("b")
    got = [claim(which, number, limit=3) for number, which in enumerate((one, other, one, other))]
    assert [number is not None for number in got] == [True, True, True, False]
    assert one.taken() == 3
    # One that was given up makes room; failures do not.
    assert got[0] is not None and got[1] is not None
    one.withdraw(got[0])
    assert publish(other, got[1], 1, None)
    assert claim(other, 7, limit=3) is not None
    assert claim(other, 8, limit=3) is None


def test_four_processes_share_the_trials(where: str, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.txt" for number in range(4)]
    processes = [
        SPAWN.Process(target=claim_everything, args=(where, f"t{n}", 24, n, file))
        for n, file in enumerate(files)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    got = [line.split() for file in files for line in file.read_text().splitlines()]
    assert len(got) == 24
    assert len({number for number, _ in got}) == 24
    assert len({which for _, which in got}) == 24  # of 28 that each of them tried
    late = join(where, "late")
    assert {(m.trial, m.value) for m in late.news(())} == {
        (int(number), 100.0 + int(which)) for number, which in got
    }
    assert late.taken() == 24 and late.elsewhere() == []
    late.close()


def test_threads_that_claim_the_same_at_the_same_time(where: str) -> None:
    exchanges = [join(where, f"t{n}") for n in range(4)]
    barrier = threading.Barrier(4)

    def one(exchange: Exchange, which: int) -> int | None:
        barrier.wait()
        return claim(exchange, which)

    with ThreadPoolExecutor(4) as pool:
        for which in range(6):
            got = list(pool.map(one, exchanges, [which] * 4))
            assert sum(number is not None for number in got) == 1
    for exchange in exchanges:
        exchange.close()


def test_a_killed_tuner_loses_its_own_trial_and_no_other(where: str) -> None:
    process = SPAWN.Process(target=claim_and_die, args=(where, "killed", 1))
    process.start()
    process.join(120)
    assert process.exitcode == -9
    one = join(where, "a", lost_seconds=1.0)
    assert [each.tuner for each in one.elsewhere()] == ["killed"]
    assert claim(one, 1) is None  # not yet
    assert claim(one, 2) is not None
    until = time.monotonic() + 60
    while one.elsewhere() and time.monotonic() < until:
        time.sleep(0.05)
    assert one.taken() == 1
    number = claim(one, 1)
    assert number is not None and publish(one, number, 1, 5.0)
    one.close()


def test_a_tuner_that_beats_is_not_lost(where: str) -> None:
    slow = join(where, "slow", beat_seconds=0.05)
    number = claim(slow, 1)
    watcher = join(where, "a", lost_seconds=1.0)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        assert [each.number for each in watcher.elsewhere()] == [number]
        time.sleep(0.1)
    # Once it leaves, what it had open is free at once.
    slow.close()
    assert watcher.elsewhere() == []
    assert claim(watcher, 1) is not None
    watcher.close()


def test_who_was_held_for_lost_cannot_publish_any_more(where: str) -> None:
    stopped = join(where, "stopped", beat_seconds=1000.0)
    number = claim(stopped, 1)
    assert number is not None
    watcher = join(where, "a", lost_seconds=0.2)
    until = time.monotonic() + 60
    while watcher.elsewhere() and time.monotonic() < until:
        time.sleep(0.05)
    again = claim(watcher, 1)
    assert again is not None and again != number
    assert not publish(stopped, number, 1, 100.0)
    assert publish(watcher, again, 1, 100.0)
    assert [m.trial for m in watcher.news(())] == [again]
    stopped.close()
    watcher.close()


def test_the_same_tuner_resumed_gives_up_what_it_had_at_once(where: str) -> None:
    process = SPAWN.Process(target=claim_and_die, args=(where, "me", 1))
    process.start()
    process.join(120)
    again = join(where, "me")
    assert again.taken() == 0
    assert claim(again, 1) is not None
    again.close()


def test_a_baseline_that_was_lost_keeps_the_number_0(where: str) -> None:
    one = join(where, "a")
    assert baseline(one) == 0
    one.close()  # given up
    other = join(where, "b")
    assert baseline(other) == 0
    candidate = claim(other, 1)
    assert candidate is not None and candidate > 0
    assert publish(other, candidate, 1, 1.0) and publish(other, 0, None, 2.0)
    assert [m.trial for m in other.news(())] == [0, candidate]
    other.close()


def test_one_tuner_confirms_and_the_others_know_who(tuners: Callable[..., Exchange]) -> None:
    one, other = tuners("a"), tuners("b")
    number = claim(one, 1)
    assert number is not None and publish(one, number, 1, 1.0)
    assert one.result() is None
    assert one.claim_confirmation() is None
    holder = other.claim_confirmation()
    assert holder is not None and (holder.tuner, holder.folder) == ("a", "folder-a")
    one.publish_result({"verdict": "Faster.", "trials": 1})
    for each in (one, other):
        told = each.result()
        assert told is not None
        assert (told["verdict"], told["tuner"]) == ("Faster.", "a")
    # Further trials make it out of date, and another may confirm then.
    number = claim(other, 2)
    assert number is not None and publish(other, number, 2, 2.0)
    assert one.result() is None
    assert other.claim_confirmation() is None


def test_a_tuner_says_whether_it_still_searches(tuners: Callable[..., Exchange]) -> None:
    one, other = tuners("a", beat_seconds=0.05), tuners("b", lost_seconds=1.0)
    assert one.others_at_work() and other.others_at_work()
    other.at_work(False)
    assert not one.others_at_work()
    other.at_work(True)
    assert one.others_at_work()
    one.at_work(False)
    time.sleep(0.3)  # some beats later
    assert not other.others_at_work()
    one.at_work(True)
    one._heart._over.set()  # as a kill does
    until = time.monotonic() + 60
    while other.others_at_work() and time.monotonic() < until:
        time.sleep(0.05)
    assert not other.others_at_work()


def test_the_confirmation_of_a_tuner_that_left_is_free(tuners: Callable[..., Exchange]) -> None:
    one, other = tuners("a"), tuners("b")
    assert one.claim_confirmation() is None
    assert other.claim_confirmation() is not None
    one.close()
    assert other.claim_confirmation() is None


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"seed": 1}, "seed: 0 in the study, 1 asked for"),
        ({"site": {"NCCL_SOCKET_IFNAME": "ib0"}}, "site.NCCL_SOCKET_IFNAME: eth0 in the study"),
        ({"task": replace(TASK, batch_size=32)}, "workload.batch_size: 64 in the study, 32 now"),
        ({"space": space_of()}, "space.NCCL_BUFFSIZE: not searched in the study"),
    ],
)
def test_another_study_of_that_name_is_refused(
    where: str, tuners: Callable[..., Exchange], changed: dict[str, Any], told: str
) -> None:
    tuners("a")
    other = definition(**{"space": SPACE, **changed})
    with pytest.raises(UsageError) as caught:
        Exchange(open_storage(where), "s", other, "b", "s")
    assert told in str(caught.value)
    assert "another --study name" in str(caught.value)


def test_other_nodes_are_another_study(where: str) -> None:
    """Of tuners on several nodes each; each node may stand in for one that is the same."""

    def on(*drivers: str) -> Definition:
        return definition(SPACE, nodes=fingerprints([{"driver": driver} for driver in drivers]))

    Exchange(open_storage(where), "s", on("580", "570"), "a", "s").close()
    Exchange(open_storage(where), "s", on("570", "580"), "b", "s.2").close()
    with pytest.raises(UsageError, match=r"machine\.node 1: \w+ in the study, \w+ now"):
        Exchange(open_storage(where), "s", on("580", "550"), "c", "s.3")


def test_another_command_time_and_driver_are_the_same_study(
    where: str, tuners: Callable[..., Exchange]
) -> None:
    tuners("a")
    same = definition(SPACE, command=("nccltune", "search", "--trials", "99"), probe=None)
    Exchange(open_storage(where), "s", same, "b", "s").close()


def test_records_that_the_storage_lacks_are_refused(tuners: Callable[..., Exchange]) -> None:
    one = tuners("a")
    assert baseline(one) == 0 and publish(one, 0, None, 100.0)
    one.refuse_other_trials({0})
    with pytest.raises(UsageError, match="lacks trials 3, 4, which this study has"):
        one.refuse_other_trials({0, 4, 3})


# What tuners leave behind when they are killed, or the storage is.


def test_a_journal_line_that_was_cut_off_harms_nobody(tmp_path: Path) -> None:
    file = tmp_path / "shared.journal"
    one = join(str(file), "a")
    first = claim(one, 1)
    whole = file.read_bytes()
    with file.open("ab") as journal:
        journal.write(whole.splitlines(keepends=True)[-1][:25])  # killed while it wrote
    # One that has it open goes on, and so does one that opens it.
    second = claim(one, 2)
    with file.open("ab") as journal:
        journal.write(b'{"op_code":4,"worker_')
    other = join(str(file), "b")
    assert {each.number for each in other.elsewhere()} == {first, second}
    assert claim(other, 3) is not None
    assert all(line.startswith(b"{") for line in file.read_bytes().splitlines())
    one.close()
    other.close()


def test_the_lock_of_a_killed_tuner_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nccltune.study.shared_storage._LOCK_SECONDS", 3)
    file = tmp_path / "shared.journal"
    one = join(str(file), "a", beat_seconds=1000.0)
    (tmp_path / "shared.journal.lock").touch()
    assert claim(one, 1) is not None
    assert not (tmp_path / "shared.journal.lock").exists()
    one.close()


@pytest.mark.parametrize(
    ("place", "line", "told"),
    [
        (1, b"nonsense", "line 2 is no record"),
        (2, b"\xff\xfe", "line 3 is no record"),
        (1, b"7", "line 2 is no record"),
        (1, b'{"op_code":0}', "a record in it cannot be read"),
        (1, b'{"op_code":99,"worker_id":"x"}', "a record in it cannot be read"),
    ],
)
def test_a_damaged_journal_is_told(tmp_path: Path, place: int, line: bytes, told: str) -> None:
    file = tmp_path / "shared.journal"
    one = join(str(file), "a")
    lines = file.read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:place], line + b"\n", *lines[place:]])
    file.write_bytes(damaged)
    try:
        with pytest.raises(UsageError, match=f"the journal is damaged: {told}") as caught:
            join(str(file), "b")
        assert str(caught.value).startswith(f"--storage {file}: ")
        assert file.read_bytes() == damaged
    finally:
        file.write_bytes(b"".join(lines))
        one.close()


def test_a_mistake_of_our_own_is_not_a_damaged_journal(tmp_path: Path) -> None:
    shared = open_storage(str(tmp_path / "shared.journal"))
    with pytest.raises(KeyError, match="missing"):
        shared.ask(lambda: {}["missing"])
    with pytest.raises(StudyError, match="the journal is damaged: a record in it cannot be read"):
        # As where the records of a study are gone: Optuna's own code does not find it.
        shared.ask(lambda: shared.storage.get_study_user_attrs("no such study"))  # type: ignore[arg-type]


def test_a_journal_that_is_damaged_meanwhile_is_told(tmp_path: Path) -> None:
    file = tmp_path / "shared.journal"
    one = join(str(file), "a", beat_seconds=1000.0)
    with file.open("ab") as journal:
        journal.write(b"nonsense\n")
    count = len(file.read_bytes().splitlines())
    with pytest.raises(StudyError, match=f"damaged: line {count} is no record"):
        claim(one, 1)
    one.close()


@pytest.mark.parametrize(
    "content",
    [
        b"how to reach the machines: see below\nvm\n",
        b"vm\n",
        b"one line without its end",
        b"{",
        b'{"op_cod',
        b'{"name": "settings", "op_code": 1}\n',
        bytes(range(256)),
        b"\n",
    ],
)
def test_a_file_that_is_no_journal_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "notes"
    file.write_bytes(content)
    before = file.stat().st_mtime_ns
    with pytest.raises(UsageError, match="is not a journal of trials, and nothing in it was"):
        open_storage(str(file))
    assert (file.read_bytes(), file.stat().st_mtime_ns) == (content, before)
    assert list(tmp_path.iterdir()) == [file]


def test_an_empty_file_becomes_a_journal(tmp_path: Path) -> None:
    file = tmp_path / "shared.journal"
    file.touch()
    one = join(str(file), "a")
    assert claim(one, 1) is not None
    one.close()


def test_a_fifo_is_no_journal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="is no regular file"):
        open_storage(str(tmp_path / "fifo"))


def test_a_server_that_is_started_anew_disturbs_nobody(postgres: Postgres) -> None:
    one = join(postgres.database(), "a", beat_seconds=0.1)
    number = claim(one, 1)
    assert number is not None
    postgres.stop()
    try:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(claim, one, 2)
            time.sleep(2.0)
            assert not asked.done()
            postgres.start()
            assert asked.result(60) not in (None, number)
    finally:
        postgres.start()
    assert publish(one, number, 1, 1.0)
    assert one.taken() == 2
    one.close()


def test_a_server_that_stays_away_is_told_without_its_password(postgres: Postgres) -> None:
    one = join(postgres.database(), "a")
    one.shared.patience = 1.0
    number = claim(one, 1)
    assert number is not None
    postgres.stop()
    try:
        with pytest.raises(StudyError) as caught:
            claim(one, 2)
    finally:
        postgres.start()
    assert "run the same command again" in str(caught.value)
    assert "not/to" not in str(caught.value) and "***" in str(caught.value)
    assert publish(one, number, 1, 1.0)
    one.close()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("/nowhere/at/all.journal", "there is no folder /nowhere/at; make it first"),
        (".", "is a folder"),
        ("nosuch://x", "no database of that kind"),
        ("postgresql://u:hush@127.0.0.1:1/x", "connection"),
        ("postgresql://u@127.0.0.1:1/x?password=hush", "connection"),
        ("mysql+nosuch://u:hush@h/x", "no database of that kind"),
    ],
)
def test_a_storage_that_cannot_be_opened_is_refused_without_its_password(
    given: str, told: str
) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(UsageError) as caught:
        open_storage(given)
    assert str(caught.value).startswith("--storage ")
    assert told in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_wrong_password_is_told_without_it(postgres: Postgres) -> None:
    with pytest.raises(UsageError) as caught:
        open_storage(postgres.url("postgres", password="wr%40ng"))
    assert "password authentication failed" in str(caught.value)
    assert "wr%40ng" not in str(caught.value) and "wr@ng" not in str(caught.value)


def test_the_password_may_come_from_where_libpq_looks(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    address = postgres.database().replace(f":{QUOTED}@", "@")
    shared = open_storage(address)
    assert shared.where == address
    assert shared.storage.get_all_studies() == []


def test_a_missing_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nccltune.study.shared_storage.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"pip install 'nccltune\[postgresql\]'"):
        open_storage("postgresql://u@h/x")


# Who is lost, and whose folder is whose.


def test_a_counter_that_stands_still_for_long_is_lost() -> None:
    now = [0.0]
    watch = Watch(60.0, clock=lambda: now[0])
    for at, beat, lost in (
        (0, 5, False), (50, 5, False), (59, 6, False), (118, 6, False), (120, 6, True),
        (121, 7, False), (500, 8, False), (559, 8, False),
    ):  # fmt: skip
        now[0] = float(at)
        assert watch.lost("t", {"beat": beat, "ended": False}) is lost
    assert watch.lost("t", {"beat": 9, "ended": True})
    # One that never said anything is waited for as well.
    assert not watch.lost("silent", None)
    now[0] += 61
    assert watch.lost("silent", None)


def test_tuners_of_one_machine_take_a_folder_each(tmp_path: Path) -> None:
    with first_free(tmp_path, "s") as one, first_free(tmp_path, "s") as other:
        assert (one.name, other.name) == ("s", "s.2")
        names = {own_tuner(one), own_tuner(other)}
        assert len(names) == 2 and all(len(name) == 8 for name in names)
    with first_free(tmp_path, "s") as again:
        assert again.name == "s" and own_tuner(again) in names


def test_a_study_begun_alone_is_not_shared(tmp_path: Path) -> None:
    paths = StudyPaths(tmp_path / "s")
    with locked(paths):
        paths.trials.write_text("{}\n")
        with pytest.raises(UsageError, match="begun without --storage"):
            own_tuner(paths)
