"""What a dry run and a search say of the space."""

from __future__ import annotations

from packaging.version import Version

from nccltune.cli.tables import space_text
from nccltune.space import Facts, Selection, load, resolve


def _lines(nvlinks: bool, probed: bool = True) -> list[str]:
    facts = Facts(
        backend="nccl",
        world_size=2,
        probed=probed,
        transports=("P2P",) if probed else (),
        nvlinks=nvlinks,
        nccl=Version("2.28.9"),
    )
    return space_text(resolve(load("default"), facts, Selection(), "default")).splitlines()


def test_what_a_path_adds_is_told_with_its_fragment() -> None:
    lines = _lines(nvlinks=True)
    assert "added: NCCL_CGA_CLUSTER_SIZE: fragment nvlink (transport P2P over NVLink)" in lines
    assert (
        "dropped: fragment pcie: needs GPUs without NVLink, here all have it: NCCL_P2P_DISABLE, "
        "NCCL_P2P_LEVEL" in lines
    )
    assert not [line for line in lines if line.startswith("guarded")]


def test_what_is_guarded_is_offered_in_one_line() -> None:
    assert (
        "guarded: NCCL_P2P_LEVEL: could be tried with --allow-guarded (hangs were reported where "
        "PCIe access control is on)" in _lines(nvlinks=False)
    )


def test_before_the_probe_it_says_that_nothing_is_added() -> None:
    lines = _lines(nvlinks=True, probed=False)
    assert not [line for line in lines if line.startswith("added")]
    assert (
        "dropped: fragments: nothing is added for the path between ranks, which only a probe "
        "launch tells" in lines
    )
