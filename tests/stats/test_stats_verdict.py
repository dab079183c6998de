"""The verdict: every word, when it is said, and that what cannot be computed is not known."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from nccltune.stats.noise import noise_threshold
from nccltune.stats.ratios import RatioInterval
from nccltune.stats.verdict import (
    ERROR,
    FEWEST,
    MOST,
    Block,
    Verdict,
    baseline_first,
    error_at,
    looks,
    settle,
    verdict,
    word_for,
)

EVEN = [100.0] * 12
"""A baseline without noise: the threshold is its floor, 0.5 %."""
NOISE = [[100.0, 101.0, 102.0]]


def against_even(*ratios: float) -> Verdict:
    return verdict([100.0] * len(ratios), [100 * ratio for ratio in ratios])


@pytest.mark.parametrize(
    ("ratios", "word"),
    [
        ([1.1] * 6, "FASTER"),
        ([1.02, 1.03, 1.01, 1.04, 1.02, 1.05], "FASTER"),
        ([0.9] * 6, "SLOWER"),
        ([1.001] * 6, "WITHIN_NOISE"),
        ([0.999, 1.001] * 3, "WITHIN_NOISE"),
        ([1.003] * 6, "WITHIN_NOISE"),  # surely faster, surely by less than matters
        ([0.9, 1.1] * 3, "INCONCLUSIVE"),
        ([1.001, 1.002, 1.002, 1.001, 1.002, 1.02], "INCONCLUSIVE"),  # certain; perhaps large
        ([1.1, 1.1, 1.1, 1.1, 1.1, 0.999], "INCONCLUSIVE"),  # large, not certain
    ],
)
def test_every_word(ratios: list[float], word: str) -> None:
    assert against_even(*ratios).word == word


@pytest.mark.parametrize(
    ("low", "middle", "high", "word"),
    [
        (1.001, 1.03, 1.05, "FASTER"),
        (1.0, 1.03, 1.05, "INCONCLUSIVE"),  # 1 itself is not left out
        (1.001, 1.019, 1.05, "INCONCLUSIVE"),
        (0.95, 0.97, 0.999, "SLOWER"),
        (0.95, 0.97, 1.0, "INCONCLUSIVE"),
        (0.95, 0.982, 0.999, "INCONCLUSIVE"),
        (0.981, 1.0, 1.019, "WITHIN_NOISE"),
        (1.005, 1.01, 1.015, "WITHIN_NOISE"),
        (0.979, 1.0, 1.01, "INCONCLUSIVE"),
        (0.99, 1.0, 1.021, "INCONCLUSIVE"),
        (0.0, 1.0, math.inf, "INCONCLUSIVE"),
        (0.0, 1.5, math.inf, "INCONCLUSIVE"),
    ],
)
def test_what_an_interval_allows_to_say_at_2_percent(
    low: float, middle: float, high: float, word: str
) -> None:
    interval = RatioInterval(middle, low, high, 6)
    assert word_for(interval, interval, 0.02, 0.02) == word


def test_equality_is_judged_by_its_own_interval() -> None:
    wide, narrow = RatioInterval(1.0, 0.97, 1.03, 12), RatioInterval(1.0, 0.985, 1.015, 12)
    assert word_for(wide, narrow, 0.02, 0.02) == "WITHIN_NOISE"
    assert word_for(narrow, wide, 0.02, 0.02) == "INCONCLUSIVE"


def test_equal_is_within_the_noise_which_may_be_more_than_the_threshold() -> None:
    interval = RatioInterval(1.01, 0.98, 1.03, 12)
    assert word_for(interval, interval, 0.02, 0.02) == "INCONCLUSIVE"
    assert word_for(interval, interval, 0.02, 0.04) == "WITHIN_NOISE"
    certain = RatioInterval(1.025, 1.01, 1.035, 12)
    assert word_for(certain, certain, 0.02, 0.04) == "FASTER"


def test_the_threshold_told_before_the_search_is_the_one_that_is_used() -> None:
    noise, ragged = [[100.0, 101.0, 100.5]], [100.0, 110.0] * 6
    found = verdict(ragged, [1.03 * speed for speed in ragged], noise)
    assert found.word == "FASTER"
    assert found.threshold == noise_threshold(noise)
    alone = verdict(ragged, [1.03 * speed for speed in ragged])
    assert alone.threshold == noise_threshold([ragged])


def test_beyond_a_large_noise_nothing_is_called_equal() -> None:
    noise = [[100.0, 150.0, 90.0, 60.0, 130.0, 75.0]]
    assert noise_threshold(noise) > 0.3
    assert verdict(EVEN, EVEN, noise).word == "INCONCLUSIVE"


def test_a_verdict_worked_out_by_hand() -> None:
    # Six values: the interval reaches from the least to the greatest, the estimate is the median
    # of the averages of pairs (of the logarithms): here the middle one, by symmetry.
    steps = (-0.03, -0.02, -0.01, 0.01, 0.02, 0.03)
    found = against_even(*(1.1 * math.exp(step) for step in steps))
    assert found.word == "FASTER"
    assert found.ratio == pytest.approx(1.1)
    assert found.gain == pytest.approx(0.1)
    assert (found.low, found.high) == pytest.approx((1.1 * math.exp(-0.03), 1.1 * math.exp(0.03)))
    assert (found.threshold, found.launches, found.more) == (0.005, 6, None)
    assert found.reason is None


def test_blocks_are_pairs() -> None:
    """A drift that both sides share does not hide a gain."""
    drift = [100.0 * 1.5**number for number in range(6)]
    found = verdict(drift, [1.03 * speed for speed in drift], [[100.0, 100.5, 101.0] * 4])
    assert (found.low, found.ratio, found.high) == pytest.approx((1.03, 1.03, 1.03))


def test_the_other_way_round_says_the_opposite() -> None:
    ours, theirs = [103.0, 104.0, 102.5, 103.5, 104.5, 102.0], [100.0, 101, 99.5, 100.5, 101.5, 99]
    one, other = verdict(theirs, ours, NOISE), verdict(ours, theirs, NOISE)
    assert (one.word, other.word) == ("FASTER", "SLOWER")
    assert one.ratio is not None and other.ratio is not None
    assert one.ratio == pytest.approx(1 / other.ratio)


def test_noise_raises_what_counts() -> None:
    candidate = [100 * ratio for ratio in (1.02, 1.03, 1.01, 1.04, 1.02, 1.05)]
    calm, restless = [[100.0, 100.1] * 6], [[100.0 + 2 * number for number in range(12)]]
    assert verdict(EVEN[:6], candidate, calm).word == "FASTER"
    found = verdict(EVEN[:6], candidate, restless)
    assert found.word == "WITHIN_NOISE"
    assert found.threshold is not None and found.threshold > 0.05


def test_the_claim_of_equality_shows_the_interval_it_rests_on() -> None:
    """12 values. Twice the error of one side is 0.06875: 15 averages lie outside at each end (two
    sides of 0.0640). The interval for a difference would leave out 9 (0.0161).
    """
    ratios = [1 + 0.0002 * number for number in range(-6, 6)]
    logs = [math.log(ratio) for ratio in ratios]
    averages = sorted((a + b) / 2 for i, a in enumerate(logs) for b in logs[i:])
    found = against_even(*ratios)
    assert found.word == "WITHIN_NOISE"
    assert found.low == pytest.approx(math.exp(averages[15]), abs=1e-9)
    assert found.high == pytest.approx(math.exp(averages[-16]), abs=1e-9)
    shown = against_even(*(2 * ratio for ratio in ratios))
    assert shown.word == "FASTER"
    assert shown.low == pytest.approx(2 * math.exp(averages[9]), abs=1e-9)
    assert shown.high == pytest.approx(2 * math.exp(averages[-10]), abs=1e-9)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_too_few_launches_say_nothing_however_clear(count: int) -> None:
    found = against_even(*[2.0] * count)
    assert found.word == "INCONCLUSIVE"
    assert found.ratio == pytest.approx(2.0)
    assert (found.low, found.high) == (None, None)
    assert (found.launches, found.more) == (count, FEWEST - count)


@pytest.mark.parametrize(
    ("baseline", "candidate", "noise", "reason"),
    [
        ([], [], [], "two launches"),
        ([100.0], [101.0], [], "two launches"),
        ([], [], NOISE, "one at least"),
        (EVEN[:6], EVEN[:5], [], "6 launches of one side, 5 of the other"),
        (EVEN[:6], [], [], "6 launches of one side, 0 of the other"),
        (EVEN[:6], [*EVEN[:5], math.nan], [], "finite"),
        ([*EVEN[:5], math.nan], EVEN[:6], [], "finite"),
        (EVEN[:6], [*EVEN[:5], math.inf], [], "finite"),
        (EVEN[:6], [*EVEN[:5], 0.0], [], "above 0"),
        ([*EVEN[:5], 0.0], EVEN[:6], [], "above 0"),
        ([*EVEN[:5], -100.0], [*EVEN[:5], -101.0], [], "above 0"),
        (EVEN[:6], EVEN[:6], [[100.0, math.nan]], "finite"),
        (EVEN[:6], EVEN[:6], [[100.0, 0.0]], "above 0"),
        ([1e-300, 1e300] * 3, EVEN[:6], [], "range"),
        (EVEN[:6], [*EVEN[:5], None], [], "NoneType"),
    ],
)
def test_what_cannot_be_computed_is_not_known(
    baseline: Sequence[float], candidate: Sequence[Any], noise: Any, reason: str
) -> None:
    found = verdict(baseline, candidate, noise)
    assert found.word == "INCONCLUSIVE"
    assert (found.ratio, found.low, found.high, found.threshold) == (None, None, None, None)
    assert found.gain is None and found.more is None
    assert found.launches == min(len(baseline), len(candidate))
    assert found.reason is not None and reason in found.reason and "\n" not in found.reason


@pytest.mark.parametrize(
    ("limit", "when"),
    [(5, ()), (6, (6,)), (8, (6,)), (11, (6,)), (12, (6, 12)), (30, (6, 12))],
)
def test_when_the_comparison_is_looked_at(limit: int, when: tuple[int, ...]) -> None:
    assert looks(limit) == when


def test_all_looks_together_err_in_5_percent() -> None:
    assert sum(error_at(count) for count in looks(MOST)) == pytest.approx(ERROR) == 0.05
    assert error_at(6) == 1 / 32  # what six values err by, without any choice


@pytest.mark.parametrize("seed", ["a", "b", "winner 0123"])
def test_each_side_is_first_in_half_of_the_blocks(seed: str) -> None:
    order = [baseline_first(seed, block) for block in range(24)]
    assert [sum(order[start : start + 6]) for start in (0, 6, 12, 18)] == [3, 3, 3, 3]
    assert order == [baseline_first(seed, block) for block in range(24)]


def test_the_order_is_another_one_for_another_comparison() -> None:
    orders = {tuple(baseline_first(str(seed), b) for b in range(6)) for seed in range(300)}
    assert len(orders) == 20, "all ways to choose 3 of 6"


def test_how_many_more_settle_it() -> None:
    # Interval: the least to the greatest, +-0.1 about 0.05 in logarithms; to leave out 1 the half
    # width has to halve: four times as many launches, 24.
    steps = (-0.1, -0.1, 0.0, 0.0, 0.1, 0.1)
    found = against_even(*(math.exp(0.05 + step) for step in steps))
    assert (found.word, found.launches, found.more) == ("INCONCLUSIVE", 6, 18)
    # The estimate is 1 and the room log(1.005): half width 0.01 x 6 launches takes 4.02 x 6 = 24.2.
    found = against_even(*(math.exp(step / 10) for step in steps))
    assert (found.word, found.more) == ("INCONCLUSIVE", 25 - 6)


def test_what_is_far_away_is_not_promised() -> None:
    assert against_even(*[0.5, 2.0] * 3).more is None
    assert against_even(*[1.1] * 6).more is None, "nothing is left to settle"


def measuring(
    blocks: Sequence[Block | None], noise: Sequence[Sequence[float]] = (), **given: Any
) -> tuple[Verdict, list[int]]:
    asked: list[int] = []
    start = len(given.get("done", ()))

    def measure(number: int) -> Block | None:
        asked.append(number)
        return blocks[number - start]

    return settle(measure, noise, **given), asked


CLEAR: Block = (100.0, 120.0)
ALIKE: Block = (100.0, 100.0)
MIXED: list[Block] = [(100.0, 90.0), (100.0, 110.0)] * 6


@pytest.mark.parametrize(("block", "word"), [(CLEAR, "FASTER"), (ALIKE, "WITHIN_NOISE")])
def test_what_is_clear_ends_after_6(block: Block, word: str) -> None:
    found, asked = measuring([block] * 12)
    assert (found.word, found.launches) == (word, 6)
    assert asked == list(range(6))


def test_what_is_not_clear_goes_to_the_limit() -> None:
    found, asked = measuring(MIXED)
    assert (found.word, found.launches) == ("INCONCLUSIVE", 12)
    assert asked == list(range(12))


def test_there_is_no_look_between_6_and_the_limit() -> None:
    """All of the error is kept for the looks, so nothing is claimed between them."""
    blocks = [(100.0, 99.9), *[CLEAR] * 11]
    between = verdict(EVEN[:9], [c for _, c in blocks[:9]])
    assert (between.word, between.more) == ("INCONCLUSIVE", 3)
    assert between.low is not None and between.low > 1
    found, asked = measuring(blocks)
    assert (found.word, found.launches) == ("FASTER", 12)
    assert len(asked) == 12


@pytest.mark.parametrize("limit", [6, 8])
def test_a_low_limit_has_one_look(limit: int) -> None:
    found, asked = measuring([CLEAR] * 12, limit=limit)
    assert (found.word, found.launches, len(asked)) == ("FASTER", 6, 6)
    found, asked = measuring(MIXED, limit=limit)
    assert (found.word, found.launches, len(asked)) == ("INCONCLUSIVE", 6, 6)


def test_a_limit_too_low_to_know() -> None:
    found, asked = measuring([CLEAR] * 12, limit=5)
    assert (found.word, found.launches, found.more, len(asked)) == ("INCONCLUSIVE", 5, 1, 5)


def test_blocks_measured_before_count() -> None:
    found, asked = measuring([CLEAR] * 12, done=[CLEAR] * 4)
    assert (found.word, found.launches) == ("FASTER", 6)
    assert asked == [4, 5]
    found, asked = measuring([], done=[CLEAR] * 6)
    assert (found.word, asked) == ("FASTER", [])
    found, asked = measuring([], done=MIXED)
    assert (found.word, found.launches, asked) == ("INCONCLUSIVE", 12, [])
    found, asked = measuring([CLEAR] * 12, done=MIXED[:6])
    assert asked == [6, 7, 8, 9, 10, 11]


def test_where_no_further_block_is_to_be_had() -> None:
    found, asked = measuring([CLEAR, CLEAR, None])
    assert (found.word, found.launches, found.more) == ("INCONCLUSIVE", 2, 4)
    assert asked == [0, 1, 2]
    found, _ = measuring([*MIXED[:1], *[CLEAR] * 8, None])
    assert (found.word, found.launches, found.more) == ("INCONCLUSIVE", 9, 3)
    found, _ = measuring([None])
    assert (found.word, found.launches, found.reason) == ("INCONCLUSIVE", 0, "nothing was measured")


def test_a_block_that_is_no_measurement_is_not_known() -> None:
    found, asked = measuring([*[CLEAR] * 5, (100.0, math.nan), *[CLEAR] * 6])
    assert (found.word, found.ratio, len(asked)) == ("INCONCLUSIVE", None, 12)
    assert found.reason is not None


def test_what_settle_promises_holds_over_both_looks() -> None:
    """2000 comparisons: the interval that is returned misses the true ratio in 5 % at most, and
    both looks are needed.
    """
    draw = random.Random(7)
    missed, ends = 0, {6: 0, 12: 0}
    for _ in range(2000):
        noise = [[math.exp(draw.gauss(0, 0.01)) for _ in range(6)]]
        blocks: list[Block] = [
            (math.exp(draw.gauss(0, 0.01)), 1.03 * math.exp(draw.gauss(0, 0.01))) for _ in range(12)
        ]
        found = settle(blocks.__getitem__, noise)
        assert found.low is not None and found.high is not None
        missed += not found.low <= 1.03 <= found.high
        ends[found.launches] += 1
    assert missed / 2000 <= 0.05
    assert min(ends.values()) > 100


def test_a_verdict_goes_through_json() -> None:
    for found in (against_even(*[1.1] * 6), verdict([], []), against_even(1.0, 1.2)):
        assert Verdict.from_dict(json.loads(json.dumps(found.to_dict()))) == found
