from __future__ import annotations

import pytest
from packaging.version import Version

from nccltune.nccl.integers import is_plain_integer, plain_integer, strtoll
from nccltune.nccl.values import refusal, spell

V = Version
NOW = V("2.28.9")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8", 8),
        ("8M", 8),
        ("true", 0),
        ("016", 14),
        ("08", 0),
        ("0x40", 64),
        ("0x", 0),
        ("-2", -2),
        (" 7 ", 7),
        ("", 0),
        ("1e6", 1),
    ],
)
def test_what_strtoll_reads(text: str, number: int) -> None:
    assert strtoll(text) == number


@pytest.mark.parametrize("text", ["8M", "016", "00", "true", "8.0", " 8", "8 ", "", "٣", "0x"])
def test_texts_that_are_not_a_plain_integer(text: str) -> None:
    assert not is_plain_integer(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_BUFFSIZE", 262144),
        ("NCCL_BUFFSIZE", "16777216"),
        ("NCCL_BUFFSIZE", "0x400000"),
        ("NCCL_NTHREADS", 256),
        ("NCCL_MAX_CTAS", 64),
        ("NCCL_MIN_NCHANNELS", 0),
        ("NCCL_CGA_CLUSTER_SIZE", 0),
        ("NCCL_P2P_DISABLE", True),
        ("NCCL_P2P_LEVEL", "PHB"),
        ("NCCL_P2P_LEVEL", 3),
        ("NCCL_PROTO", "Simple"),
        ("NCCL_PROTO", "^LL128"),
        ("NCCL_ALGO", "Tree"),
        ("NCCL_ALGO", "nvlstree"),
        ("NCCL_ALGO", "ring,tree;allreduce:tree"),
        ("NCCL_ALGO", "Ring,Tree"),
        ("NCCL_NVLS_ENABLE", 0),
        ("NCCL_SOCKET_IFNAME", "=eth0"),
        ("NCCL_THREAD_THRESHOLDS", "8 8 32 64 8 32"),
        ("NCCL_CTA_POLICY", "2"),
        ("NCCL_BLOCKING_WAIT", "1"),
        ("NCCL_TUNER_CONFIG_FILE", "rules.conf"),
        ("OMP_NUM_THREADS", "8M"),
        ("NCCL_MAX_CTAS", None),
        ("NCCL_CHUNK_SIZE", None),
        ("NCCL_DEBUG", None),
    ],
)
def test_values_that_may_be_tried(name: str, value: object) -> None:
    assert refusal(name, value, NOW) is None


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("NCCL_MAX_CTA", 8, "did you mean NCCL_MAX_CTAS?"),
        ("NCCL_SOMETHING_ELSE_ENTIRELY", 8, "no NCCL release"),
        (
            "NCCL_BUFFSIZE",
            "8M",
            "NCCL would read this as 8; write a plain decimal number of bytes",
        ),
        ("NCCL_BUFFSIZE", 3000000, "power of two"),
        ("NCCL_BUFFSIZE", 131072, "at least 262144"),
        ("NCCL_BUFFSIZE", 33554432, "at most 16777216"),
        ("NCCL_BUFFSIZE", 4194304.0, "plain decimal"),
        ("NCCL_MAX_CTAS", "016", "as 14"),
        ("NCCL_MAX_CTAS", 65, "at most 64"),
        ("NCCL_MAX_CTAS", 0, "at least 1"),
        ("NCCL_MIN_CTAS", -1, "leave it unset"),
        ("NCCL_MIN_NCHANNELS", 128, "at most 64"),
        ("NCCL_NTHREADS", 192, "64, 128, 256, 512"),
        ("NCCL_P2P_DISABLE", "true", "as 0; write a plain decimal number; must be one of 0, 1"),
        ("NCCL_P2P_LEVEL", "phb", "must be one of LOC"),
        ("NCCL_CHUNK_SIZE", 131072, "never"),
        ("NCCL_LL_BUFFSIZE", 524288, "never"),
        ("NCCL_LL128_BUFFSIZE", 4915200, "never"),
        ("NCCL_THREAD_THRESHOLDS", "8,8,32,64,8,32", "spaces"),
        ("NCCL_ALGO", "Tre", "did you mean Tree?"),
        ("NCCL_ALGO", "ring, tree", "space"),
        ("NCCL_ALGO", "tree,nvls", "Broadcast"),
        ("NCCL_ALGO", "^ring", "leaves no algorithm for Broadcast, which DDP needs"),
        ("NCCL_ALGO", "CollNetChain", "Broadcast, AllGather"),
        ("NCCL_ALGO", "ring;allreduce:pat", "AllReduce"),
        ("NCCL_PROTO", "^LL,LL128,Simple", "no protocol"),
        ("NCCL_PROTO", "LL64", "not known"),
        ("NCCL_SOCKET_MIN_TASKSIZE", 2**70, "64 bits"),
        ("NCCL_SOCKET_IFNAME", "", "empty"),
        ("OMP_NUM_THREADS", "", "empty"),
        ("NCCL_SOCKET_IFNAME", ["eth0"], "a list"),
        ("NCCL_CTA_POLICY", "EFFICIENCY", "from NCCL 2.29"),
        ("NCCL_TREE_THRESHOLD", 0, "since NCCL 2.5, this is 2.28.9; see NCCL_ALGO"),
        ("NCCL_DEBUG", "info", "every launch of ours sets it"),
        ("NCCL_DEBUG_SUBSYS", "ALL", "every launch of ours sets it"),
        ("NCCL_DEBUG_FILE", "/tmp/nccl.log", "every launch of ours sets it"),
    ],
)
def test_values_that_are_refused_whatever_is_allowed(name: str, value: object, part: str) -> None:
    for allow_unsafe in (False, True):
        reason = refusal(name, value, NOW, allow_unsafe=allow_unsafe)
        assert reason is not None and part in reason
        assert reason.startswith(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_PROTO", "LL128"),
        ("NCCL_PROTO", "^LL"),
        ("NCCL_PROTO", "^Simple"),
        ("NCCL_PROTO", "LL,LL128,Simple"),
        ("NCCL_PROTO", "Simple;allreduce:LL128"),
        ("NCCL_NVLS_ENABLE", 1),
        ("NCCL_NVLS_ENABLE", True),
        ("NCCL_GDR_FLUSH_DISABLE", 1),
    ],
)
def test_unsafe_values_need_permission(name: str, value: object) -> None:
    reason = refusal(name, value, NOW)
    assert reason is not None and "unsafe" in reason
    assert refusal(name, value, NOW, allow_unsafe=True) is None


@pytest.mark.parametrize(
    ("name", "value", "version", "part"),
    [
        ("NCCL_SOCKET_SNDBUF", 1048576, "2.26.5", "from NCCL 2.27.3 on, this is 2.26.5"),
        ("NCCL_SOCKET_SNDBUF", 1048576, "2.27.3", None),
        ("NCCL_SHM_USE_CUDA_MEMCPY", 1, "2.30.4", None),
        ("NCCL_SHM_USE_CUDA_MEMCPY", 1, "2.30.7", "since NCCL 2.30.7"),
        ("NCCL_MAX_CTAS", 33, "2.24.3", "at most 32 before NCCL 2.25"),
        ("NCCL_MAX_CTAS", 32, "2.24.3", None),
        ("NCCL_MAX_CTAS", 33, "2.25.1", None),
        ("NCCL_P2P_LEVEL", "P2C", "2.26.2", "from NCCL 2.27.3"),
        ("NCCL_P2P_LEVEL", "P2C", "2.27.3", None),
        ("NCCL_CTA_POLICY", "ZERO|EFFICIENCY", "2.29.2", None),
        ("NCCL_ALGO", "Tree", "2.16.5", None),
        ("NCCL_ALGO", "Tree", "2.17.1", None),
        ("NCCL_ALGO", "Tree", "2.18.5", None),
        ("NCCL_ALGO", "Ring", "2.18.5", None),
        ("NCCL_ALGO", "Tree", "2.19.4", None),
        ("NCCL_ALGO", "Tree", "2.23.4", None),
        ("NCCL_ALGO", "PAT", "2.23.4", "leaves no algorithm for AllReduce"),
        ("NCCL_ALGO", "Tree", "2.24.3", None),
        ("NCCL_ALGO", "NVLS", "2.16.5", "not known"),
        ("NCCL_ALGO", "ring;allreduce:tree", "2.23.4", "from NCCL 2.24"),
    ],
)
def test_the_version_decides(name: str, value: object, version: str, part: str | None) -> None:
    reason = refusal(name, value, V(version))
    if part is None:
        assert reason is None
    else:
        assert reason is not None and part in reason


def test_an_unknown_version_is_the_newest_known() -> None:
    assert refusal("NCCL_TOPO_SPLIT_MLOPART", 1, None) is None
    assert refusal("NCCL_SHM_USE_CUDA_MEMCPY", 1, None) is not None
    assert refusal("NCCL_MAX_CTAS", 64, None) is None
    assert refusal("NCCL_ALGO", "Tree", None) is None


@pytest.mark.parametrize(
    ("value", "version", "text"),
    [
        ("Ring", "2.28.9", "ring,tree;allreduce:ring"),
        ("Tree", "2.24.3", "ring,tree;allreduce:tree"),
        ("tree", None, "ring,tree;allreduce:tree"),
        ("NVLS", "2.28.9", "ring,tree,nvls;allreduce:nvls"),
        ("nvlsTREE", "2.30.7", "ring,tree,nvlstree;allreduce:nvlstree"),
        ("tree", "2.23.4", "Tree"),
        ("RING", "2.18.5", "Ring"),
        ("Tree", "2.16.5", "Tree"),
        ("Ring,Tree", "2.28.9", "Ring,Tree"),
        ("^NVLS", "2.28.9", "^NVLS"),
        ("allreduce:Tree", "2.28.9", "allreduce:Tree"),
        ("CollNetChain", "2.28.9", "CollNetChain"),
    ],
)
def test_spelling_of_algorithms(value: str, version: str | None, text: str) -> None:
    assert spell("NCCL_ALGO", value, None if version is None else V(version)) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("NCCL_P2P_DISABLE", True, "1"),
        ("NCCL_P2P_DISABLE", False, "0"),
        ("NCCL_BUFFSIZE", 8388608, "8388608"),
        ("NCCL_PROTO", "Simple", "Simple"),
        ("NCCL_SOCKET_IFNAME", "Ring", "Ring"),
        ("OMP_NUM_THREADS", 4, "4"),
    ],
)
def test_spelling_of_other_values(name: str, value: object, text: str) -> None:
    assert spell(name, value, NOW) == text


@pytest.mark.parametrize("value", [None, ["Ring"], {"a": 1}])
def test_what_no_variable_can_hold(value: object) -> None:
    with pytest.raises(TypeError, match="NCCL_ALGO"):
        spell("NCCL_ALGO", value, NOW)


@pytest.mark.parametrize("version", ["2.16.5", "2.19.4", "2.23.4", "2.24.3", "2.28.9", "2.30.7"])
def test_every_short_algorithm_that_is_not_refused_spares_ddp(version: str) -> None:
    from nccltune.nccl.grammar import kills_ddp

    for algorithm in ("Ring", "Tree", "NVLS", "NVLSTree"):
        if refusal("NCCL_ALGO", algorithm, V(version)) is None:
            assert kills_ddp(spell("NCCL_ALGO", algorithm, V(version)), V(version)) == ()


def test_numbers_of_any_length_are_read() -> None:
    assert plain_integer("0x400000") == 4194304
    assert plain_integer("-2") == -2
    assert plain_integer("8M") is None
    huge = plain_integer("9" * 10_000)
    assert huge is not None and huge > 2**63
    assert strtoll("9" * 10_000 + "M") > 2**63
    assert refusal("NCCL_BUFFSIZE", "9" * 10_000, NOW) is not None
