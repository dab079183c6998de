"""The samples/s that a best.yaml lets a job expect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nccltune.output.best import Best
from nccltune.output.promise import NotPromised, promised
from nccltune.stats.noise import noise_threshold

SCRIPT = {"model": "train.py", "data": "script"}
WITH, WITHOUT = [98.0, 99.0, 100.0, 101.0, 102.0, 103.0], [50.0, 70.0, 50.0, 70.0, 50.0, 70.0]
VERDICT = {
    "word": "FASTER", "ratio": 1.9, "low": 1.4, "high": 2.1, "threshold": 0.1,
    "files": {"without": 60.0, "with": 110.0}, "speeds": {"without": WITHOUT, "with": WITH},
}  # fmt: skip


def best(verdict: Any = VERDICT, **workload: Any) -> Best:
    return Best({}, {}, {}, 8, {**SCRIPT, **workload}, verdict, {}, {})


def test_it_is_what_one_more_launch_reaches() -> None:
    found = promised(best())
    noise = noise_threshold([WITH])
    assert 0.03 < noise < 0.1
    assert found.speed == 100.5
    assert (found.low, found.high) == pytest.approx((100.5 / (1 + noise), 100.5 * (1 + noise)))


def test_it_is_never_narrower_than_a_long_job_varies() -> None:
    found = promised(best({**VERDICT, "speeds": {"without": WITHOUT, "with": [100.0] * 6}}))
    assert (found.low, found.high) == pytest.approx((100 / 1.03, 103.0))


@pytest.mark.parametrize("word", ["WITHIN_NOISE", "SLOWER", "INCONCLUSIVE"])
def test_where_the_defaults_are_kept_it_is_theirs(word: str) -> None:
    assert promised(best({**VERDICT, "word": word})).speed == 60.0


def test_of_one_launch_with_the_files_it_is_wider() -> None:
    """In files of earlier versions, which have no other speeds."""
    old = {name: value for name, value in VERDICT.items() if name != "speeds"}
    found = promised(best(old))
    assert (found.speed, found.low) == pytest.approx((110.0, 110 / 1.1**2))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (best(None), "nothing in it is confirmed"),
        (best("hello"), "nothing in it is confirmed"),
        (best(model="resnet50", data="synthetic"), "it was measured with resnet50 in a loop of"),
        (best(emulate_hosts=2), "emulated hosts"),
        (best({**VERDICT, "speeds": None, "files": None}), "no speeds of launches"),
        (best({**VERDICT, "speeds": {"with": WITH[:5]}, "files": None}), "no speeds of launches"),
    ],
)
def test_what_promises_nothing_says_why(given: Best, why: str) -> None:
    with pytest.raises(NotPromised, match=why):
        promised(given)


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), float("inf"), True, "1", None, [[1]], {}])
def test_a_file_may_hold_anything(wrong: Any) -> None:
    damaged = {**VERDICT, "speeds": {"with": [*WITH, wrong]}, "files": None}
    with pytest.raises(NotPromised, match="no speeds"):
        promised(best(damaged))
    with pytest.raises(NotPromised, match="no speeds"):
        promised(best({**VERDICT, "speeds": wrong, "files": {"with": wrong}}))
    with pytest.raises(NotPromised, match="no speeds"):
        promised(replace(best({**VERDICT, "speeds": None, "threshold": wrong})))
