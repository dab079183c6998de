"""Processes that an earlier tuner left, found by their tag."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nccltune.errors import StudyError
from nccltune.launch.leftovers import (
    TAG,
    end_leftovers,
    end_tagged,
    is_orphaned,
    is_running,
    logs_folder,
    new_tag,
    tagged_processes,
    temporary_folder,
)


@contextmanager
def sleeper(**environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has started for certain, so that /proc shows its own environment."""
    with subprocess.Popen(
        ["sh", "-c", "trap '' TERM; echo up; sleep 600 & wait"],
        env={"PATH": os.environ["PATH"], **environment},
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        try:
            yield process
        finally:
            os.killpg(process.pid, 9) if process.poll() is None else None


def test_only_the_processes_of_that_launch_are_ended() -> None:
    ours, other = new_tag(), new_tag()
    with sleeper(**{TAG: ours}) as left, sleeper(**{TAG: other}) as stranger, sleeper() as free:
        deadline = time.monotonic() + 20  # until the shell has started its sleep
        while len(found := tagged_processes(ours)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert left.pid in found
        assert len(found) == 2
        assert end_tagged(ours) == 2
        left.wait(30)
        assert tagged_processes(ours) == []
        assert is_running(stranger.pid)
        assert is_running(free.pid)
        assert stranger.pid in tagged_processes(other)


def test_it_is_waited_for_until_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    tag, kill, began = new_tag(), os.kill, time.monotonic()

    def late(pid: int, number: int) -> None:
        if time.monotonic() > began + 0.3:  # as one that first gives its memory back
            kill(pid, number)

    with sleeper(**{TAG: tag}) as left:
        began = time.monotonic()
        monkeypatch.setattr(os, "kill", late)
        assert end_tagged(tag) == 2
        assert not is_running(left.pid)
        assert time.monotonic() > began + 0.3


def test_those_that_cannot_be_ended_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tag = new_tag()
    with sleeper(**{TAG: tag}) as left, monkeypatch.context() as patch:
        patch.setattr("nccltune.launch.leftovers._SECONDS", 0.1)
        patch.setattr(os, "kill", lambda *_: None)
        with pytest.raises(StudyError, match=r"^processes of a search cannot be ended: ") as told:
            end_tagged(tag)
        assert is_running(left.pid)
    assert str(left.pid) in str(told.value)


def test_the_tag_must_match_whole() -> None:
    tag = new_tag()
    with sleeper(**{TAG: f"{tag}0"}), sleeper(**{f"X{TAG}": tag}):
        assert tagged_processes(tag) == []
        assert end_tagged(tag) == 0


def test_we_never_find_ourselves(monkeypatch: pytest.MonkeyPatch) -> None:
    tag = new_tag()
    # /proc shows the environment of the start, so a child of ours has to look for itself.
    code = (
        "from nccltune.launch.leftovers import end_tagged, tagged_processes\n"
        f"print(tagged_processes('{tag}'), end_tagged('{tag}'))"
    )
    monkeypatch.setenv(TAG, tag)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[] 0\n")


def test_a_process_that_has_ended_does_not_run() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_running(process.pid)  # a zombie: nobody has asked for its code
    assert not is_running(process.pid)
    assert is_running(os.getpid())


def dead_tuners_tag() -> str:
    """Of a tuner that has really been there and is gone."""
    code = "from nccltune.launch.leftovers import new_tag\nprint(new_tag())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


def test_leftovers_are_those_whose_tuner_is_gone() -> None:
    ours, dead = new_tag(), dead_tuners_tag()
    assert not is_orphaned(ours)
    assert is_orphaned(dead)
    with sleeper(**{TAG: ours}) as living, sleeper(**{TAG: dead}) as left, sleeper() as free:
        assert end_leftovers() >= 1
        left.wait(30)
        assert is_running(living.pid)  # a second tuner's
        assert is_running(free.pid)


def test_what_we_descend_from_is_no_leftover() -> None:
    """A shell can have the tag of a tuner that is long gone in its environment."""
    code = "from nccltune.launch.leftovers import end_leftovers; print(end_leftovers())"
    done = subprocess.run(
        ["sh", "-c", '"$0" -c "$1"; echo alive', sys.executable, code],
        env={**os.environ, TAG: dead_tuners_tag()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["0", "alive"]


def test_a_process_id_that_came_again_is_another_process() -> None:
    owner, _, number = new_tag().rpartition("/")
    place, _, start = owner.rpartition(".")
    assert is_orphaned(f"{place}.{int(start) - 1}/{number}")


@pytest.mark.parametrize("part", ["user", "boot", "namespace"])
def test_what_was_started_elsewhere_is_somebody_elses(part: str) -> None:
    dead = dead_tuners_tag()
    user, boot, namespace, rest = dead.split(".", 3)
    other = {
        "user": f"4711.{boot}.{namespace}.{rest}",
        "boot": f"{user}.{boot[::-1]}.{namespace}.{rest}",
        "namespace": f"{user}.{boot}.1.{rest}",
    }
    assert not is_orphaned(other[part])


@pytest.mark.parametrize("text", ["", "x", "abc-1-2", "1.2.3", "1.2.3.4/", "....", "0.a.b.c.d/e"])
def test_a_tag_that_is_none_of_ours_is_left_alone(text: str) -> None:
    assert not is_orphaned(text)


def test_a_folder_of_logs_stays_after_a_failure_that_names_one_of_them() -> None:
    with pytest.raises(StudyError), logs_folder() as kept:
        (kept / "rank0.log").write_text("boom")
        raise StudyError("see rank0.log")
    end_leftovers()
    assert (kept / "rank0.log").read_text() == "boom"
    assert not (kept / "owner").exists()  # or the next run would take it for a killed one's
    shutil.rmtree(kept)


@pytest.mark.parametrize("error", [None, StudyError("before any log"), KeyboardInterrupt()])
def test_else_folders_are_gone_at_the_end(error: BaseException | None) -> None:
    for make in (temporary_folder, logs_folder):
        with contextlib.suppress(StudyError, KeyboardInterrupt), make() as folder:
            assert (folder / "owner").read_text()  # a run that is killed leaves it to the next
            if error is not None:
                raise error
        assert not folder.exists()


# Folders of tuners that were killed.


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders go, and a cache in it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "cache/images").mkdir(parents=True)
    return tmp_path


def left_by_a_killed_process(code: str, *arguments: str) -> None:
    """Run code of ours that waits for a line after it made its folder, and kill it there."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        process.kill()


KINDS = {
    "temporary_folder": "from nccltune.launch.leftovers import temporary_folder as make\n"
    "with make() as folder:",
    "logs_folder": "from nccltune.launch.leftovers import logs_folder as make\n"
    "with make() as folder:\n    (folder / 'rank0.log').write_text('x')",
    "libraries_of": "from nccltune.launch import libraries\n"
    "libraries._run = lambda *_: hold()\nlibraries.libraries_of('python', {})\nif True:",
    "in the cache": "from nccltune.launch.leftovers import temporary_folder as make\n"
    "with make(cache, '.new-') as folder:",
    "pictures": "import os\nfrom nccltune.launch.leftovers import new_tag\n"
    "from nccltune.worker import images\nos.environ['NCCLTUNE_TAG'] = new_tag()\n"
    "images.multiprocessing.get_context = lambda _: hold()\n"
    "images.image_set(cache / 'images', 2)\nif True:",
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_killed_tuner_has_left_is_gone_after_the_next_start(place: Path, kind: str) -> None:
    cache = place / "cache"
    code = (
        "import sys, tempfile, time\nfrom pathlib import Path\n"
        "tempfile.tempdir = sys.argv[1]\ncache = Path(sys.argv[1]) / 'cache'\n"
        "def hold():\n    print('made', flush=True)\n    time.sleep(600)\n"
        f"{KINDS[kind]}\n    hold()"
    )
    left_by_a_killed_process(code, str(place))
    inside = [*place.glob("nccltune-*"), *cache.glob(".*"), *cache.glob("images/.*")]
    assert len(inside) == 1
    end_leftovers(cache)
    assert not inside[0].exists()
    assert sorted(path.name for path in place.rglob("*")) == ["cache", "images"]


def test_folders_of_the_living_of_others_and_without_an_owner_stay(place: Path) -> None:
    dead = dead_tuners_tag()
    owners = {
        "nccltune-living": new_tag(),
        "nccltune-other-host": dead.replace(dead.split(".")[1], "0" * 8),
        "nccltune-nobody": "",
        "nccltune-long": dead + "x" * 2000,
        "cache/.new-living": new_tag(),
        "elsewhere-dead": dead,
    }
    for name, owner in owners.items():
        (place / name).mkdir()
        (place / name / "owner").write_text(owner)
    (place / "nccltune-kept").mkdir()
    (place / "mine").mkdir()
    (place / "mine/owner").write_text(dead)
    (place / "nccltune-link").symlink_to("mine")
    (place / "nccltune-linked").mkdir()
    (place / "nccltune-linked/owner").symlink_to("../mine/owner")
    before = sorted(place.rglob("*"))
    end_leftovers(place / "cache")
    assert sorted(place.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("whose", ["nccltune-dead", "nccltune-dead/owner"])
def test_a_folder_that_is_not_all_ours_stays(place: Path, whose: str) -> None:
    folder = place / "nccltune-dead"
    folder.mkdir()
    (folder / "owner").write_text(dead_tuners_tag())
    os.chown(place / whose, 12345, 12345)
    end_leftovers(place / "cache")
    assert (folder / "owner").exists()
    os.chown(place / whose, 0, 0)
    end_leftovers(place / "cache")
    assert not folder.exists()
