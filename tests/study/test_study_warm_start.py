"""What an earlier generation teaches a new search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from study_jobs import FACTS, PARAMETERS, definition, measurement, space_of

from nccltune.nccl.site import SiteVariable
from nccltune.study.folder import StudyPaths
from nccltune.study.store import Store
from nccltune.study.summary import Summary
from nccltune.study.warm_start import earlier_points, targets_of

SPACE = space_of()


def summary_of(folder: Path, *rows: tuple[float, dict[str, Any]]) -> Summary:
    paths = StudyPaths(folder)
    paths.folder.mkdir()
    definition(SPACE).write(paths)
    store = Store(paths)
    for number, (speed, changes) in enumerate(rows):
        store.add(measurement(number, speed, configuration={**SPACE.baseline, **changes}))
    return Summary.read(paths)


BUCKETS, RING = {"bucket_cap_mb": 50}, {"NCCL_ALGO": "Ring"}
TREE = {"NCCL_ALGO": "Tree", "bucket_cap_mb": 100}


def test_the_fastest_come_first_and_equal_ones_once(tmp_path: Path) -> None:
    old = summary_of(
        tmp_path / "s",
        *[(100.0, {}), (110.0, RING), (130.0, BUCKETS), (120.0, TREE)],
        (90.0, {"NCCL_BUFFSIZE": 1048576}),
    )
    points, dropped = earlier_points(old, "generation 1", SPACE)
    assert [point.values for point in points] == [BUCKETS, TREE, RING]
    assert points[0].origin == "trial 2 of generation 1" and dropped == []


def test_what_does_not_apply_is_dropped_with_the_reason(tmp_path: Path) -> None:
    old = summary_of(tmp_path / "s", (100.0, {}), (120.0, TREE), (110.0, RING))
    site = {"NCCL_ALGO": SiteVariable("NCCL_ALGO", "Ring", "environment")}
    fewer = {
        **PARAMETERS,
        "bucket_cap_mb": {"target": "ddp", "default": None, "choices": [None, 10]},
    }
    points, dropped = earlier_points(
        old, "generation 2", space_of(fewer, replace(FACTS, site=site))
    )
    assert points == []  # nothing of them is left
    assert any(line.startswith("NCCL_ALGO=Tree: set by the site") for line in dropped)
    assert "bucket_cap_mb=100: not one of null, 10 here" in dropped


def test_what_fix_holds_is_dropped_too(tmp_path: Path) -> None:
    old = summary_of(tmp_path / "s", (100.0, {}), (120.0, TREE))
    points, dropped = earlier_points(old, "generation 1", space_of(fix={"bucket_cap_mb": 10}))
    assert [point.values for point in points] == [{"NCCL_ALGO": "Tree"}]
    assert dropped == ["bucket_cap_mb=100: --fix holds 10"]


def test_targets() -> None:
    assert targets_of(("NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS")) == ("env",)
    assert targets_of(("bucket_cap_mb", "num_workers", "env")) == ("ddp", "loader", "env")
