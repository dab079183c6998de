"""What trials are worth by all that is known."""

from __future__ import annotations

from study_jobs import measurement, space_of

from nccltune.space import canonical
from nccltune.study.records import Trial
from nccltune.study.sampling.estimates import candidates, estimated

SPACE = space_of(
    {
        "bucket_cap_mb": {
            "target": "ddp", "range": {"low": 1, "high": 100}, "default": 25,
        },
        "gradient_as_bucket_view": {
            "target": "ddp", "choices": [False, True], "default": False,
        },
    }
)  # fmt: skip


def trial(number: int, value: float, state: str = "complete", **changed: object) -> Trial:
    values = canonical(changed, SPACE)  # type: ignore[arg-type]
    return Trial(number, "search", "sampler", values, state, value, None, 1.0)  # type: ignore[arg-type]


def test_a_pruned_trial_with_a_value_of_its_own() -> None:
    trials = [trial(0, 100.0), trial(1, 110.0, bucket_cap_mb=50)]
    trials.append(trial(2, 60.0, "pruned", bucket_cap_mb=73))
    found = estimated(trials, [], SPACE)
    assert [t.number for t in found] == [0, 1, 2]
    assert found[2] == trials[2]
    assert (found[1].value or 0) > (found[0].value or 0)


def test_luck_of_one_measurement_is_taken_back() -> None:
    """Ten launches of the default scatter by 5 %: another that looks 5 % faster need not be."""
    trials = [trial(0, 100.0), trial(1, 106.0, bucket_cap_mb=50), trial(2, 99.0, bucket_cap_mb=51)]
    values = (95.0, 105.0, 97.0, 103.0, 94.0, 106.0, 99.0, 101.0)
    noise = [
        measurement(number, value, purpose="noise", launch=number)
        for number, value in enumerate(values, start=3)
    ]
    found = estimated(trials, noise, SPACE)
    assert 99 < (found[1].value or 0) < 105.5


def test_repeats_stand_together_with_other_samplers_by_their_mean() -> None:
    trials = [trial(0, 100.0), trial(1, 120.0, bucket_cap_mb=50), trial(2, 100.0, bucket_cap_mb=50)]
    found = estimated(trials, [], SPACE)
    assert [t.number for t in found] == [0, 1]
    assert 100 < (found[1].value or 0) < 118
    told = candidates(trials, [], SPACE, "tpe")
    assert [(t.number, t.value) for t in told] == [(0, 100.0), (1, 110.0)]
