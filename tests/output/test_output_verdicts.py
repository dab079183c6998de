"""Each sentence of a verdict, word for word."""

from __future__ import annotations

import pytest

from nccltune.output import verdicts
from nccltune.stats.verdict import Verdict

SENTENCES = [
    (
        Verdict("FASTER", 1.0424, 1.0291, 1.0538, 0.012, 6),
        "Faster than the defaults: 4.2% more samples/s [2.9 .. 5.4], 6 + 6 fresh launches.",
    ),
    (
        Verdict("FASTER", 1.631, 1.506, 1.75, 0.012, 12),
        "Faster than the defaults: 1.63 times the samples/s [1.51 .. 1.75], 12 + 12 fresh "
        "launches.",
    ),
    (
        Verdict("SLOWER", 0.95, 0.92, 0.99, 0.012, 12),
        "Slower than the defaults: 5.0% fewer samples/s [1.0 .. 8.0], 12 + 12 fresh launches.",
    ),
    (
        Verdict("WITHIN_NOISE", 1.003, 0.996, 1.009, 0.012, 12),
        "No useful difference to the defaults: +0.3% [-0.4 .. +0.9], inside this machine's noise "
        "of 1.2%, 12 + 12 fresh launches.",
    ),
    (
        Verdict("INCONCLUSIVE", 1.019, 0.994, 1.043, 0.012, 6, more=8),
        "Inconclusive: +1.9% [-0.6 .. +4.3]; noise is 1.2%, 6 + 6 fresh launches. About 8 more "
        "launches of each would settle it.",
    ),
    (
        Verdict("INCONCLUSIVE", 1.019, 0.994, 1.043, 0.012, 12, more=8),
        "Inconclusive: +1.9% [-0.6 .. +4.3]; noise is 1.2%, 12 + 12 fresh launches. A quieter "
        "machine, or a longer --measure-seconds, may settle it.",
    ),
    (
        Verdict("INCONCLUSIVE", 1.019, None, None, 0.012, 3, more=3),
        "Inconclusive: +1.9%; noise is 1.2%, 3 + 3 fresh launches. At least 6 launches of each are "
        "needed.",
    ),
    (
        Verdict("INCONCLUSIVE", 1.012, 0.99, 1.03, 0.012, 12),
        "Inconclusive: +1.2% [-1.0 .. +3.0]; noise is 1.2%, 12 + 12 fresh launches. A quieter "
        "machine, or a longer --measure-seconds, may settle it.",
    ),
    (
        Verdict("INCONCLUSIVE", 1.012, 0.9, 1.1, 0.412, 6, more=3),
        "Inconclusive: +1.2% [-10.0 .. +10.0]; noise is 41.2%, 6 + 6 fresh launches. With so much "
        "noise no two settings can be called equal: a quieter machine is needed.",
    ),
    (
        Verdict("INCONCLUSIVE", None, None, None, None, 0, reason="nothing was measured"),
        "Inconclusive: nothing was measured.",
    ),
]


@pytest.mark.parametrize(("verdict", "sentence"), SENTENCES)
def test_sentences(verdict: Verdict, sentence: str) -> None:
    assert verdicts.sentence(verdict) == sentence


def test_what_it_is_compared_with_is_named() -> None:
    text = verdicts.sentence(SENTENCES[0][0], "old.env")
    assert text.startswith("Faster than old.env: 4.2% more")


def test_what_a_setting_carries() -> None:
    found = Verdict("FASTER", 1.031, 1.012, 1.049, 0.012, 6)
    assert verdicts.share("bucket_cap_mb", found) == "bucket_cap_mb carries +3.1% [+1.2 .. +4.9]"


def test_what_noise_means_is_told() -> None:
    assert verdicts.noise_line(0.0213, 6, 12) == (
        "noise      2.1% by 6 launches of the baseline: a smaller gain cannot be shown here; the "
        "winner is confirmed by 6 to 12 fresh launches of each side"
    )
    assert verdicts.how_many(6) == "6 fresh launches"


def test_a_verdict_survives_being_written() -> None:
    for verdict, _ in SENTENCES:
        assert Verdict.from_dict(verdict.to_dict()) == verdict
