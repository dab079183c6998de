"""What is said of a watched job, from made-up reports."""

from __future__ import annotations

import pytest

from nccltune.worker.attach.judging import Judge, Promise, Report, line

PROMISE = Promise(speed=3450.0, low=3300.0, high=3600.0)
NEXT = "`nccltune verify best.yaml` knows more"


def report(
    speed: float | None = 3400.0,
    exposed: float | None = 0.04,
    interrupted: bool = False,
    first: bool = False,
    step: int = 1200,
) -> Report:
    """100 steps in 10 s."""
    samples = None if speed is None else round(10 * speed)
    return Report(step, 100, 10.0, samples, exposed, interrupted, first)


def said(*reports: Report, promise: Promise | None = PROMISE) -> list[list[str]]:
    """Warnings after each report."""
    judge = Judge(promise, NEXT)
    return [list(judge.warnings(each)) for each in reports]


SLOW, GOOD = report(3000.0), report(3400.0)


def test_a_report_in_words() -> None:
    assert line(report(3412.0), PROMISE, 2) == (
        "step 1200: 3412 samples/s of 2 ranks, 99% of the 3450 promised (3300 .. 3600); "
        "communication that computing does not hide: 4% of a step"
    )
    assert line(report(123.45, None), None, 1) == "step 1200: 123.4 samples/s of 1 rank"
    assert line(report(None, None), PROMISE, 2) == "step 1200: 10.00 steps/s"
    assert line(report(3412.0, None, first=True), None, 2).endswith(
        " (the first steps, not judged)"
    )
    assert line(report(3412.0, None, interrupted=True), None, 2).endswith(
        " (an epoch began or validation ran, not judged)"
    )


def test_three_slow_reports_in_a_row_are_told_once() -> None:
    warnings = said(*[SLOW] * 6)
    assert [len(each) for each in warnings] == [0, 0, 1, 0, 0, 0]
    assert warnings[2] == [
        "slower than promised in 3 reports in a row: 3000 samples/s now, and at least 3300 were "
        f"expected. {NEXT}"
    ]


def test_a_good_report_between_them_begins_anew() -> None:
    assert said(SLOW, SLOW, GOOD, SLOW, SLOW, GOOD) == [[]] * 6
    assert len(said(SLOW, SLOW, GOOD, SLOW, SLOW, SLOW)[-1]) == 1


def test_the_first_and_the_interrupted_say_nothing_either_way() -> None:
    first, interrupted = report(1.0, 0.9, first=True), report(1.0, 0.9, interrupted=True)
    assert said(first, *[interrupted] * 5, SLOW, SLOW) == [[]] * 8
    fast = report(9000.0, 0.0, interrupted=True)
    assert [len(each) for each in said(SLOW, fast, SLOW, fast, SLOW)] == [0, 0, 0, 0, 1]


def test_what_is_faster_than_promised_is_not_below() -> None:
    assert said(*[report(9000.0)] * 4) == [[]] * 4
    assert said(*[report(3300.0)] * 4) == [[]] * 4  # the interval's own end


def test_communication_is_judged_without_a_promise_too() -> None:
    warnings = said(*[report(1.0, 0.34)] * 5, promise=None)
    assert [len(each) for each in warnings] == [0, 0, 1, 0, 0]
    assert warnings[2] == [
        "communication that computing does not hide is 34% of a step, above 30% in 3 reports in a "
        f"row. {NEXT}"
    ]
    assert said(*[report(1.0, 0.30)] * 4, promise=None) == [[]] * 4


def test_each_of_the_two_warnings_comes_once() -> None:
    warnings = said(*[report(3000.0, 0.5)] * 5)
    assert [len(each) for each in warnings] == [0, 0, 2, 0, 0]


def test_what_is_not_known_changes_nothing() -> None:
    unknown = report(None, None)
    assert [len(w) for w in said(SLOW, unknown, SLOW, unknown, SLOW)] == [0, 0, 0, 0, 1]


def test_below_follows_the_job() -> None:
    judge, seen = Judge(PROMISE, NEXT), []
    for each in [SLOW, SLOW, SLOW, SLOW, GOOD, SLOW]:
        list(judge.warnings(each))
        seen.append(judge.below)
    assert seen == [False, False, True, True, False, False]


@pytest.mark.parametrize(
    ("rhythm", "advice"), [(60, "; --watch-every 20 has reports between them"), (5, ""), (0, "")]
)
def test_where_every_report_is_interrupted_that_is_told_once(rhythm: int, advice: str) -> None:
    judge = Judge(PROMISE, NEXT)
    interrupted = report(interrupted=True)
    told = [judge.nothing_judged(interrupted, rhythm) for _ in range(12)]
    assert told[:4] == [None] * 4 and told[5:] == [None] * 7
    assert told[4] is not None and told[4].endswith(f"none is judged{advice}")


def test_one_that_is_judged_begins_that_anew() -> None:
    judge = Judge(PROMISE, NEXT)
    reports = [*[report(interrupted=True)] * 4, report()] * 3
    assert [judge.nothing_judged(each, 60) for each in reports] == [None] * 15
