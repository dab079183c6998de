"""A study over time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from study_jobs import definition, measurement, space_of

from nccltune.study.folder import StudyPaths
from nccltune.study.generations import Event, append
from nccltune.study.history import history_of
from nccltune.study.store import Store

SPACE = space_of()
MACHINE = {"driver": "570.1", "nccl": "2.27.5", "torch": "2.9.0"}


def begun(paths: StudyPaths, speed: float, **parts: Any) -> None:
    """A generation of a few launches of the baseline."""
    paths.folder.mkdir(parents=True)
    replace(definition(SPACE), fingerprint={**MACHINE, **parts}).write(paths)
    store = Store(paths)
    store.add(measurement(0, speed, configuration=dict(SPACE.baseline)))


def event(date: str, defaults: float | None, **given: Any) -> Event:
    found = {**MACHINE, **given.pop("fingerprint", {})}
    return Event(date, 1, "still_good", "faster", found, defaults=defaults, **given)


@pytest.fixture
def paths(tmp_path: Path) -> StudyPaths:
    found = StudyPaths(tmp_path / "s")
    begun(found, 1000.0)
    return found


def test_a_study_that_was_never_retuned_is_one_entry(paths: StudyPaths) -> None:
    [entry] = history_of(paths)
    assert (entry.what, entry.generation, entry.holds) == ("search", 1, True)
    assert (entry.defaults, entry.best) == (1000.0, None)


def test_a_slowdown_is_told_with_what_came_with_it(paths: StudyPaths) -> None:
    append(paths, event("2026-10-01", 990.0))
    append(paths, event("2026-11-01", 880.0, fingerprint={"nccl": "2.28.9"}))
    first, second, third = history_of(paths)
    assert second.slower is None and second.changed == ()
    assert third.slower == pytest.approx(1 - 880 / 990)
    assert [(d.name, d.was, d.now) for d in third.changed] == [("nccl", "2.27.5", "2.28.9")]
    assert third.to_dict()["changed"][0]["name"] == "nccl"


def test_a_check_that_timed_nothing_leaves_the_speed_before(paths: StudyPaths) -> None:
    append(paths, event("2026-10-01", None))
    append(paths, event("2026-11-01", 900.0))
    assert [entry.slower for entry in history_of(paths)] == [None, None, pytest.approx(0.1)]


def test_a_generation_follows_its_check(paths: StudyPaths) -> None:
    begun(paths.generation(2), 1100.0, driver="580.1")
    append(paths, event("2026-10-01", 1000.0, fingerprint={"driver": "580.1"}, made=2,
                        adopted=True, reason="better"))  # fmt: skip
    entries = history_of(paths)
    assert [(e.what, e.generation, e.holds) for e in entries] == [
        ("search", 1, False), ("check", 1, False), ("search", 2, True)
    ]  # fmt: skip
    assert [d.name for d in entries[1].changed] == ["driver"] and entries[2].changed == ()
    assert entries[2].sentence.endswith("; better")


def test_a_generation_whose_folder_is_gone_is_told(paths: StudyPaths) -> None:
    append(paths, event("2026-10-01", 1000.0, made=2, adopted=True))
    *_, last = history_of(paths)
    assert (last.what, last.generation, last.holds) == ("search", 2, True)
    assert last.sentence.startswith("its folder cannot be read")
