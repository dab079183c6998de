from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from packaging.version import Version

from nccltune.nccl.log import Choice, NcclLog, merge, parse

LOGS = Path(__file__).parent / "logs"

# Bare version line on stdout, no nNodes, SHM in its old wording, no TUNING lines.
LOG_2_18 = (LOGS / "nccl-2.18.txt").read_text()
# Two hosts over InfiniBand; TUNING lines with numbers and without the function.
LOG_2_21 = (LOGS / "nccl-2.21.txt").read_text()
# NVLink in one host; version as an ordinary line, communicator made by torch with limits.
LOG_2_28 = (LOGS / "nccl-2.28.txt").read_text()
# Emulated hosts over sockets, time stamps, SHM in its new wording, warnings with the function.
LOG_2_30 = (LOGS / "nccl-2.30.txt").read_text()


def test_2_18_over_shared_memory() -> None:
    assert parse(LOG_2_18) == NcclLog(
        version=Version("2.18.5"),
        environment={"NCCL_IB_DISABLE": "1", "NCCL_P2P_LEVEL": "PIX"},
        links=((0, 1, "SHM/direct"), (1, 0, "SHM/direct")),
        coll_channels=2,
    )


def test_2_21_over_infiniband() -> None:
    log = parse(LOG_2_21)
    assert log == NcclLog(
        version=Version("2.21.5"),
        environment={"NCCL_IB_HCA": "mlx5"},
        links=(
            (3, 1, "P2P/indirect"),
            (3, 2, "P2P/IPC"),
            (3, 4, "NET/IB"),
            (7, 3, "NET/IB"),
        ),
        network="IB",
        coll_channels=16,
        nvls=False,
        nodes=2,
        choices=(
            Choice("", 26214400, "Ring", "Simple"),
            Choice("", 4096, "Tree", "LL"),
        ),
    )
    assert log.transport == ("NET", "P2P")


def test_2_28_over_nvlink() -> None:
    log = parse(LOG_2_28)
    assert log == NcclLog(
        version=Version("2.28.9"),
        environment={
            "NCCL_SOCKET_IFNAME": "eth0",
            "NCCL_BUFFSIZE": "8388608",
            "NCCL_ALGO": "ring,tree;allreduce:tree",
            "NCCL_CTA_POLICY": "2",
        },
        config={"blocking": 1, "min_ctas": 4, "max_ctas": 8, "cga_cluster_size": 4},
        links=((0, 1, "P2P/CUMEM"), (1, 0, "P2P/CUMEM")),
        coll_channels=8,
        nvls=True,
        nodes=1,
        choices=(
            Choice("AllReduce", 26214400, "Tree", "LL128", 8),
            Choice("AllReduce", 26214400, "NVLSTree", "Simple", 1),
            Choice("AllReduce", 4096, "Symmetric", "AllReduce_AGxLL_R", 4),
        ),
    )
    assert log.transport == ("P2P",)


def test_2_30_over_sockets_with_a_warning() -> None:
    log = parse(LOG_2_30)
    assert log == NcclLog(
        version=Version("2.30.7"),
        environment={
            "NCCL_HOSTID": "h0",
            "NCCL_DEBUG_FILE": "/tmp/log.",
            "NCCL_PROXY_CPUSET": "0-3,8",
            "NCCL_COLLNET_ENABLE": "0",
            "NCCL_BUFFSIZE": "-2",
        },
        links=((0, 1, "NET/Socket"), (0, 2, "SHM/direct")),
        network="Socket",
        coll_channels=4,
        nodes=2,
        choices=(Choice("AllGather", 1048576, "CopyEngine", "cudaMemcpy"),),
        warnings=(
            "No algorithm/protocol available for function Broadcast with datatype ncclInt8."
            " NCCL_ALGO was set to Tree.",
        ),
    )


def test_a_network_that_is_only_ready_carries_nothing() -> None:
    assert "Using network Socket" in LOG_2_28
    assert parse(LOG_2_28).network is None


def test_several_networks_are_all_named() -> None:
    line = "h:1:2 [0] NCCL INFO Channel 00/0 : {} [receive] via NET/{}"
    logs = [line.format("1[0] -> 0[0]", "IB/0/GDRDMA"), line.format("0[0] -> 1[0]", "Socket/0")]
    assert merge(map(parse, logs)).network == "IB and Socket"
    twice = [line.format("1[0] -> 0[0]", "IB/0/GDRDMA"), line.format("0[0] -> 1[0]", "IB/1")]
    assert merge(map(parse, twice)).network == "IB"


def test_the_name_of_a_plugin_may_hold_a_space() -> None:
    line = (
        "h:1:2 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/AWS Libfabric/0/GDRDMA"
    )
    assert parse(line).network == "AWS Libfabric"
    assert parse(line).links == ((1, 0, "NET/AWS Libfabric"),)


def test_2_23_names_the_function_and_numbers_the_rest() -> None:
    line = "h:1:1 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo 5 proto 2 time 20.1"
    assert parse(line).choices == (Choice("AllReduce", 1024, "NVLSTree", "Simple"),)


def test_what_a_later_nccl_calls_it_is_kept() -> None:
    line = "h:1:1 [0] NCCL INFO AllReduce: 8 Bytes -> Algo FANCY proto 9 channel{Lo..Hi}={0..3}"
    assert parse(line).choices == (Choice("AllReduce", 8, "FANCY", "9", 4),)


def test_prefixes_and_line_ends_of_launchers() -> None:
    line = "[default0]:h:1:2 [0] NCCL INFO NCCL_PROTO set by environment to Simple\r\n"
    assert parse(line).environment == {"NCCL_PROTO": "Simple"}


def test_the_last_communicator_of_a_process_holds() -> None:
    text = "\n".join(
        f"h:1:2 [0] NCCL INFO {message}"
        for message in (
            "Comm config Max CTAs set to 8",
            "8 coll channels, 0 nvls channels, 8 p2p channels, 8 p2p channels per peer",
            "NCCL_PROTO set by environment to LL",
            "Comm config Max CTAs set to 4",
            "4 coll channels, 0 nvls channels, 4 p2p channels, 4 p2p channels per peer",
            "NCCL_PROTO set by environment to Simple",
        )
    )
    log = parse(text)
    assert log.config == {"max_ctas": 4}
    assert log.coll_channels == 4
    assert log.environment == {"NCCL_PROTO": "Simple"}


def test_one_device_without_multicast_is_enough() -> None:
    without = "h:1:2 [0] NCCL INFO NVLS multicast support is not available on dev 0"
    having = "h:1:3 [1] NCCL INFO NVLS multicast support is available on dev 1"
    assert parse(f"{without}\n{having}").nvls is False
    assert parse(f"{having}\n{without}").nvls is False
    assert parse(having).nvls is True


@pytest.mark.parametrize(
    ("label", "attribute"),
    [
        ("Split share", "split_share"),
        ("maxCTAs", "max_ctas"),
        ("cgaClusterSize", "cga_cluster_size"),
        ("nvlsCTAs", "nvls_ctas"),
        ("CTAPolicy", "cta_policy"),
        ("CTA policy", "cta_policy"),
    ],
)
def test_labels_become_attributes_of_torch(label: str, attribute: str) -> None:
    line = f"h:1:2 [0] NCCL INFO Comm config {label} set to 2"
    assert parse(line).config == {attribute: 2}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\ufffd\ufffd NCCL INFO",
        "h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via",
        "h:1:2 [0] NCCL INFO Channel 00/0 : x[0] -> 1[1] via P2P/CUMEM",
        "h:1:2 [0] NCCL INFO Channel 00/0 : " + "9" * 5000 + "[0] -> 1[1] via P2P/CUMEM",
        "h:1:2 [0] NCCL INFO AllReduce: " + "9" * 5000 + " Bytes -> Algo RING proto LL",
        "h:1:2 [0] NCCL INFO AllReduce: 8 Bytes -> Al",
        "h:1:2 [0] NCCL INFO Comm config Max CTAs set to many",
        "h:1:2 [0] NCCL INFO NCCL_PROTO set by environment t",
        "NCCL version unknown",
        "RCCL version 2.27.7-HEAD:1234",
        "loss 0.3 NCCL_ALGO set by environment to Tree",
    ],
)
def test_garbage_says_nothing(text: str) -> None:
    assert parse(text) == NcclLog()


def test_no_cut_makes_it_fail() -> None:
    for log in (LOG_2_18, LOG_2_21, LOG_2_28, LOG_2_30):
        for end in range(0, len(log), 7):
            parse(log[:end])


def test_merge_of_nothing_is_empty() -> None:
    assert merge([]) == NcclLog()


def test_merge_of_ranks() -> None:
    first = NcclLog(
        version=Version("2.28.9"),
        environment={"NCCL_HOSTID": "h0", "NCCL_ALGO": "Ring"},
        config={"max_ctas": 8},
        links=((0, 1, "NET/Socket"),),
        network="Socket",
        coll_channels=4,
        nvls=True,
        nodes=2,
        choices=(Choice("AllReduce", 8, "Ring", "LL", 1),),
        warnings=("slow",),
    )
    second = NcclLog(
        environment={"NCCL_HOSTID": "h1"},
        links=((1, 2, "P2P/CUMEM"), (0, 1, "NET/Socket")),
        nvls=False,
        nodes=1,
        choices=(Choice("AllReduce", 8, "Ring", "LL", 1), Choice("AllReduce", 9, "Ring", "LL", 1)),
        warnings=("slow", "slower"),
    )
    assert merge([first, second]) == NcclLog(
        version=Version("2.28.9"),
        environment={"NCCL_HOSTID": "h1", "NCCL_ALGO": "Ring"},
        config={"max_ctas": 8},
        links=((0, 1, "NET/Socket"), (1, 2, "P2P/CUMEM")),
        network="Socket",
        coll_channels=4,
        nvls=False,
        nodes=2,
        choices=(Choice("AllReduce", 8, "Ring", "LL", 1), Choice("AllReduce", 9, "Ring", "LL", 1)),
        warnings=("slow", "slower"),
    )
    assert merge([first]) == first


def test_merging_the_parts_is_parsing_the_whole() -> None:
    lines = LOG_2_28.split("\n")
    assert merge(parse(line) for line in lines) == parse(LOG_2_28)


def test_a_log_can_be_written_to_a_record() -> None:
    record = dataclasses.asdict(parse(LOG_2_28))
    assert json.loads(json.dumps(record, default=str))["version"] == "2.28.9"


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("NET/Plugin: Loaded net plugin AWS Libfabric (v8)", {"net": "AWS Libfabric"}),
        ("NET/Plugin: Could not find: libnccl-net.so", {}),
        ("NET/Plugin: Using internal network plugin.", {}),
        ("NET/Plugin: Failed to find ncclNetPlugin_v9 symbol.", {}),
        ("TUNER/Plugin: Using nccl_ofi_tuner (v3)", {"tuner": "nccl_ofi_tuner"}),
        ("TUNER/Plugin: Using tuner plugin A3xTunerPlugin_v2", {"tuner": "A3xTunerPlugin_v2"}),
        ("TUNER/Plugin: Using internal tuner plugin.", {}),
        ("ENV/Plugin: Using ncclEnvJson (v1)", {"env": "ncclEnvJson"}),
        ("ENV/Plugin: Closing env plugin ncclEnvDefault", {}),
    ],
)
def test_plugins_that_are_not_nccls_own(message: str, found: dict[str, str]) -> None:
    line = f"host:1:1 [0] NCCL INFO {message}"
    assert parse(line).plugins == found
    assert merge([parse(line), parse("")]).plugins == found
