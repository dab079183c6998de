"""What is parsed at the edge: times, --fix, the defaults of a search."""

from __future__ import annotations

import pytest

from nccltune.errors import UsageError
from nccltune.study.options import SearchOptions, parse_duration, parse_fix


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        (" 90s ", 90.0),
        ("10m", 600.0),
        ("1h", 3600.0),
        ("1h30m", 5400.0),
        ("1h30m15s", 5415.0),
        ("1h15", 3615.0),
        ("0.5h", 1800.0),
        ("1.5m", 90.0),
        ("0h10m", 600.0),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "m", "10x", "-5", "1m1h", "1h 30m", "10 min", "1e3", "inf", "nan", "1,5h"]
)
def test_what_is_no_time_says_how_to_write_one(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    assert str(caught.value) == f"not a time: {text!r}; write it like 90s, 10m or 1h30m"


@pytest.mark.parametrize("text", ["0", "0s", "0h0m0s"])
def test_no_time_at_all_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"a time must be above 0, got '{text}'"):
        parse_duration(text)


def test_fixed_values_are_read_as_yaml_reads_them() -> None:
    given = (
        "num_workers=8",
        "gradient_as_bucket_view=true",
        "bucket_cap_mb=12.5",
        "NCCL_ALGO=Ring",
        "NCCL_PROTO=^LL128",
        "prefetch_factor=null",
        "quoted='8'",
        "thresholds=1 2 3",
        "grammar=ring,tree;allreduce:tree",
        "equals=a=b",
        "list=[1, 2]",
        "day=2026-01-02",
        "bad={",
    )
    fixed = parse_fix(given)
    assert fixed == {
        "num_workers": 8,
        "gradient_as_bucket_view": True,
        "bucket_cap_mb": 12.5,
        "NCCL_ALGO": "Ring",
        "NCCL_PROTO": "^LL128",
        "prefetch_factor": None,
        "quoted": "8",
        "thresholds": "1 2 3",
        "grammar": "ring,tree;allreduce:tree",
        "equals": "a=b",
        "list": "[1, 2]",
        "day": "2026-01-02",
        "bad": "{",
    }
    assert fixed["gradient_as_bucket_view"] is True
    assert type(fixed["num_workers"]) is int
    assert parse_fix(()) == {}


@pytest.mark.parametrize("text", ["null", "~", "unset", "Null", "NULL"])
def test_unset_can_be_written_as_it_is_shown(text: str) -> None:
    assert parse_fix((f"bucket_cap_mb={text}",)) == {"bucket_cap_mb": None}
    assert parse_fix((f"bucket_cap_mb= {text} ",)) == {"bucket_cap_mb": None}


def test_what_only_yaml_takes_for_nothing_is_a_text() -> None:
    assert parse_fix(("name=# eth0", "quoted='null'")) == {"name": "# eth0", "quoted": "null"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("num_workers",), "--fix num_workers: write it as NAME=VALUE"),
        (("=8",), "--fix =8: write it as NAME=VALUE"),
        (("",), "--fix : write it as NAME=VALUE"),
        (("a=1", "a=2"), "--fix a: given twice"),
        (("a=",), "--fix a=: needs a value; write a=null for unset"),
        (("a= ",), "--fix a=: needs a value; write a=null for unset"),
    ],
)
def test_bad_fixes(given: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_fix(given)
    assert str(caught.value) == message


def _completed(options: SearchOptions, device: str) -> tuple[object, ...]:
    whole = options.complete(device)
    return (
        whole.model, whole.trials, whole.time_budget, whole.batch_size, whole.image_size,
    )  # fmt: skip


def test_defaults_depend_on_the_machine_only_without_a_model() -> None:
    assert _completed(SearchOptions(), "cuda") == ("resnet50", 40, None, 64, 224)
    assert _completed(SearchOptions(), "cpu") == ("resnet18", 12, 240.0, 8, 64)
    named = SearchOptions(model="vit_b_16")
    assert _completed(named, "cpu") == ("vit_b_16", 40, None, 64, 224)


def test_what_was_given_stays() -> None:
    given = SearchOptions(trials=3, time_budget=9.0, batch_size=5, image_size=32)
    assert _completed(given, "cpu") == ("resnet18", 3, 9.0, 5, 32)
    assert given.complete("cpu").complete("cpu") == given.complete("cpu")
