"""Ranks compare what NCCL will read in each of them, without telling the values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nccltune.worker.agreement import check, own_view
from nccltune.worker.status import Disagreement

HERE = {"SLURMD_NODENAME": "n0", "NCCLTUNE_NODE": "0", "NCCL_ALGO": "Ring", "HOME": "/a"}
THERE = {**HERE, "SLURMD_NODENAME": "n1", "NCCLTUNE_NODE": "1"}
VERSIONS = {"torch": "2.9.1", "NCCL": "2.27.5"}


def test_what_may_differ_from_rank_to_rank_is_no_disagreement() -> None:
    free = {
        "NCCL_HOSTID": "b",
        "NCCL_SOCKET_IFNAME": "=eth1",
        "NCCL_IB_HCA": "mlx5_1",
        "NCCL_DEBUG_FILE": "/tmp/b",
        "GLOO_SOCKET_IFNAME": "eth1",
        "PATH": "/b",
    }
    check([own_view(HERE, VERSIONS), own_view({**THERE, **free}, VERSIONS)])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"NCCL_ALGO": "Tree"}, "rank 1 on node n1 has another NCCL_ALGO than rank 0 on node n0"),
        ({"NCCL_PROTO": "LL"}, "rank 1 on node n1 has NCCL_PROTO set, and rank 0 on node n0"),
        ({"NVSHMEM_DISABLE_NVLS": "1"}, "has NVSHMEM_DISABLE_NVLS set, and rank 0"),
        ({"TORCH_SYMM_MEM_X": "1"}, "has TORCH_SYMM_MEM_X set"),
        ({"TORCH_NCCL_HIGH_PRIORITY": "1"}, "has TORCH_NCCL_HIGH_PRIORITY set"),
    ],
)
def test_another_setting_is_told_with_rank_node_and_variable(
    changed: dict[str, str], words: str
) -> None:
    views = [own_view(HERE, VERSIONS), own_view({**THERE, **changed}, VERSIONS)]
    with pytest.raises(Disagreement) as told:
        check(views)
    assert words in str(told.value)


def test_one_that_lacks_a_setting_is_told_as_well() -> None:
    lacks = {name: value for name, value in THERE.items() if name != "NCCL_ALGO"}
    with pytest.raises(Disagreement, match="rank 0 on node n0 has NCCL_ALGO set, and rank 1"):
        check([own_view(HERE, VERSIONS), own_view(lacks, VERSIONS)])


def test_another_version_is_told() -> None:
    other = {**VERSIONS, "NCCL": "2.28.3"}
    words = "rank 2 on node n1 has NCCL 2.28.3, rank 0 on node n0 has 2.27.5"
    views = [own_view(HERE, VERSIONS)] * 2 + [own_view(THERE, other)]
    with pytest.raises(Disagreement, match=words):
        check(views)


def test_files_of_settings_are_compared_by_what_they_set(tmp_path: Path) -> None:
    one, other = tmp_path / "one.conf", tmp_path / "other.conf"
    one.write_text("# a comment\nNCCL_ALGO=Ring\nNCCL_PROTO=LL\n")
    other.write_text("NCCL_PROTO=LL\n\nNCCL_ALGO=Ring\n")
    views = [
        own_view({**HERE, "NCCL_CONF_FILE": str(one)}, VERSIONS),
        own_view({**THERE, "NCCL_CONF_FILE": str(other)}, VERSIONS),
    ]
    check(views)
    other.write_text("NCCL_PROTO=LL128\nNCCL_ALGO=Ring\n")
    views[1] = own_view({**THERE, "NCCL_CONF_FILE": str(other)}, VERSIONS)
    with pytest.raises(Disagreement, match="another NCCL_PROTO in the user's nccl.conf than rank"):
        check(views)
    other.write_text("NCCL_PROTO=LL\nNCCL_ALGO=Ring\nNCCL_IB_HCA=mlx5_1\nNCCL_DEBUG=WARN\n")
    views[1] = own_view({**THERE, "NCCL_CONF_FILE": str(other)}, VERSIONS)
    check(views)  # these may differ, wherever they are set


def test_values_do_not_leave_the_rank() -> None:
    assert "Ring" not in json.dumps(own_view(HERE, VERSIONS))
