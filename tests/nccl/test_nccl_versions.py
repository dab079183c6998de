from __future__ import annotations

import pytest
from packaging.version import Version

from nccltune.nccl.versions import known_version, parse_version, torch_release


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2.28.9", "2.28.9"),
        ("2.28.9+cuda13.0", "2.28.9"),
        ("v2.30.7-1", "2.30.7"),
        ("2.29.0pre+cuda13.0", "2.29.0"),
        (" 2.21.5\n", "2.21.5"),
        ("2.28", "2.28"),
        (22809, "2.28.9"),
        ("22809", "2.28.9"),
        (20908, "2.9.8"),
        (21805, "2.18.5"),
        (2708, "2.7.8"),
        (2804, "2.8.4"),
    ],
)
def test_versions_in_every_spelling(given: str | int, expected: str) -> None:
    assert parse_version(given) == Version(expected)
    assert parse_version(given).local is None


@pytest.mark.parametrize(
    "given", ["", "newest", "2.x", "1!2.28", "²", -1, 0, 28, 15000, True, 10**9]
)
def test_anything_else_is_an_error_that_shows_it(given: str | int) -> None:
    with pytest.raises(ValueError) as error:
        parse_version(given)
    assert str(given) in str(error.value)


def test_what_is_not_known_is_none() -> None:
    assert known_version("22809") == known_version("2.28.9+cuda13.0") == Version("2.28.9")
    assert known_version(None) is None and known_version("unknown") is None
    assert torch_release("2.9.0a0+git1234") == Version("2.9.0")
    assert torch_release(None) is None and torch_release("main") is None
