"""Nodes that ranks are on: which can work together, and which may stand in for each other."""

from __future__ import annotations

from typing import Any

import pytest

from nccltune.errors import UsageError
from nccltune.study.definition import _nodes_differ
from nccltune.study.nodes import check_nodes, fingerprints, node_notes

NAMES = ("gpu3", "gpu4")


def facts(**changed: Any) -> dict[str, Any]:
    plain = {
        "cpu": "a processor",
        "cores": 64,
        "memory_gib": 512,
        "gpus": ["H200"] * 8,
        "driver": "580.1",
        "nics": ["InfiniBand 400 Gb/sec"],
        "interfaces": ["eth0", "ib0"],
        "torch": "2.9.1",
        "nvidia-nccl-cu12": "2.27.5",
    }
    return {**plain, **changed}


def test_equal_nodes_have_one_digest_and_nothing_to_tell() -> None:
    nodes = fingerprints([facts(), facts(memory_gib=511)])
    assert [node["node"] for node in nodes] == [0, 1]
    assert nodes[0]["digest"] == nodes[1]["digest"]
    check_nodes(nodes, NAMES, 8, gpus=True)
    assert list(node_notes(nodes, NAMES)) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"gpus": ["H200"] * 4},
            "node gpu4 has 4 GPUs for this job, and every node needs one for each of its 8",
        ),
        ({"usable_gpus": 4}, "node gpu4 has 4 GPUs for this job, .* give --nproc-per-node 4, or"),
        ({"usable_gpus": 0}, "node gpu4 has 0 GPUs for this job, .* ranks; take nodes with as"),
        ({"torch": "2.8.0"}, "node gpu4 has torch 2.8.0, node gpu3 has 2.9.1"),
        ({"nvidia-nccl-cu12": "2.26.2"}, "node gpu4 has nvidia-nccl-cu12 2.26.2"),
    ],
)
def test_what_cannot_work_together_is_refused(changed: dict[str, Any], words: str) -> None:
    nodes = fingerprints([facts(), facts(**changed)])
    with pytest.raises(UsageError, match=words):
        check_nodes(nodes, NAMES, 8, gpus=True)


def test_what_only_sets_the_pace_is_told() -> None:
    nodes = fingerprints([facts(), facts(driver="570.2", nics=[])])
    check_nodes(nodes, NAMES, 8, gpus=True)
    assert list(node_notes(nodes, NAMES)) == [
        "node gpu4 is not like node gpu3: driver 570.2, not 580.1",
        "node gpu4 is not like node gpu3: nics none, not InfiniBand 400 Gb/sec",
    ]


def test_a_study_goes_on_on_equal_nodes_alone() -> None:
    slow, fast = facts(), facts(cores=128)
    stored = fingerprints([slow, fast])
    assert list(_nodes_differ(stored, fingerprints([fast, slow]))) == []
    (told,) = _nodes_differ(stored, fingerprints([slow, slow]))
    assert told.startswith("machine.node 1: ") and stored[1]["digest"] in told
