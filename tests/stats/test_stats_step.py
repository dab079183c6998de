"""Shares and bounds of a step, from times made by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nccltune.stats.step import Diagnosis, PairSpeed, Shares, diagnosis_of


def result(**parts: Any) -> dict[str, Any]:
    """As ranks report it, four samples a rank; each part one number for all, or rounds of ranks."""
    named = {name: value for name, value in parts.items() if name not in ("host", "busy", "wait")}
    rounds = {
        name: value if isinstance(value, list) else [[value, value]]
        for name, value in named.items()
    }
    return {
        "world_size": len(rounds["whole"][0]),
        "batch_size": 4,
        "workers": 2,
        "parts": rounds,
        "data_wait": parts.get("wait", [[0.0] * len(row) for row in rounds["whole"]]),
        "host": parts.get("host", []),
        "busy": parts.get("busy", []),
        "steady": True,
        "seconds": {},
    }


def found(**parts: Any) -> Diagnosis:
    return diagnosis_of(result(**parts))


def shares(data: float, compute: float, communication: float, host: float = 0.0) -> Any:
    return pytest.approx([data, compute, communication, host])


def of(rank: Shares) -> list[float]:
    return [rank.data, rank.compute, rank.communication, rank.host]


def test_nothing_but_computing() -> None:
    seen = found(whole=0.1, unsynced=0.1, synthetic=0.1, compute=0.1, loader=0.02, alone=[[0.1]])
    assert [of(rank) for rank in seen.ranks] == [shares(0, 1, 0)] * 2
    assert (seen.communication_bound, seen.loader_bound) == (0, 0)
    assert (seen.communication_limit, seen.loader_limit) == (0, 0)
    assert seen.scaling_efficiency == 1
    assert seen.samples_per_second == pytest.approx(80)
    assert seen.loader_seconds == 0.02


def test_a_loader_of_half_the_pace() -> None:
    seen = found(whole=0.1, unsynced=0.1, synthetic=0.05, compute=0.05)
    assert of(seen.ranks[0]) == shares(0.5, 0.5, 0)
    assert seen.loader_bound == pytest.approx(1.0)  # twice the samples/s
    assert seen.communication_bound == 0


def test_exposed_communication() -> None:
    seen = found(whole=0.1, unsynced=0.08, synthetic=0.1, compute=0.08)
    assert of(seen.ranks[0]) == shares(0, 0.8, 0.2)
    assert seen.communication_bound == pytest.approx(0.25)
    assert seen.loader_bound == 0


def test_communication_behind_a_slow_loader_can_be_won_only_once_data_is_in_time() -> None:
    # 50 of computing, 30 of communication, a batch every 100: the loader is awaited for 20.
    seen = found(whole=0.1, unsynced=0.1, synthetic=0.08, compute=0.05)
    assert of(seen.ranks[0]) == shares(0.2, 0.5, 0.3)
    assert seen.communication_bound == 0
    assert seen.communication_bound_fed == pytest.approx(0.6)
    assert seen.loader_bound == pytest.approx(0.25)
    assert seen.loader_bound_unsynced == pytest.approx(1.0)
    assert seen.communication_limit == pytest.approx(0.6)
    assert seen.loader_limit == pytest.approx(1.0)


def test_a_rank_that_waits_for_anothers_data_waits_for_that_rank() -> None:
    seen = found(
        whole=[[0.1, 0.1]], unsynced=[[0.1, 0.05]], synthetic=[[0.05, 0.05]], compute=[[0.05, 0.05]]
    )
    assert of(seen.ranks[0]) == shares(0.5, 0.5, 0)
    assert of(seen.ranks[1]) == shares(0, 0.5, 0.5)
    assert seen.communication_bound == 0  # no communication setting makes rank 0 faster
    assert seen.loader_bound == pytest.approx(1.0)


def test_parts_that_noise_makes_negative_are_nothing() -> None:
    seen = found(whole=0.1, unsynced=0.11, synthetic=0.12, compute=0.13)
    assert of(seen.ranks[0]) == shares(0, 1, 0)
    assert (seen.communication_bound, seen.loader_bound) == (0, 0)
    assert (seen.communication_bound_fed, seen.loader_bound_unsynced) == (0, 0)


def test_what_a_rank_was_seen_to_wait_counts_where_no_gpu_is_busy_meanwhile() -> None:
    times: dict[str, Any] = {
        "whole": 0.1, "unsynced": 0.09, "synthetic": 0.08, "compute": 0.07, "wait": [[0.025, 0.0]],
    }  # fmt: skip
    seen = found(**times)
    assert of(seen.ranks[0]) == shares(0.25, 0.7, 0.05)
    assert of(seen.ranks[1]) == shares(0.2, 0.7, 0.1)
    seen = found(**times, busy=[[0.07, 0.07]])
    assert of(seen.ranks[0]) == of(seen.ranks[1]) == shares(0.2, 0.7, 0.1)


def test_data_never_takes_more_than_computing_leaves() -> None:
    seen = found(whole=0.1, unsynced=0.16, synthetic=0.04, compute=0.08)
    assert of(seen.ranks[0]) == shares(0.2, 0.8, 0)


def test_without_a_loader_there_is_nothing_to_win_from_it() -> None:
    seen = found(whole=0.1, unsynced=0.08, alone=[[0.07]])
    assert of(seen.ranks[0]) == shares(0, 0.8, 0.2)
    assert (seen.loader_bound, seen.loader_bound_unsynced, seen.loader_seconds) == (0, 0, None)
    assert seen.communication_bound == seen.communication_bound_fed == pytest.approx(0.25)
    assert seen.scaling_efficiency == pytest.approx(0.7)


def test_gpu_gaps_are_the_hosts() -> None:
    seen = diagnosis_of(
        result(
            whole=[[0.1, 0.1]],
            unsynced=[[0.08, 0.08]],
            busy=[[0.06, 0.09]],
            host=[[0.08, 0.01]],
        ),
        (70.0, 99.0),
    )
    assert of(seen.ranks[0]) == shares(0, 0.6, 0.2, 0.2)
    assert of(seen.ranks[1]) == shares(0, 0.8, 0.2, 0)
    assert seen.gpu_busy == pytest.approx((0.6, 0.9))
    assert seen.utilization == (70.0, 99.0)


def test_one_rank_scales_against_nothing() -> None:
    seen = found(whole=[[0.1]], unsynced=[[0.1]], alone=[[0.1]])
    assert seen.scaling_efficiency is None
    assert seen.world_size == 1 and len(seen.ranks) == 1


def test_the_slowest_rank_counts_and_ratios_are_of_one_round() -> None:
    # The machine gets slower from round to round; the ratio does not.
    seen = found(
        whole=[[0.10, 0.12], [0.24, 0.20], [0.36, 0.36], [0.48, 0.40]],
        unsynced=[[0.10, 0.08], [0.20, 0.20], [0.30, 0.30], [0.40, 0.10]],
        wait=[[0.01, 0.0], [0.02, 0.0], [0.03, 0.0], [0.04, 0.0]],
    )
    assert seen.communication_bound == pytest.approx(0.2)
    assert seen.step_seconds == pytest.approx(0.30)  # between 0.24 and 0.36
    assert seen.noise == pytest.approx((0.48 - 0.12) / 2 / 0.30)
    assert seen.communication_limit == pytest.approx(0.2 + 0.6)
    assert seen.data_wait_seconds == pytest.approx((0.025, 0.0))


def test_as_plain_values() -> None:
    document = found(whole=0.1, unsynced=0.08).to_dict()
    assert document["ranks"][0]["compute"] == pytest.approx(0.8)
    assert document["scaling_efficiency"] is None


def test_pairs_of_ranks_survive_a_record_and_old_records_have_none() -> None:
    given = {**result(whole=0.1, unsynced=0.08), "pairs": [[0, 1, 5e9], [0, 2, 2.5e9]]}
    seen = diagnosis_of(given)
    assert seen.pairs == (PairSpeed(0, 1, 5e9), PairSpeed(0, 2, 2.5e9))
    document = json.loads(json.dumps(seen.to_dict()))
    assert Diagnosis.from_dict(document) == seen
    del document["pairs"]
    assert Diagnosis.from_dict(document).pairs == ()
