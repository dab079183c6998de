"""Whether a candidate is faster than the baseline: from the speeds of fresh launches to one word.

Launches come in blocks, one of each side in random order. The comparison is looked at after 6
blocks and after the last. At each look the interval spends its share of the error, so that
together they miss the true ratio in at most 5 % of comparisons, whenever one stops (repeated
confidence intervals: C. Jennison and B. W. Turnbull, Interim analyses: the repeated confidence
interval approach, J. R. Stat. Soc. B 51, 1989; with Bonferroni's bound). That two sides are equal
is shown by two one-sided tests (D. J. Schuirmann, J. Pharmacokinet. Biopharm. 15, 1987), whose
error is shared out in the same way.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from nccltune.stats.noise import noise_threshold
from nccltune.stats.ratios import RatioInterval
from nccltune.stats.signed_rank import signed_rank_interval, two_sided_error

Word = Literal["FASTER", "SLOWER", "WITHIN_NOISE", "INCONCLUSIVE"]

FEWEST = 6
"""Blocks before anything can be said: fewer cannot exclude chance at 95 %, however clear."""
MOST = 12
ERROR = 0.05
_FAR = 100
TOO_NOISY = 0.3
"""Beyond such a threshold "inside the noise" would not mean that a difference is small."""


@dataclass(frozen=True)
class Verdict:
    """`ratio` is candidate over baseline, samples/s, with its interval [`low`, `high`];
    `threshold` the smallest gain that counts, a fraction; `launches` how many of each side.

    `more` is how many launches of each side would probably settle it, None where nothing is to
    settle or that is far away. `reason` says why nothing is claimed: it cannot be
    computed, or something contradicts it.
    """

    word: Word
    ratio: float | None
    low: float | None
    high: float | None
    threshold: float | None
    launches: int
    more: int | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verdict:
        return cls(**data)

    @property
    def gain(self) -> float | None:
        """More samples/s, as a fraction."""
        return None if self.ratio is None else self.ratio - 1


def looks(limit: int) -> tuple[int, ...]:
    """After how many blocks the comparison is looked at, when at most `limit` are allowed."""
    return tuple(count for count in (FEWEST, MOST) if count <= limit)


def baseline_first(seed: str, block: int) -> bool:
    """The order within a block: random, with each side first in half of the blocks up to a look,
    since the side that is launched second may be slower for that.
    """
    half = FEWEST // 2
    order = [True] * half + [False] * (FEWEST - half)
    random.Random(f"{seed} {block // FEWEST}").shuffle(order)
    return order[block % FEWEST]


def error_at(count: int) -> float:
    """The share of the error that the interval after `count` blocks may spend, whatever limit was
    asked for: a comparison of 6 may then go on to 12.
    """
    first = _first_error()
    return first if count <= FEWEST else ERROR - first


def _first_error() -> float:
    return two_sided_error(FEWEST, 0)


def verdict(
    baseline: Sequence[float],
    candidate: Sequence[float],
    noise: Sequence[Sequence[float]] = (),
) -> Verdict:
    """The verdict on speeds (samples/s) of fresh launches, block by block.

    `noise` are earlier runs of the baseline, which make the threshold, or those given here where
    there are none. Two sides are equal within what all launches of the baseline show. Fails closed:
    what cannot be computed is INCONCLUSIVE, with the reason.
    """
    count = min(len(baseline), len(candidate))
    try:
        if len(baseline) != len(candidate):
            raise ValueError(f"{len(baseline)} launches of one side, {len(candidate)} of the other")
        seen = noise_threshold([*noise, baseline])
        threshold = noise_threshold(noise) if noise else seen
        ratios = [ours / theirs for ours, theirs in zip(candidate, baseline, strict=True)]
        interval = signed_rank_interval(ratios, error_at(count))
        if count not in looks(MOST):
            return _between(interval, threshold)
        equal = signed_rank_interval(ratios, 2 * _one_sided(count))
        return _decided(interval, equal, threshold, max(threshold, seen))
    except (ValueError, ZeroDivisionError, OverflowError, TypeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        return Verdict("INCONCLUSIVE", None, None, None, None, count, reason=reason)


def _between(interval: RatioInterval, threshold: float) -> Verdict:
    """What was seen so far, where the comparison ended between two looks: no claim is made."""
    left = next(look for look in (*looks(MOST), interval.count) if look >= interval.count)
    finite = math.isfinite(interval.high)
    return Verdict(
        word="INCONCLUSIVE",
        ratio=interval.ratio,
        low=interval.low if finite else None,
        high=interval.high if finite else None,
        threshold=threshold,
        launches=interval.count,
        more=max(1, left - interval.count),
    )


def _one_sided(count: int) -> float:
    """The error that the claim of equality may spend on each side at this look."""
    return _first_error() / 2 if count <= FEWEST else ERROR - _first_error() / 2


def _decided(
    interval: RatioInterval,
    equal: RatioInterval,
    threshold: float,
    noise: float,
) -> Verdict:
    word, shown = word_for(interval, equal, threshold, noise), interval
    if word == "WITHIN_NOISE":
        shown, threshold = equal, noise  # what the claim rests on
    more = _more(interval, threshold) if word == "INCONCLUSIVE" else None
    finite = math.isfinite(shown.high)
    return Verdict(
        word=word,
        ratio=shown.ratio,
        low=shown.low if finite else None,
        high=shown.high if finite else None,
        threshold=threshold,
        launches=shown.count,
        more=more,
    )


def word_for(interval: RatioInterval, equal: RatioInterval, threshold: float, noise: float) -> Word:
    """A difference has to be certain (the interval leaves out 1) and large enough to matter (the
    estimate is beyond the threshold). Equal is what surely lies inside the noise. All else is not
    known.
    """
    bound, inside = math.log1p(threshold), math.log1p(noise)
    middle = math.log(interval.ratio)
    if interval.low > 1 and middle >= bound:
        return "FASTER"
    if interval.high < 1 and middle <= -bound:
        return "SLOWER"
    small = noise <= TOO_NOISY
    if small and equal.low > math.exp(-inside) and equal.high < math.exp(inside):
        return "WITHIN_NOISE"
    return "INCONCLUSIVE"


def _more(interval: RatioInterval, threshold: float) -> int | None:
    """Launches of each side beyond those made until the interval, which narrows with the root of
    their number, leaves out 1 or lies inside the threshold.
    """
    count = interval.count
    half = (math.log(interval.high) - math.log(interval.low)) / 2
    middle, bound = abs(math.log(interval.ratio)), math.log1p(threshold)
    room = middle if middle >= bound else bound - middle
    if room <= 0:
        return None
    needed = math.ceil(count * (half / room) ** 2)
    return needed - count if count < needed <= _FAR else None


Block = tuple[float, float]
"""Speeds of the baseline and of the candidate, samples/s."""


def settle(
    measure: Callable[[int], Block | None],
    noise: Sequence[Sequence[float]],
    limit: int = MOST,
    done: Sequence[Block] = (),
) -> Verdict:
    """Measure blocks until the verdict is clear at a look, or `limit` blocks are made.

    `measure` is given the number of the block, from 0, and returns None when no further one can be
    had: the verdict is then on what there is. `done` are blocks measured before.
    """
    blocks = list(done)
    last = max(looks(limit), default=limit)  # further ones would come after the last look
    while len(blocks) < last:
        if len(blocks) in looks(limit):
            found = _of(blocks, noise)
            if found.word != "INCONCLUSIVE":
                return found
        block = measure(len(blocks))
        if block is None:
            break
        blocks.append(block)
    return _of(blocks, noise) if blocks else _nothing()


def _of(blocks: Sequence[Block], noise: Sequence[Sequence[float]]) -> Verdict:
    return verdict([b for b, _ in blocks], [c for _, c in blocks], noise)


def _nothing() -> Verdict:
    return Verdict("INCONCLUSIVE", None, None, None, None, 0, reason="nothing was measured")
