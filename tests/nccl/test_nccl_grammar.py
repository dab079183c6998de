from __future__ import annotations

import pytest
from packaging.version import Version

from nccltune.nccl.grammar import (
    enabled,
    forces_ll128,
    grammar_error,
    kills_ddp,
    starved_functions,
    tokens,
)

V = Version


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.12", ("Ring", "Tree", "CollNet")),
        ("2.16.5", ("Ring", "Tree", "CollNetDirect", "CollNetChain")),
        ("2.17.1", ("Ring", "Tree", "CollNetDirect", "CollNetChain", "NVLS")),
        ("2.28.9", ("Ring", "Tree", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")),
    ],
)
def test_algorithms_by_version(version: str, expected: tuple[str, ...]) -> None:
    assert tokens("NCCL_ALGO", V(version)) == expected


def test_the_newest_release_stands_for_none() -> None:
    assert tokens("NCCL_ALGO", None) == tokens("NCCL_ALGO", V("2.30.7"))


@pytest.mark.parametrize(
    ("value", "on"),
    [
        ("ring,tree", {"Broadcast": "Ring Tree", "AllReduce": "Ring Tree"}),
        ("RING,tree;AllReduce:TREE", {"Broadcast": "Ring Tree", "AllReduce": "Tree"}),
        (
            "^nvls,nvlstree,pat,collnetdirect,collnetchain;allgather:ring",
            {"Broadcast": "Ring Tree", "AllGather": "Ring"},
        ),
        (
            "ring;allreduce:^ring,tree,collnetdirect,collnetchain,pat",
            {"AllReduce": "NVLS NVLSTree"},
        ),
        ("ring;allreduce:tree;allreduce:nvls", {"AllReduce": "NVLS"}),
    ],
)
def test_enabled_algorithms(value: str, on: dict[str, str]) -> None:
    table = enabled("NCCL_ALGO", value, V("2.28.9"))
    assert {function: table[function] for function in on} == {
        function: frozenset(names.split()) for function, names in on.items()
    }


def test_an_entry_for_one_function_leaves_the_others_alone() -> None:
    table = enabled("NCCL_ALGO", "allreduce:tree", V("2.28.9"))
    assert table["AllReduce"] == {"Tree"}
    assert table["Broadcast"] == set(tokens("NCCL_ALGO", V("2.28.9")))


@pytest.mark.parametrize(
    ("value", "version", "part"),
    [
        ("ring, tree", "2.28.9", "space"),
        ("Rnig", "2.28.9", "did you mean Ring?"),
        ("NVLS_TREE", "2.28.9", "did you mean NVLSTree?"),
        ("NVLS", "2.16.5", "not known to NCCL 2.16.5"),
        ("CollNet", "2.14.3", "not known"),
        ("allreduce:tree", "2.23.4", "from NCCL 2.24"),
        ("ring;tree", "2.24.3", "only the first entry"),
        ("gather:ring", "2.28.9", "no function is called 'gather'"),
        ("allgather:nvls,reducescatter:nvls", "2.28.9", "separated by ';'"),
        ("ring,^tree", "2.28.9", "beginning of an entry"),
        ("ring,", "2.28.9", "empty"),
        ("ring;", "2.28.9", "only the first entry"),
        ("allreduce:", "2.28.9", "empty"),
        ("^", "2.28.9", "empty"),
    ],
)
def test_values_that_nccl_does_not_understand(value: str, version: str, part: str) -> None:
    error = grammar_error("NCCL_ALGO", value, V(version))
    assert error is not None and part in error


@pytest.mark.parametrize(
    ("name", "value", "version"),
    [
        ("NCCL_ALGO", "Ring,Tree", "2.12"),
        ("NCCL_ALGO", "^Tree", "2.20"),
        ("NCCL_ALGO", "CollNet", "2.13.4"),
        ("NCCL_ALGO", "ring,tree;allreduce:tree", "2.24.3"),
        ("NCCL_PROTO", "LL,Simple;allreduce:^LL128", "2.30.7"),
    ],
)
def test_values_that_nccl_understands(name: str, value: str, version: str) -> None:
    assert grammar_error(name, value, V(version)) is None


@pytest.mark.parametrize(
    ("value", "starved"),
    [
        ("Tree", ("Broadcast", "Reduce", "AllGather", "ReduceScatter")),
        ("NVLS", ("Broadcast", "Reduce")),
        ("PAT", ("Broadcast", "Reduce", "AllReduce")),
        ("ring", ()),
        ("allreduce:tree", ()),
        ("allreduce:pat", ("AllReduce",)),
        ("^ring", ("Broadcast", "Reduce")),
        ("tree;broadcast:ring;allgather:ring", ("Reduce", "ReduceScatter")),
    ],
)
def test_starved_functions(value: str, starved: tuple[str, ...]) -> None:
    assert starved_functions(value, V("2.28.9")) == starved


@pytest.mark.parametrize(
    ("value", "version", "killed"),
    [
        ("Tree", "2.16.5", ()),
        ("Tree", "2.17.1", ()),
        ("Tree", "2.18.5", ()),
        ("Tree", "2.19.4", ()),
        ("Tree", "2.23.4", ()),
        ("Tree", "2.24.3", ("Broadcast", "AllGather")),
        ("Tree", "2.30.7", ("Broadcast", "AllGather")),
        ("NVLS", "2.28.9", ("Broadcast",)),
        ("tree;broadcast:ring;allgather:ring", "2.28.9", ()),
    ],
)
def test_ddp_dies_where_the_release_is_strict(
    value: str, version: str, killed: tuple[str, ...]
) -> None:
    assert kills_ddp(value, V(version)) == killed


@pytest.mark.parametrize(
    ("value", "forced"),
    [
        ("LL128", True),
        ("ll128", True),
        ("LL,LL128,Simple", True),
        ("^LL", True),
        ("^Simple", True),
        ("^LL,Simple", True),
        ("Simple;allreduce:LL128", True),
        ("allreduce:^Simple", True),
        ("LL128;allreduce:Simple", True),
        ("Simple", False),
        ("LL", False),
        ("LL,Simple", False),
        ("^LL128", False),
        ("^LL,LL128", False),
        ("allreduce:Simple", False),
    ],
)
def test_what_forces_ll128(value: str, forced: bool) -> None:
    assert forces_ll128(value, V("2.28.9")) is forced
