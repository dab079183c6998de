"""Differences in words."""

from __future__ import annotations

from typing import Any

import pytest

from nccltune.machine.fingerprint import ALL, DDP, NCCL, Difference
from nccltune.output.fingerprints import difference_lines


@pytest.mark.parametrize(
    ("name", "was", "now", "line"),
    [
        ("driver", "580.1", "590.2", "driver: 580.1 where it was measured, 590.2 here"),
        ("gpus", ["H200"] * 8, ["H200"] * 2, "GPUs: 8x H200 where it was measured, 2x H200 here"),
        ("gpus", ["H200"] * 8, [], "GPUs: 8x H200 where it was measured, none here"),
        (
            "links",
            [[0, 1, "NV18"]],
            [[0, 1, "SYS"], [0, 2, "PIX"], [1, 2, "SYS"]],
            "links between GPUs: NV18 between all where it was measured, "
            "0-1 SYS, 0-2 PIX, 1-2 SYS here",
        ),
        (
            "site.NCCL_IB_HCA",
            None,
            "mlx5",
            "NCCL_IB_HCA: not set where it was measured, 'mlx5' here",
        ),
        ("plugins", {"net": "ofi"}, {}, "NCCL's plugins: net ofi where it was measured, none here"),
        ("driver", "580.1", None, "driver: 580.1 where it was measured, none here"),
        (
            "numa",
            {"nodes": 2, "gpus": [0, 1]},
            {"nodes": 1, "gpus": [0, 0]},
            "NUMA: 2 nodes, GPUs at 0, 1 where it was measured, 1 node, GPUs at 0, 0 here",
        ),
        ("script", "abc", "def", "the script's text: changed"),
    ],
)
def test_a_line(name: str, was: Any, now: Any, line: str) -> None:
    told = difference_lines([Difference(name, was, now, frozenset({NCCL, DDP}))])
    assert told == [f"{line} (matters for DDP and NCCL settings)"]


def test_what_it_matters_for() -> None:
    found = [Difference("torch", "1", "2", groups) for groups in (ALL, frozenset[str]())]
    assert [line.partition("(")[2] for line in difference_lines(found)] == [
        "matters for all settings)",
        "matters for no setting here)",
    ]


def test_before_and_then() -> None:
    [line] = difference_lines([Difference("driver", "1", "2", ALL)], "before", "then")
    assert line.startswith("driver: 1 before, 2 then")
