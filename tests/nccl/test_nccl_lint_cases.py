"""Public threads about settings that did harm, by their number in docs/nccl.md: lint tells each.

Every test has the setting of the thread, and beside it what is close and right.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from lint_samples import H200, PCIE, only, rules

LONG = "NCCL_ALGO='ring,tree;allreduce:tree'"


@pytest.mark.parametrize("value", ["1048576", "2097152", "131072"])
def test_cases_1_and_2_chunk_size(value: str) -> None:
    found = only(f"NCCL_CHUNK_SIZE={value}", "dangerous")
    assert found.severity == "warning"
    assert found.source == "NVIDIA/nccl#2408, #1496, PR #2410"
    assert rules("NCCL_CHUNK_SIZE=0") == [
        "not-for-ddp NCCL_CHUNK_SIZE",
        "undocumented NCCL_CHUNK_SIZE",
    ]


def test_case_3_ll_buffer_sizes() -> None:
    assert only("NCCL_LL_BUFFSIZE=131072", "dangerous").source == "NVIDIA/nccl#1739"
    assert only("NCCL_LL128_BUFFSIZE=122880", "dangerous").source == "NVIDIA/nccl#1739"
    assert "#1739" in str(only("NCCL_BUFFSIZE=123000", "dangerous").source)
    assert rules("NCCL_BUFFSIZE=8388608") == ["version-bound NCCL_BUFFSIZE"]


def test_case_4_threads_and_buffer_that_are_no_powers_of_two() -> None:
    found = rules("NCCL_NTHREADS=480\nNCCL_BUFFSIZE=1000000\nNCCL_PROTO=Simple")
    assert "dangerous NCCL_NTHREADS" in found
    assert "dangerous NCCL_BUFFSIZE" in found
    assert only("NCCL_NTHREADS=480", "dangerous").source == "NVIDIA/nccl#698"
    assert rules("NCCL_NTHREADS=512") == ["version-bound NCCL_NTHREADS"]


@pytest.mark.parametrize("version", ["2.10.3", "2.21.5", "2.30.7"])
def test_cases_5_and_6_ll128_by_name(version: str) -> None:
    found = only("NCCL_PROTO=LL128", "dangerous", version)
    assert "#831" in str(found.source) and "#1261" in str(found.source)


def test_case_7_leaving_ll128_out_is_right() -> None:
    assert rules("NCCL_PROTO='^LL128'") == ["version-bound NCCL_PROTO"]


def test_case_8_ll128_over_grace() -> None:
    assert only("NCCL_LL128_C2C=1", "dangerous").source == "NVIDIA/nccl PR #2053"
    assert rules("NCCL_LL128_C2C=0") == ["undocumented NCCL_LL128_C2C"]


@pytest.mark.parametrize("value", ["LL,LL128,Simple", "^LL", "^Simple", "ll128", "allreduce:^LL"])
def test_case_9_ll128_named_or_implied(value: str) -> None:
    assert "#786" in str(only(f"NCCL_PROTO='{value}'", "dangerous").source)


@pytest.mark.parametrize("value", ["LL", "Simple", "LL,Simple", "allreduce:LL"])
def test_case_9_lists_without_ll128(value: str) -> None:
    assert rules(f"NCCL_PROTO={value}") == ["version-bound NCCL_PROTO"]


def test_case_9_from_2_31_nccl_tests_again() -> None:
    assert rules("NCCL_PROTO=LL128", "2.31.2") == ["version-bound NCCL_PROTO"]


def test_case_10_falls_back_to_ring_and_forgets_the_protocol() -> None:
    text = "NCCL_ALGO=Tree\nNCCL_PROTO=Simple"
    found = only(text, "fallback-forgets-proto", "2.21.5")
    assert found.source == "NVIDIA/nccl#1304"
    assert "Broadcast" in found.message
    assert "fallback-forgets-proto NCCL_ALGO" not in rules(text, "2.22.3")
    assert "falls-back NCCL_ALGO" in rules(text, "2.22.3")
    assert "fallback-forgets-proto NCCL_ALGO" not in rules(
        "NCCL_ALGO=Ring\nNCCL_PROTO=LL", "2.21.5"
    )


def test_case_11_a_function_alone_beside_a_protocol_for_all() -> None:
    text = "NCCL_ALGO=allreduce:tree\nNCCL_PROTO=Simple"
    now = only(text, "no-algorithm", "2.31.2")
    assert now.severity == "error"
    assert now.source == "vllm-project/vllm#58179"
    assert "write 'ring,tree;allreduce:tree'" in now.message
    assert only(text, "long-spelling", "2.30.7").severity == "note"
    for version in ("2.30.7", "2.31.2"):
        found = rules(f"{LONG}\nNCCL_PROTO=Simple", version)
        assert found == ["version-bound NCCL_ALGO", "version-bound NCCL_PROTO"]
    for protocol in ("allreduce:Simple", "allreduce:^LL128"):
        found = rules(f"NCCL_ALGO=allreduce:tree\nNCCL_PROTO={protocol}", "2.31.2")
        assert "no-algorithm NCCL_ALGO" not in found


def test_case_13_collnet() -> None:
    found = only("NCCL_COLLNET_ENABLE=1", "needs-plugin", "2.26.2")
    assert "NVIDIA/nccl#1709" in str(found.source)
    assert rules("NCCL_COLLNET_ENABLE=0") == []


def test_case_14_an_algorithm_of_collnet() -> None:
    found = only("NCCL_ALGO='ring;allreduce:collnetdirect'", "needs-plugin")
    assert found.source == "NVIDIA/nccl#653"
    assert only("NCCL_ALGO='ring;allreduce:collnetchain'", "acts-only-with").severity == "warning"
    both = "NCCL_ALGO='ring;allreduce:collnetdirect'\nNCCL_COLLNET_ENABLE=1"
    assert "acts-only-with NCCL_ALGO" not in rules(both)
    assert "needs-plugin NCCL_ALGO" in rules("NCCL_ALGO=CollNet", "2.12.12")


def test_case_15_an_algorithm_is_carried_from_release_to_release() -> None:
    found = only("NCCL_ALGO=Ring", "version-bound")
    assert found.severity == "note"
    assert "NVIDIA/nccl-tests#352" in str(found.source)


def test_case_17_nvlstree_for_reduce_scatter() -> None:
    old = only("NCCL_ALGO=NVLSTree", "dangerous", "2.19.4")
    assert old.source == "NVIDIA/nccl#1110"
    assert only("NCCL_ALGO=NVLSTree", "no-algorithm", "2.30.7").severity == "error"
    pair = only("NCCL_ALGO='ring;reducescatter:ring,nvlstree'", "no-such-pair")
    assert pair.message.startswith("nvlstree does not exist for reducescatter")
    assert "no-such-pair NCCL_ALGO" not in rules("NCCL_ALGO='ring;reducescatter:ring,nvls'")


def test_case_19_sockets_where_there_is_something_better() -> None:
    assert only("NCCL_SOCKET_NTHREADS=4", "sockets-only", machine=H200).source == "NVIDIA/nccl#516"
    assert rules("NCCL_SOCKET_NTHREADS=4", machine=PCIE) == []
    over_sockets = rules("NCCL_SOCKET_NTHREADS=4\nNCCL_NET=Socket", machine=H200)
    assert "sockets-only NCCL_SOCKET_NTHREADS" not in over_sockets


def test_case_20_send_and_receive_are_not_for_ddp() -> None:
    found = only("NCCL_MAX_P2P_NCHANNELS=16", "not-for-ddp")
    assert found.source == "NVIDIA/nccl#1598, #1045"
    assert "not-for-ddp NCCL_MAX_CTAS" not in rules("NCCL_MAX_CTAS=16")


def test_case_21_64_threads_in_old_releases() -> None:
    assert only("NCCL_NTHREADS=64", "dangerous", "2.7.8").source == "NVIDIA/nccl#355"
    assert rules("NCCL_NTHREADS=64", "2.30.7") == ["version-bound NCCL_NTHREADS"]
    assert rules("NCCL_NTHREADS=128", "2.7.8") == ["version-bound NCCL_NTHREADS"]


@pytest.mark.parametrize("version", ["2.19.4", "2.28.9", "2.30.7"])
def test_cases_22_and_23_multicast_taken_for_granted(version: str) -> None:
    found = only("NCCL_NVLS_ENABLE=1\nNCCL_ALGO=Ring", "dangerous", version)
    assert found.name == "NCCL_NVLS_ENABLE"
    assert found.source == "NVIDIA/nccl#2077, #1197, #1716"
    assert rules("NCCL_NVLS_ENABLE=0") == []
    assert rules("NCCL_NVLS_ENABLE=2") == ["version-bound NCCL_NVLS_ENABLE"]


def test_case_24_and_several_ranks_of_a_gpu() -> None:
    text = "NCCL_NVLS_ENABLE=1\nNCCL_MULTI_RANK_GPU_ENABLE=1"
    assert only(text, "constraint-broken").source == "NVIDIA/nccl#1716"
    alone = rules("NCCL_NVLS_ENABLE=2\nNCCL_MULTI_RANK_GPU_ENABLE=1")
    assert "constraint-broken NCCL_NVLS_ENABLE" not in alone


def test_case_26_queue_pairs_and_nothing_said_of_splitting() -> None:
    found = only("NCCL_IB_QPS_PER_CONNECTION=4", "split-not-set")
    assert found.severity == "warning"
    assert found.source == "NVIDIA/nccl#1401, #1222"
    assert "in turn" in found.message
    assert (
        "split over them" in only("NCCL_IB_QPS_PER_CONNECTION=4", "split-not-set", "2.19.4").message
    )
    for split in ("0", "1"):
        both = rules(f"NCCL_IB_QPS_PER_CONNECTION=4\nNCCL_IB_SPLIT_DATA_ON_QPS={split}")
        assert not [rule for rule in both if rule.startswith("split-not-set")]
    assert "split-not-set" not in str(rules("NCCL_IB_QPS_PER_CONNECTION=1"))


def test_case_27_the_copied_list() -> None:
    text = (
        "NCCL_IB_GID_INDEX=3\nNCCL_IB_RETRY_CNT=10\nNCCL_CHECKS_DISABLE=1\n"
        "NCCL_ASYNC_ERROR_HANDLING=1\nNCCL_IB_TIMEOUT=22"
    )
    assert rules(text) == [
        "fabric-specific NCCL_IB_GID_INDEX",
        "not-nccls NCCL_ASYNC_ERROR_HANDLING",
        "out-of-range NCCL_IB_RETRY_CNT",
        "removed NCCL_CHECKS_DISABLE",
    ]
    for rule in ("out-of-range", "removed"):
        found = only(text, rule)
        assert (found.severity, found.source) == ("error", "NVIDIA/nccl#1453")
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" in only(text, "not-nccls").message
    assert rules("NCCL_IB_RETRY_CNT=7") == []


@pytest.mark.parametrize(
    "line",
    ["NCCL_CROSS_NIC=0", "NCCL_TOPO_FILE=/opt/ndv4.xml", "NCCL_NET_PLUGIN=none", "NCCL_IB_TC=106"],
)
def test_cases_28_and_29_settings_of_another_fabric(line: str) -> None:
    found = only(line, "fabric-specific")
    assert found.severity == "note"
    assert "oracle-quickstart/oci-hpc#48" in str(found.source)


def test_case_29_adapters_that_the_container_does_not_have() -> None:
    container = replace(H200, verbs=False)
    found = only("NCCL_IB_HCA=mlx5_0", "dead-here", machine=container)
    assert "/dev/infiniband" in found.message
    assert rules("NCCL_IB_GID_INDEX=3", machine=container) == ["dead-here NCCL_IB_GID_INDEX"]
    missing = only("NCCL_IB_HCA=bnxt_re0", "device-missing", machine=H200)
    assert missing.severity == "error"
    assert "slow NCCL_IB_DISABLE" in rules("NCCL_IB_DISABLE=1", machine=H200)
    assert "slow NCCL_IB_DISABLE" not in rules("NCCL_IB_DISABLE=1", machine=container)


def test_case_30_one_adapter_of_several() -> None:
    found = only("NCCL_IB_HCA==mlx5_0", "leaves-out-devices", machine=H200)
    assert "mlx5_1, mlx5_2, mlx5_3" in found.message
    others = only("NCCL_IB_HCA=^mlx5_0", "leaves-out-devices", machine=H200)
    assert others.message.startswith("leaves out mlx5_0, and")
    many = replace(H200, rdma=("mlx5_1", "mlx5_10", "mlx5_11"))
    assert "mlx5_10, mlx5_11" in only("NCCL_IB_HCA=mlx5_1", "matches-more", machine=many).message
    assert rules("NCCL_IB_HCA=mlx5", machine=H200) == ["fabric-specific NCCL_IB_HCA"]


def test_case_30_gpudirect_across_the_cpu() -> None:
    for level in ("SYS", "PHB", "4"):
        found = only(f"NCCL_NET_GDR_LEVEL={level}", "raised-level")
        assert found.source == "NVIDIA/nccl-tests#182, #293"
    assert rules("NCCL_NET_GDR_LEVEL=PIX") == ["version-bound NCCL_NET_GDR_LEVEL"]


def test_case_31_sockets_and_threads() -> None:
    text = "NCCL_SOCKET_NTHREADS=8\nNCCL_NSOCKS_PERTHREAD=16"
    assert "lowers the latter to 8" in only(text, "constraint-broken").message
    assert rules("NCCL_SOCKET_NTHREADS=8\nNCCL_NSOCKS_PERTHREAD=8") == []
    assert rules("NCCL_NSOCKS_PERTHREAD=8") == ["acts-only-with NCCL_NSOCKS_PERTHREAD"]


def test_case_32_peer_to_peer_off_or_raised() -> None:
    off = only("NCCL_P2P_DISABLE=1", "slow")
    assert "ACS" in off.message and "NVIDIA/nccl#2079" in str(off.source)
    for level in ("PHB", "SYS", "3"):
        raised = only(f"NCCL_P2P_LEVEL={level}", "raised-level")
        assert "tinygrad/open-gpu-kernel-modules#45" in str(raised.source)
    assert rules("NCCL_P2P_LEVEL=NVL") == ["version-bound NCCL_P2P_LEVEL"]
    both = rules("NCCL_P2P_DISABLE=1\nNCCL_P2P_LEVEL=NVL")
    assert "overruled NCCL_P2P_LEVEL" in both


def test_case_33_switching_off_in_2_15() -> None:
    for name in ("NCCL_P2P_DISABLE", "NCCL_PXN_DISABLE"):
        assert only(f"{name}=1", "dangerous", "2.15.5").source == "NVIDIA/nccl#1199"
        assert f"dangerous {name}" not in rules(f"{name}=1", "2.16.5")
        assert f"dangerous {name}" not in rules(f"{name}=0", "2.15.5")


def test_case_34_shared_memory() -> None:
    assert only("NCCL_SHM_DISABLE=1", "slow").source == "NVIDIA/nccl#406, #1466, #606"
    small = only("NCCL_P2P_DISABLE=1", "small-shm", machine=replace(H200, shm_bytes=64 << 20))
    assert "64 MiB" in small.message
    assert "small-shm NCCL_P2P_DISABLE" not in rules("NCCL_P2P_DISABLE=1", machine=H200)


def test_case_35_collnet_that_is_read_once() -> None:
    assert only("NCCL_COLLNET_ENABLE=1", "overruled", "2.27.3").source == "NVIDIA/nccl#1741"
    assert "overruled NCCL_COLLNET_ENABLE" not in rules("NCCL_COLLNET_ENABLE=1", "2.27.5")


def test_case_37_hosts() -> None:
    assert only("NCCL_HOSTID=node", "shared-host-id").source == "NVIDIA/nccl#879"
    both = "NCCL_P2P_DISABLE=1\nNCCL_SHM_DISABLE=1"
    assert only(both, "dangerous", "2.29.2").source == "NVIDIA/nccl#2057"
    assert "dangerous" not in str(rules(both, "2.28.9"))
    assert only("NCCL_IB_DISABLE=1", "plugin-ignores").source == "NVIDIA/nccl#676"


def test_case_39_undocumented() -> None:
    found = only("NCCL_SYM_CTAS=8", "undocumented")
    assert (found.severity, found.source) == ("note", "NVIDIA/nccl#2280, #790")
    assert "undocumented NCCL_CTA_POLICY" not in rules("NCCL_CTA_POLICY=EFFICIENCY")


def test_case_40_marks_that_are_no_values() -> None:
    found = only("NCCL_P2P_PER_CHANNEL_NET_BW=-1", "out-of-range")
    assert found.source == "meta-pytorch/torchcomms#1433"
    mark = only("NCCL_IB_TC=-1", "sentinel")
    assert (mark.severity, mark.source) == ("warning", "meta-pytorch/torchcomms#1433")
    assert "out-of-range NCCL_IB_TC" in rules("NCCL_IB_TC=-2")
    assert rules("NCCL_P2P_PER_CHANNEL_NET_BW=14") == [
        "not-for-ddp NCCL_P2P_PER_CHANNEL_NET_BW",
        "undocumented NCCL_P2P_PER_CHANNEL_NET_BW",
    ]


def test_case_41_rccl() -> None:
    found = only("HSA_NO_SCRATCH_RECLAIM=1\nNCCL_MIN_NCHANNELS=112", "rccl")
    assert "ROCm/rocm-systems#11255" in str(found.source)
    assert "out-of-range NCCL_MIN_NCHANNELS" in rules("NCCL_MIN_NCHANNELS=112")
    assert "rccl" not in str(rules("NCCL_MIN_NCHANNELS=8"))


def test_case_42_one_queue() -> None:
    found = only("CUDA_DEVICE_MAX_CONNECTIONS=1", "slow")
    assert "pytorch/torchtitan#1147" in str(found.source)
    assert rules("CUDA_DEVICE_MAX_CONNECTIONS=16") == []
    timing = only("TORCH_NCCL_ENABLE_TIMING=1", "debugging-left-on")
    assert timing.source == "pytorch/pytorch#143890"


def test_case_43_obsolete_since_torch_2_8() -> None:
    found = only("TORCH_NCCL_AVOID_RECORD_STREAMS=1", "obsolete", torch="2.14.1")
    assert (found.severity, "#194701" in str(found.source)) == ("warning", True)
    assert rules("TORCH_NCCL_AVOID_RECORD_STREAMS=1", torch="2.7.1") == []
    assert rules("TORCH_NCCL_AVOID_RECORD_STREAMS=1") == [
        "obsolete TORCH_NCCL_AVOID_RECORD_STREAMS"
    ]


def test_case_44_settings_that_nccl_writes_into_the_environment() -> None:
    from lint_samples import look

    found = look("NCCL_DEBUG=WARN\nNCCL_NET=IB\n", format="nccl.conf", file="nccl.conf")
    assert [(f.rule, f.line, f.source) for f in found] == [
        ("set-by-nccl", 1, "pytorch/pytorch#133744, #117328")
    ]
