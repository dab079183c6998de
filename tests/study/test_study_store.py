"""The study's folder: records that survive, the lock, names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from study_jobs import definition, measurement, result, space_of

from nccltune.errors import StudyError, UsageError
from nccltune.study.folder import (
    StudyPaths,
    check_writable,
    find_study,
    forget,
    locked,
    read_definition,
    set_aside,
    study_names,
    write_text,
)
from nccltune.study.records import Compared, Measurement, Trial
from nccltune.study.store import Store, has_results, read_lines


@pytest.fixture
def paths(tmp_path: Path) -> StudyPaths:
    folder = tmp_path / "studies" / "a-study"
    folder.mkdir(parents=True)
    return StudyPaths(folder)


def lines_of(file: Path) -> list[str]:
    text = file.read_text()
    assert text == "" or text.endswith("\n")
    return text.splitlines()


def test_records_come_back_as_they_were_added(paths: StudyPaths) -> None:
    store = Store(paths)
    assert (store.trials, store.measurements, store.next_launch()) == ([], [], 0)
    first = measurement(0, 123.456, configuration={"NCCL_ALGO": None, "num_workers": 2})
    second = measurement(1, None, configuration={"NCCL_ALGO": "Ring", "num_workers": 2})
    told = [store.add(first), store.add(second)]
    again = Store(paths)
    assert again.measurements == [
        Measurement.from_dict(json.loads(json.dumps(m.to_dict()))) for m in (first, second)
    ]
    assert again.trials == told == store.trials
    assert again.next_launch() == 2
    assert again.measurement(told[1]).failure == second.failure
    assert told[1] == Trial(
        number=1,
        stage="search",
        origin="sampler",
        parameters={"NCCL_ALGO": "Ring", "num_workers": 2},
        state="failed",
        value=None,
        failure="out_of_memory",
        seconds=12.5,
        measurements=("m0001",),
    )


def test_the_next_launch_follows_the_highest_not_the_count(paths: StudyPaths) -> None:
    store = Store(paths)
    store.add(measurement(0, launch=7))
    assert store.next_launch() == 8
    assert Store(paths).next_launch() == 8


def test_records_hold_paths_relative_to_the_study(paths: StudyPaths) -> None:
    assert paths.relative(paths.launch_logs(3) / "rank0.log") == "logs/launch-0003/rank0.log"


@pytest.mark.parametrize("cut", [2, 5, 40])
def test_a_cut_last_line_is_removed_under_the_lock(paths: StudyPaths, cut: int) -> None:
    store = Store(paths)
    store.add(measurement(0))
    whole = paths.trials.read_bytes()
    store.add(measurement(1))
    paths.trials.write_bytes(paths.trials.read_bytes()[:-cut])
    paths.measurements.write_bytes(paths.measurements.read_bytes()[:-cut])
    paths.journal.write_bytes(b'{"op_code": 0}\n{"op_co')
    assert [t.number for t in Store(paths, repair=False).trials] == [0]  # and nothing is changed
    assert not paths.trials.read_bytes().endswith(b"\n")
    with locked(paths):
        assert paths.trials.read_bytes() == whole
        assert paths.journal.read_bytes() == b'{"op_code": 0}\n'
        again = Store(paths)
        again.add(measurement(1, 50.0))
    assert [t.value for t in Store(paths).trials] == [100.0, 50.0]


def test_a_whole_record_that_lacks_only_its_end_is_kept(paths: StudyPaths) -> None:
    Store(paths).add(measurement(0))
    whole = paths.trials.read_bytes()
    paths.trials.write_bytes(whole[:-1])
    with locked(paths):
        assert paths.trials.read_bytes() == whole


def test_a_file_that_is_one_cut_line_becomes_empty(paths: StudyPaths) -> None:
    paths.measurements.write_bytes(b'{"id": "m00')
    with locked(paths):
        assert paths.measurements.read_bytes() == b""
        assert Store(paths).trials == []


@pytest.mark.parametrize("damage", [b"{", b"\x00\x00\x00", b"\xff\xfe", b"", b"{}", b"null"])
def test_a_damaged_line_in_the_middle_names_file_and_line(paths: StudyPaths, damage: bytes) -> None:
    store = Store(paths)
    for number in range(3):
        store.add(measurement(number))
    lines = paths.measurements.read_bytes().split(b"\n")
    lines[1] = damage
    paths.measurements.write_bytes(b"\n".join(lines))
    with pytest.raises(StudyError) as caught:
        Store(paths)
    assert str(caught.value).startswith(f"{paths.measurements}: line 2 is ")
    assert "--new" in str(caught.value)


PLACE = {
    "comparison": "winner", "block": 0, "side": "candidate", "limit": 12, "of": "d1", "run": "r1"
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        *({"block": True}, {"block": -1}, {"block": 0.0}, {"limit": "12"}, {"limit": None}),
        *({"turns": 1}, {"turns": "yes"}, {"side": "both"}, {"side": ""}, {"of": None}, {"x": 1}),
    ],
)
def test_a_place_in_a_comparison_that_cannot_be_is_damage(
    paths: StudyPaths, change: dict[str, Any]
) -> None:
    Store(paths).add(measurement(0))
    line = json.loads(paths.measurements.read_text())
    for place in (PLACE, {**PLACE, "side": "17", "turns": True}):
        paths.measurements.write_text(json.dumps({**line, "compared": place}) + "\n")
        assert Store(paths).measurements[0].compared == Compared(**place)
    paths.measurements.write_text(json.dumps({**line, "compared": {**PLACE, **change}}) + "\n")
    with pytest.raises(StudyError, match="line 1 is "):
        Store(paths)


def test_a_measurement_without_its_trial_line_is_finished(paths: StudyPaths) -> None:
    store = Store(paths)
    store.add(measurement(0))
    before = paths.trials.read_bytes()
    last = store.add(measurement(1, 77.0))
    complete = paths.trials.read_bytes()
    paths.trials.write_bytes(before)  # killed between the two writes

    looking = Store(paths, repair=False)
    assert looking.trials[1] == last
    assert paths.trials.read_bytes() == before

    assert Store(paths).trials[1] == last
    assert paths.trials.read_bytes() == complete


def test_a_trial_whose_measurement_is_gone_names_it(paths: StudyPaths) -> None:
    store = Store(paths)
    for number in range(2):
        store.add(measurement(number))
    lines = paths.measurements.read_bytes().splitlines(keepends=True)
    paths.measurements.write_bytes(lines[1])
    with pytest.raises(StudyError) as caught:
        Store(paths)
    assert str(caught.value).startswith(f"{paths.measurements}: lacks m0000, which {paths.trials}")


def test_the_peak_memory_of_a_trial_is_that_of_its_fullest_rank(paths: StudyPaths) -> None:
    store = Store(paths)
    found = {**result(100.0), "peak_memory_bytes": [5, 9, 7]}
    assert store.peak_memory(store.add(measurement(0, result=found))) == 9
    assert store.peak_memory(store.add(measurement(1, None))) is None


def test_a_study_is_found_by_name_or_folder(paths: StudyPaths) -> None:
    studies = paths.folder.parent
    definition(space_of()).write(paths)
    assert find_study("a-study", studies) == paths
    assert find_study(str(paths.folder), studies / "elsewhere") == paths
    for name in ("b-study", f"{studies.name}/a-study", ""):
        with pytest.raises(UsageError) as caught:
            find_study(name, studies)
        assert str(caught.value) == f"{name}: no such study in {studies}; there are: a-study"
    with pytest.raises(UsageError, match="there are: none"):
        find_study("a-study", studies / "elsewhere")


def test_measurements_that_belong_to_no_trial_make_none(paths: StudyPaths) -> None:
    text = json.dumps(measurement(0, purpose="noise", trial=None).to_dict()) + "\n"
    paths.measurements.write_text(text)
    store = Store(paths)
    assert (len(store.measurements), store.trials) == (1, [])
    assert store.next_launch() == 1


FULL_DISK = """
import resource, sys
from pathlib import Path
from typing import Any
sys.path.insert(0, {tests!r})
from study_jobs import measurement
from nccltune.errors import StudyError
from nccltune.study.folder import StudyPaths
from nccltune.study.store import Store

store = Store(StudyPaths(Path({folder!r})))
store.add(measurement(0))
room = {room}
resource.setrlimit(resource.RLIMIT_FSIZE, (store.paths.{file}.stat().st_size + room,) * 2)
try:
    store.add(measurement(1))
except StudyError as error:
    print(len(store.measurements), len(store.trials), error)
    sys.exit(11)
"""


@pytest.mark.parametrize("room", [0, 1, 100])
def test_a_full_disk_leaves_whole_lines(paths: StudyPaths, room: int) -> None:
    code = FULL_DISK.format(
        tests=str(Path(__file__).parent), folder=str(paths.folder), room=room, file="measurements"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 11, done.stderr
    assert done.stdout.startswith(f"1 1 cannot write {paths.measurements}: ")
    assert "finished trials are kept" in done.stdout
    assert len(lines_of(paths.measurements)) == 1
    # There is room again: the same trial is measured and kept.
    store = Store(paths)
    assert [t.number for t in store.trials] == [0]
    store.add(measurement(1, 50.0))
    assert [t.value for t in Store(paths).trials] == [100.0, 50.0]


def test_a_device_without_space_is_an_error_that_names_the_reason(paths: StudyPaths) -> None:
    store = Store(paths)
    paths.measurements.symlink_to("/dev/full")
    with pytest.raises(StudyError, match=r"measurements\.jsonl: No space left on device"):
        store.add(measurement(0))
    assert (store.measurements, store.trials) == ([], [])


def test_a_file_that_cannot_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "best.yaml"
    write_text(target, "first\n")
    code = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from nccltune.errors import StudyError\n"
        "from nccltune.study.folder import write_text\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4, 4))\n"
        f"try:\n    write_text(Path({str(target)!r}), 'second\\n')\n"
        "except StudyError as error:\n    print(error)\n    sys.exit(11)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (11, "")
    assert done.stdout == f"cannot write {target}: File too large\n"
    assert target.read_text() == "first\n"
    assert os.listdir(tmp_path) == ["best.yaml"]


def test_a_second_tuner_is_refused_and_told_who_holds_the_study(paths: StudyPaths) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from nccltune.study.folder import StudyPaths, locked\n"
        f"with locked(StudyPaths(Path({str(paths.folder)!r}))):\n"
        "    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError) as caught, locked(paths):
            raise AssertionError("two hold one lock")
        assert f"process {holder.pid} of user {os.geteuid()} on " in str(caught.value)
        assert str(caught.value).startswith(f"{paths.folder}: another nccltune works on this study")
        assert paths.lock.exists()  # another's, even where it is all there is
        holder.kill()  # as kill -9 does: the system gives the lock back
        holder.wait()
        with locked(paths):
            owner = f"process {os.getpid()} of user {os.geteuid()} on "
            assert paths.lock.read_text().startswith(owner)


def test_the_lock_is_free_after_an_error(paths: StudyPaths) -> None:
    with pytest.raises(ZeroDivisionError), locked(paths):
        raise ZeroDivisionError
    with locked(paths):
        pass


def test_a_folder_that_cannot_be_made_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "studies").write_text("a file")
    paths = StudyPaths(tmp_path / "studies" / "name")
    with pytest.raises(UsageError) as caught, locked(paths):
        pass
    assert str(caught.value).startswith(f"--studies-dir {tmp_path / 'studies'}: cannot be written")


def test_studies_may_be_made_where_nothing_is_yet(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    check_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_where_studies_cannot_be_made_is_told_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    for inside in (file, file / "studies"):
        with pytest.raises(UsageError) as caught:
            check_writable(inside)
        assert str(caught.value) == (
            f"--studies-dir {inside}: cannot be written: {file} is no folder"
        )
    asked = []

    def no_right(path: Path, mode: int) -> bool:  # root has every right
        asked.append((path, mode))
        return False

    monkeypatch.setattr(os, "access", no_right)
    with pytest.raises(UsageError, match=f"no right in {tmp_path}$"):
        check_writable(tmp_path / "a" / "b")
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]


def test_a_folder_that_holds_nothing_but_its_lock_is_removed(tmp_path: Path) -> None:
    paths = StudyPaths(tmp_path / "studies" / "s")
    with locked(paths):
        assert paths.lock.exists()
    assert not paths.folder.exists()
    with pytest.raises(ZeroDivisionError), locked(paths):
        raise ZeroDivisionError
    assert not paths.folder.exists()
    with pytest.raises(ZeroDivisionError), locked(paths):
        paths.definition.write_text("kept")
        raise ZeroDivisionError
    with locked(paths):
        pass
    assert paths.definition.read_text() == "kept"
    assert paths.lock.exists()


GOOD = ["a", "resnet50-nccl-x2", "0", "A.b_c+d", "x" * 100]
BAD = ["", ".", "..", "a/b", "../x", "/abs", "-new", ".hidden", "_x", "a b", "a\n", "é", "x" * 101]


@pytest.mark.parametrize("name", GOOD)
def test_plain_folder_names_are_study_names(tmp_path: Path, name: str) -> None:
    assert StudyPaths.of(tmp_path, name).folder == tmp_path / name


@pytest.mark.parametrize("name", BAD)
def test_anything_else_is_not(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="a study name is one folder name"):
        StudyPaths.of(tmp_path, name)


def test_setting_aside_keeps_the_old_folder(paths: StudyPaths) -> None:
    for text in ("first", "second"):
        paths.folder.mkdir(exist_ok=True)
        paths.definition.write_text(text)
        (paths.folder / "best.env").write_text(f"# {text}\n")
        moved = set_aside(paths)
        assert moved is not None
        assert not paths.folder.exists()
        assert (moved / "study.yaml").read_text() == text
        assert (moved / "best.env").read_text() == f"# {text}\n"
        assert moved.parent == paths.folder.parent
        assert moved.name.startswith("a-study.")
    # Both within a second, say: neither takes the other's place.
    assert len(list(paths.folder.parent.iterdir())) == 2


def test_names_of_studies_newest_first(tmp_path: Path) -> None:
    for age, name in enumerate(["new", "middle", "old"]):
        (tmp_path / name).mkdir()
        (tmp_path / name / "study.yaml").write_text("version: 1\n")
        os.utime(tmp_path / name / "study.yaml", (1_000_000 - age, 1_000_000 - age))
    (tmp_path / "no-study").mkdir()
    assert study_names(tmp_path) == ["new", "middle", "old"]
    assert study_names(tmp_path / "missing") == []


def test_a_definition_is_read_back(paths: StudyPaths) -> None:
    written = definition(space_of()).write(paths)
    assert read_definition(paths) == written.to_dict()
    assert written.created != ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("version: 2\n", "not a study of version 1"),
        ("- 1\n", "not a study of version 1"),
        ("", "not a study of version 1"),
        ("a: [", "not valid YAML"),
    ],
)
def test_another_file_is_no_definition(paths: StudyPaths, text: str, reason: str) -> None:
    paths.definition.write_text(text)
    with pytest.raises(UsageError, match=reason):
        read_definition(paths)


@pytest.mark.parametrize("section", ["machine", "space", "seed", "site"])
def test_a_definition_that_lacks_a_part_names_it(paths: StudyPaths, section: str) -> None:
    document = definition(space_of()).to_dict()
    for changed in (
        {**document, section: [1]},
        {k: v for k, v in document.items() if k != section},
    ):
        paths.definition.write_text(json.dumps(changed))  # JSON is YAML
        with pytest.raises(UsageError) as caught:
            read_definition(paths)
        assert str(caught.value).startswith(f"{paths.definition}: {section}: missing or")


def test_a_missing_definition_says_so(paths: StudyPaths) -> None:
    with pytest.raises(UsageError, match=r"no study here \(no study\.yaml\)"):
        read_definition(paths)


def test_damaged_lines_are_counted_from_one(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    assert read_lines(file) == []
    file.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert read_lines(file) == [{"a": 1}, {"a": 2}]


def test_a_study_without_a_complete_trial_has_no_results(paths: StudyPaths) -> None:
    definition(space_of()).write(paths)
    assert not has_results(paths)
    store = Store(paths)
    store.add(measurement(0, None))
    assert not has_results(paths)
    store.add(measurement(1, 100.0))
    assert has_results(paths)


def test_what_is_forgotten_leaves_only_the_lock(paths: StudyPaths) -> None:
    definition(space_of()).write(paths)
    Store(paths).add(measurement(0, None))
    logs = paths.launch_logs(0)
    logs.mkdir(parents=True)
    (logs / "rank0.log").write_text("what it was")
    for file in (paths.journal, paths.best_yaml, paths.folder / "optuna.journal.lock"):
        file.write_text("of before")
    with locked(paths):
        forget(paths)
        assert [entry.name for entry in paths.folder.iterdir()] == ["lock"]
        forget(paths)  # nothing is there
