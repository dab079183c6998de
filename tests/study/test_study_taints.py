"""Measurements that something disturbed are repeated, a few times, and the record says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from study_jobs import FormulaLauncher, search_in, space_of

from nccltune.machine.health import GpuReading, Reading
from nccltune.study.folder import StudyPaths, locked
from nccltune.study.store import Store

CALM = Reading(0.0, (GpuReading(0, ecc_errors=0),))


@pytest.fixture
def paths(tmp_path):  # type: ignore[no-untyped-def]
    return StudyPaths(tmp_path / "study")


def readings(errors: list[int]) -> Iterator[Reading]:
    """One pair a measurement: so many new ECC errors between the two."""
    total = 0
    for new in errors:
        for count in (total, total + new):
            yield replace(CALM, gpus=(replace(CALM.gpus[0], ecc_errors=count),))
        total += new


def run(paths: StudyPaths, errors: list[int], trials: int) -> tuple[FormulaLauncher, Store, int]:
    launcher, source = FormulaLauncher(lambda _asked: 100.0), readings(errors)
    with locked(paths):
        search = search_in(paths, launcher, space_of(), trials)
        search.measurer.health = lambda: next(source)
        search.run()
    return launcher, Store(paths), len(search.measurer.disturbed)


def test_a_disturbed_measurement_is_made_once_more(paths: StudyPaths) -> None:
    launcher, store, disturbed = run(paths, [0, 2, 0, 0], 3)
    assert len(launcher.asked) == 4 and len(store.trials) == 3
    assert disturbed == 1
    assert [m.taints for m in store.measurements] == [(), (), ()]
    assert ["disturbed before" in m.seconds for m in store.measurements] == [False, True, False]


def test_what_is_disturbed_again_is_kept_and_marked(paths: StudyPaths) -> None:
    launcher, store, _ = run(paths, [0, 2, 3, 0], 3)
    assert len(launcher.asked) == 4
    assert [len(m.taints) for m in store.measurements] == [0, 1, 0]
    assert "3 new uncorrected ECC errors" in store.measurements[1].taints[0]
    assert Store(paths).measurements[1].taints == store.measurements[1].taints


def test_where_everything_is_disturbed_repeating_ends(paths: StudyPaths) -> None:
    launcher, store, disturbed = run(paths, [1] * 20, 10)
    assert len(launcher.asked) == 15 and disturbed == 5
    assert all(m.taints for m in store.measurements)
