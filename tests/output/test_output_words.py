"""Numbers and settings in words."""

from __future__ import annotations

from typing import Any

import pytest

from nccltune.output import words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0.00"),
        (9.876, "9.88"),
        (99.994, "99.99"),
        (100.0, "100.0"),
        (512.34, "512.3"),
        (1000.0, "1000"),
        (12345.6, "12346"),
    ],
)
def test_samples(value: float | None, text: str) -> None:
    assert words.samples(value) == text


@pytest.mark.parametrize(
    ("value", "baseline", "text"),
    [
        (110.0, 100.0, "+10.0%"),
        (100.0, 100.0, "+0.0%"),
        (87.65, 100.0, "-12.3%"),
        (250.0, 100.0, "+150.0%"),
        (None, 100.0, "-"),
        (100.0, None, "-"),
        (100.0, 0.0, "-"),
    ],
)
def test_differences(value: float | None, baseline: float | None, text: str) -> None:
    assert words.difference(value, baseline) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (0.4, "0 s"),
        (89.0, "89 s"),
        (90.0, "2 min"),
        (600.0, "10 min"),
        (5399.0, "90 min"),
        (5400.0, "1.5 h"),
        (36000.0, "10.0 h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unset"),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (2.5, "2.5"),
        ("^LL128", "^LL128"),
    ],
)
def test_values(value: Any, text: str) -> None:
    assert words.value(value) == text


def test_settings() -> None:
    assert words.settings({}) == "(the defaults)"
    changes = {"bucket_cap_mb": 50, "NCCL_ALGO": "Ring", "prefetch_factor": None, "view": True}
    text = "bucket_cap_mb=50 NCCL_ALGO=Ring prefetch_factor=unset view=true"
    assert words.settings(changes) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (25 << 20, "25 MiB"),
        (1023 << 20, "1023 MiB"),
        (1 << 30, "1.0 GiB"),
        (150_323_855_360, "140.0 GiB"),
        (5 << 40, "5120.0 GiB"),
    ],
)
def test_sizes(count: float, text: str) -> None:
    assert words.size(count) == text
