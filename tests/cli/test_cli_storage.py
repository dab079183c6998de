"""`nccltune search --storage`: what is refused at the start, and how a shared study is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cli_command import Command
from study_jobs import definition, measurement, space_of

from nccltune.cli.again import options_again
from nccltune.study.folder import StudyPaths, locked
from nccltune.study.shared_storage import check_storage
from nccltune.study.store import Store
from nccltune.study.together import take_over

SPACE = space_of()
SECRET = "postgresql://me:hush@127.0.0.1:1/x"


def test_a_mistake_in_the_storage_is_told_before_anything_is_started(
    nccltune_command: Command,
) -> None:
    done = nccltune_command("search", "--device", "cpu", "--storage", "nowhere/x.journal")
    assert done.code == 2
    assert "--storage nowhere/x.journal: there is no folder" in done.err
    assert "asking" not in done.err and not Path("studies").exists()


WRONG = {
    "no folder": ("nowhere/x.journal", "there is no folder"),
    "a folder": ("folder", "is a folder; give the path of a file in it"),
    "another file": ("folder/notes.txt", "is not a journal of trials"),
    "unknown scheme": ("foo://h/x", "no database of that kind is known; give postgresql://"),
    "no driver": ("oracle://h/x", "no driver for oracle is installed"),
    "no folder of SQLite": ("sqlite:///nowhere/x.db", "there is no folder"),
    "no URL": ("postgresql://me:hush@h:port/x", "cannot be opened"),
}


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
@pytest.mark.parametrize(("given", "message"), WRONG.values(), ids=WRONG)
def test_what_can_be_seen_of_a_storage_is_told_by_a_dry_run_too(
    nccltune_command: Command, given: str, message: str, dry: tuple[str, ...]
) -> None:
    Path("folder").mkdir()
    Path("folder/notes.txt").write_text("not ours")
    done = nccltune_command("search", "--device", "cpu", "--storage", given, *dry)
    assert (done.code, done.out) == (2, "")
    assert "--storage " in done.err and message in done.err and "hush" not in done.err
    assert "asking" not in done.err
    assert sorted(str(path) for path in Path().rglob("*")) == ["folder", "folder/notes.txt"]


@pytest.mark.parametrize("given", ["x.journal", "sqlite:///x.db", SECRET])
def test_looking_at_a_storage_makes_and_opens_nothing(
    nccltune_command: Command, given: str
) -> None:
    if given == SECRET:
        pytest.importorskip("psycopg")
    check_storage(given)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("option", [("--storage", SECRET), (f"--storage={SECRET}",)])
def test_a_password_is_not_shown(nccltune_command: Command, option: tuple[str, ...]) -> None:
    pytest.importorskip("psycopg")
    done = nccltune_command("search", "--device", "cpu", *option)
    assert done.code == 2
    assert "--storage postgresql://me:***@127.0.0.1:1/x: cannot be opened" in done.err
    assert "hush" not in done.err + done.out


def test_to_start_anew_takes_another_name(nccltune_command: Command) -> None:
    done = nccltune_command("search", "--storage", "x.journal", "--new")
    assert (done.code, done.out) == (2, "")
    assert "--new: the storage keeps the study; give another --study name" in done.err


def test_what_a_shared_search_found_is_checked_alone() -> None:
    options = options_again("nccltune search --storage postgresql://a:***@h/x --trials 9")
    assert (options.storage, options.trials) == (None, 9)


@pytest.fixture
def shared(nccltune_command: Command) -> StudyPaths:
    """A study of two tuners; claims that were given up have left gaps."""
    paths = StudyPaths(Path("studies/s"))
    space = SPACE.baseline
    with locked(paths):
        definition(SPACE).write(paths)
        store = Store(paths)
        for number, tuner in ((0, "0a"), (3, None), (4, "0a")):
            changed = dict(space) | ({"bucket_cap_mb": 10 * number} if number else {})
            made = measurement(number, 100.0 + number, configuration=changed)
            made = replace(made, id=store.next_id(), launch=store.next_launch(), tuner=tuner)
            store.add(made)
    return paths


def test_trials_are_shown_by_their_number(nccltune_command: Command, shared: StudyPaths) -> None:
    done = nccltune_command("show", "s", "--trial", "4")
    assert done.code == 0
    assert "bucket_cap_mb=40" in done.out and "0a" in done.out
    own = nccltune_command("show", "s", "--trial", "3", "--json")
    assert json.loads(own.out)["measurement"]["tuner"] is None
    done = nccltune_command("show", "s", "--trial", "2")
    assert (done.code, done.err) == (
        2, "nccltune: error: --trial 2: s has trials 0 to 4 without 1, 2\n",
    )  # fmt: skip


def test_what_another_tuner_confirmed_is_shown(
    nccltune_command: Command, shared: StudyPaths
) -> None:
    assert "Verdict: not confirmed" in nccltune_command("show", "s").out
    before = json.loads(nccltune_command("show", "s", "--json").out)["ranking"]
    assert [row["chosen"] for row in before] == [True, False, False]
    result = {
        "tuner": "0a", "folder": "s.2", "verdict": "Keep the defaults", "trials": 3, "files": {}
    }  # fmt: skip
    take_over(result, shared)
    done = nccltune_command("show", "s")
    assert "Confirmed by tuner 0a (study s.2): Keep the defaults." in done.out
    assert "Verdict: not confirmed" not in done.out
    document = json.loads(nccltune_command("show", "s", "--json").out)
    told = document["confirmed_elsewhere"]
    assert not any(row["chosen"] for row in document["ranking"])  # best.yaml is the other's
    assert (told["tuner"], told["verdict"]) == ("0a", "Keep the defaults")
