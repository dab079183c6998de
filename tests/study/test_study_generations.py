"""Generations of a study: which one holds, and what is left when the tuner is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nccltune.errors import StudyError, UsageError
from nccltune.study.folder import StudyPaths, locked
from nccltune.study.generations import (
    Event,
    adopt,
    append,
    current,
    examined,
    finish_adoption,
    next_number,
    read_history,
    refuse_retuned,
)

OLD, NEW = "export NCCL_ALGO='ring'\n", "# keep the defaults\n"
FILES = ("best.env", "best.yaml")


def event(**given: Any) -> Event:
    return Event("2026-11-30", 1, "harmful", "slower", {"digest": "d", "driver": "2"}, **given)


@pytest.fixture
def paths(tmp_path: Path) -> StudyPaths:
    """A study with a second generation beside it."""
    found = StudyPaths(tmp_path / "s")
    for folder, text in ((found.folder, OLD), (found.generation(2).folder, NEW)):
        folder.mkdir(parents=True)
        (folder / "study.yaml").write_text("version: 1\n")
        for name in FILES:
            (folder / name).write_text(text)
    return found


def test_names(paths: StudyPaths) -> None:
    assert paths.name == "s" and paths.generation(1) is paths
    assert paths.generation(2).name == "s/generations/2"
    assert paths.generations() == [1, 2]


def test_history_is_read_back(paths: StudyPaths) -> None:
    assert read_history(paths) == []
    made = [event(), event(made=2, adopted=True, differences=[{"name": "driver"}])]
    for each in made:
        append(paths, each)
    assert read_history(paths) == made


def test_which_generation_holds(paths: StudyPaths) -> None:
    assert current([]) == 1
    assert current([event(made=2)]) == 1
    assert current([event(made=2, adopted=True), event(made=3)]) == 2


def test_a_generation_that_was_not_ended_goes_on(paths: StudyPaths) -> None:
    assert next_number(paths, []) == 2
    assert next_number(paths, [event(made=2)]) == 3
    assert next_number(paths, [event(made=3)]) == 4  # 2 was left as it was


def test_changes_are_looked_for_since_the_last_search(paths: StudyPaths) -> None:
    (paths.definition).write_text(
        "version: 1\ncreated: x\ncommand: c\nworkload: {}\nsampler: tpe\nseed: 0\nmachine: {}\n"
        "site: {}\nprobe: null\nspace: {}\nfingerprint: {driver: '1'}\n"
    )
    assert examined(paths, [event()]) == {"driver": "1"}
    assert examined(paths, [event(made=2), event()])["driver"] == "2"


def test_a_search_does_not_put_back_the_old_files(paths: StudyPaths) -> None:
    refuse_retuned(paths)
    append(paths, event(made=2, adopted=True))
    with pytest.raises(UsageError, match="files are those of generation 2; `nccltune retune s`"):
        refuse_retuned(paths)


def test_adopting_takes_all_files_and_removes_what_there_is_none_of(paths: StudyPaths) -> None:
    paths.best_batch_yaml.write_text(OLD)
    adopt(paths, 2)
    assert [(paths.folder / name).read_text() for name in FILES] == [NEW, NEW]
    assert not paths.best_batch_yaml.exists()


def test_a_cut_line_is_left_out_and_a_damaged_one_is_told(paths: StudyPaths) -> None:
    append(paths, event())
    with paths.history.open("a") as file:
        file.write('{"date": "20')
    assert len(read_history(paths)) == 1
    with locked(paths):
        append(paths, event(made=2))
    assert [each.made for each in read_history(paths)] == [None, 2]
    with paths.history.open("a") as file:
        file.write("[]\n")
    with pytest.raises(StudyError, match="line 3: damaged"):
        read_history(paths)


def test_a_generation_whose_folder_is_gone_leaves_the_files(paths: StudyPaths) -> None:
    shutil.rmtree(paths.generation(2).folder)
    finish_adoption(paths, [event(made=2, adopted=True)])
    assert paths.best_env.read_text() == OLD


_KILLED = """
import os, signal, sys
from pathlib import Path
from nccltune.study.folder import StudyPaths
from nccltune.study.generations import Event, adopt, append

left = int(sys.argv[2])

def dying(function):
    def call(*given, **named):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*given, **named)
    return call

for owner, name in ((os, "fsync"), (Path, "open"), (Path, "replace"), (Path, "unlink"),
                    (Path, "read_text")):
    setattr(owner, name, dying(getattr(owner, name)))
paths = StudyPaths(Path(sys.argv[1]))
append(paths, Event("d", 1, "harmful", "slower", {}, made=2, adopted=True))
adopt(paths, 2)
"""


def test_killed_at_any_point_one_whole_file_is_there_and_the_next_run_ends_it(
    tmp_path: Path, paths: StudyPaths
) -> None:
    ended = []
    for step in range(1, 40):
        study = StudyPaths(tmp_path / f"copy{step}" / "s")
        shutil.copytree(paths.folder, study.folder)
        done = subprocess.run([sys.executable, "-c", _KILLED, str(study.folder), str(step)])
        assert done.returncode in (0, -signal.SIGKILL)
        assert study.best_env.read_text() in (OLD, NEW)
        assert study.best_yaml.read_text() in (OLD, NEW)
        with locked(study):
            events = read_history(study)
            finish_adoption(study, events)
        holds = NEW if current(events) == 2 else OLD
        assert [(study.folder / name).read_text() for name in FILES] == [holds, holds]
        ended.append((done.returncode, holds))
        if done.returncode == 0:
            break
    assert ended[-1] == (0, NEW) and (-signal.SIGKILL, NEW) in ended
    assert (-signal.SIGKILL, OLD) in ended


def test_a_full_disk_leaves_the_old_files(paths: StudyPaths) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    paths.history.symlink_to("/dev/full")
    with pytest.raises(StudyError, match="cannot write .*history.jsonl: No space left"):
        append(paths, event(made=2, adopted=True))
    assert paths.best_env.read_text() == OLD


def line_of(**changed: Any) -> str:
    return json.dumps({**event().to_dict(), **changed}) + "\n"


def test_what_a_newer_version_adds_is_passed_over(paths: StudyPaths) -> None:
    paths.history.write_text(line_of(versions={"a": 1}, made=2))
    assert read_history(paths) == [event(made=2)]


@pytest.mark.parametrize(
    "changed",
    [
        {"date": 5}, {"sentence": None}, {"ratio": "x"}, {"defaults": float("nan")}, {"best": []},
        {"generation": 0}, {"made": "2"}, {"differences": {}}, {"fingerprint": None},
        {"fingerprint": {"gpus": 5}}, {"fingerprint": {"links": [[1]]}},
    ],
)  # fmt: skip
def test_lines_of_another_form_are_told(paths: StudyPaths, changed: dict[str, Any]) -> None:
    paths.history.write_text(line_of(**changed))
    with pytest.raises(StudyError, match="history.jsonl: line 1: damaged"):
        read_history(paths)


def test_a_history_that_is_no_file(paths: StudyPaths) -> None:
    os.mkfifo(paths.history)
    with pytest.raises(StudyError, match="is no file"):
        read_history(paths)
