"""The rules: what each says, where it is silent, and how findings are put in order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lint_samples import H200, PCIE, look, only, rules
from packaging.version import Version

from nccltune.nccl import catalog, lint_names
from nccltune.nccl.circumstances import Circumstances, MachineFacts
from nccltune.nccl.findings import RULES, Setting, shown
from nccltune.nccl.lint import lint
from nccltune.nccl.readers import TORCH_NAMES, concerns

ROOT = Path(__file__).resolve().parents[2]


def test_settings_with_nothing_to_say() -> None:
    text = (
        "NCCL_DEBUG=WARN\nNCCL_IB_TIMEOUT=22\nNCCL_SOCKET_NTHREADS=4\nNCCL_NSOCKS_PERTHREAD=4\n"
        "NCCL_NVLS_ENABLE=0\nNCCL_DEBUG_TIMESTAMP_FORMAT=\nNCCL_NET='AWS Libfabric'\n"
        "TORCH_NCCL_HIGH_PRIORITY=1\nTORCH_NCCL_ASYNC_ERROR_HANDLING=3\nPATH=/bin\n"
        "CUDA_DEVICE_MAX_CONNECTIONS=8\nCUDA_LAUNCH_BLOCKING=0\nTORCH_DISTRIBUTED_DEBUG=OFF\n"
        "GLOO_SOCKET_IFNAME=eth0\nFI_PROVIDER=efa\nOFI_NCCL_PROTOCOL=RDMA"
    )
    assert rules(text, machine=None) == []


# Names.


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NCCL_BUFFERSIZE", "NCCL_BUFFSIZE"),
        ("NCCL_BUFF_SIZE", "NCCL_BUFFSIZE"),
        ("NCCL_NSOCKS_PER_THREAD", "NCCL_NSOCKS_PERTHREAD"),
        ("NCCL_MAX_CTA", "NCCL_MAX_CTAS"),
        ("NCCL_DISABLE_P2P", "NCCL_P2P_DISABLE"),
        ("NCCL_IB_GID_IDX", "NCCL_IB_GID_INDEX"),
        ("NCLL_DEBUG", "NCCL_DEBUG"),
        ("NNCL_DEBUG", "NCCL_DEBUG"),
        ("nccl_debug", "NCCL_DEBUG"),
        ("NCCLL_DEBUGG", "NCCL_DEBUG"),
        ("TORCH_NCCL_BLOCKING_WAITS", "TORCH_NCCL_BLOCKING_WAIT"),
        ("NCCLDEBUG", "NCCL_DEBUG"),
        ("NCCLIB_DISABLE", "NCCL_IB_DISABLE"),
        ("NCCL_NVLINK_DISABLE", "NCCL_P2P_DISABLE, or NCCL_P2P_LEVEL"),
        ("NCCL_RDMA_DISABLE", "NCCL_IB_DISABLE"),
        ("NCCL_SOCKET_IFACE", "NCCL_SOCKET_IFNAME"),
        ("NCCL_IB_HCAS", "NCCL_IB_HCA"),
        ("NCCL_BUFFER_SIZE", "NCCL_BUFFSIZE"),
        ("NCCL_NTHREAD", "NCCL_NTHREADS"),
    ],
)
def test_misspelt_names(name: str, meant: str) -> None:
    found = only(f"{name}=1", "misspelt")
    assert found.severity == "error"
    assert found.message.endswith(f"did you mean {meant}?")


@pytest.mark.parametrize("name", ["NCCL_MAKE_IT_FASTER", "NCCL_X", f"NCCL_{'A' * 5000}"])
def test_unknown_names(name: str) -> None:
    assert only(f"{name}=1", "unknown-variable").severity == "error"


@pytest.mark.parametrize("name", ["NCCL_TIMEOUT", "TORCH_NCCL_TIMEOUT", "NCCL_TIMEOUT_MS"])
def test_a_name_that_many_believe_in(name: str) -> None:
    assert "init_process_group" in only(f"{name}=3600", "unknown-variable").message
    assert [f.rule for f in look(f"{name}=3600")] == ["unknown-variable"]  # not exported


def test_names_that_torch_does_not_read() -> None:
    assert only("TORCH_NCCL_FOO=1", "unknown-variable").severity == "error"
    assert [f.rule for f in look("TORCH_NCCL_FOO=1")] == ["unknown-variable"]  # not exported


@pytest.mark.parametrize("name", ["NCCLTEST", "NCCL", "NCCLROOT", "NCCL_", "XNCCLDEBUG"])
def test_names_without_an_underscore_that_are_no_variables(name: str) -> None:
    assert not [f for f in look(f"export {name}=1") if f.rule == "misspelt"]


def test_every_name_in_the_table_of_wrong_names_is_wrong_and_leads_to_a_right_one() -> None:
    for wrong, right in lint_names._MEANT.items():
        assert catalog.lookup(wrong) is None, wrong
        for name in right.split(", or "):
            found = catalog.lookup(name)
            assert found is not None and found.removed is None, wrong


@pytest.mark.parametrize(
    ("name", "version", "instead"),
    [
        ("NCCL_MIN_NRINGS", "2.7.8", "NCCL_MIN_NCHANNELS"),
        ("NCCL_MAX_NRINGS", "2.16.5", "NCCL_MAX_NCHANNELS"),
        ("NCCL_MAX_NRINGS", "2.17.1", "NCCL_MAX_CTAS"),
        ("NCCL_MIN_NCHANNELS", "2.28.9", "NCCL_MIN_CTAS"),
        ("NCCL_CHECKS_DISABLE", "2.21.5", "NCCL_CHECK_POINTERS"),
        ("NCCL_CHECKS_DISABLE", "2.30.7", "NCCL_CHECK_MODE"),
    ],
)
def test_the_successor_is_one_that_the_release_reads(name: str, version: str, instead: str) -> None:
    rule = "removed" if name == "NCCL_CHECKS_DISABLE" else "deprecated"
    assert only(f"{name}=1", rule, version).message.endswith(f" {instead}")


def test_no_successor_is_one_that_its_release_does_not_read() -> None:
    for text in ("2.4.8", "2.7.8", "2.12.12", "2.16.5", "2.21.5", "2.28.9", "2.30.7"):
        version = Version(text)
        for name in catalog.names():
            variable = catalog.lookup(name)
            assert variable is not None
            instead = catalog.successor(variable, version)
            found = catalog.lookup(instead) if instead else None
            if found is not None:
                assert found.since is None or found.since <= version, (name, text)
                assert found.removed is None or version < found.removed, (name, text)


@pytest.mark.parametrize("version", ["2.4.8", "2.7.8", "2.30.7"])
def test_a_name_that_was_documented_once_is_not_called_undocumented(version: str) -> None:
    assert "undocumented" not in str(rules("NCCL_MIN_NRINGS=4", version))


@pytest.mark.parametrize("name", sorted(TORCH_NAMES))
def test_torchs_own_names_are_not_unknown(name: str) -> None:
    for found in look(f"export {name}=1"):
        assert found.rule not in ("unknown-variable", "misspelt")


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT"),
        ("NCCL_FASTRAK_IFNAME", "Google's"),
        ("NCCL_GPUDIRECTTCPX_CTRL_DEV", "Google's"),
        ("NCCL_SHARP_DISABLE", "nccl-rdma-sharp-plugins"),
        ("NCCL_IBEXT_DISABLE", "nccl-rdma-sharp-plugins"),
        ("NCCL_TESTS_DEVICE", "nccl-tests"),
        ("NCCL_ROOT_DIR", "build systems"),
        ("NCCL_VERSION", "container images"),
    ],
)
def test_names_of_others_are_told_and_no_more(name: str, reader: str) -> None:
    found = only(f"{name}=0", "not-nccls")
    assert found.severity == "note" and reader in found.message


def test_variables_of_the_script_itself() -> None:
    assert look("NCCL_ARGS='-x NCCL_DEBUG=INFO'\nNCCL_HOSTFILE=$1\nNNCL_ARGS=1\n") == ()
    assert [f.rule for f in look("NCCL_DEBUGG=INFO")] == ["misspelt"]
    assert [f.rule for f in look("export NCCL_ARGS=1")] == ["unknown-variable"]
    assert look("export NNCL_ARGS_OF_MINE=1") == ()


def test_a_name_of_a_newer_release() -> None:
    found = only("NCCL_RMA_EAGER_INIT=1", "newer-release", "2.31.2")
    assert found.severity == "note"
    assert rules("NCCL_RMA_EAGER_INIT=1") == ["unknown-variable NCCL_RMA_EAGER_INIT"]
    assert "did you mean NCCL_DEBUG?" in only("NCCL_DEBUGG=1", "newer-release", "2.31").message
    assert "init_process_group" in only("NCCL_TIMEOUT=1", "newer-release", "2.31").message


def test_a_thousand_unknown_names_are_all_told() -> None:
    text = "\n".join(f"NCCL_SOCKET_NTHREAD{n}=1" for n in range(1000))
    found = rules(text)
    assert len(found) == 1000
    assert {item.split()[0] for item in found} == {"misspelt", "unknown-variable"}


@pytest.mark.parametrize(
    "name", ["CNCL_DEBUG", "MY_NCCL_DEBUG", "MCCL_DEBUG", "P2P_DISABLE", "CCL_X"]
)
def test_names_that_are_none_of_our_business(name: str) -> None:
    assert not concerns(name)
    assert rules(f"{name}=8M") == []


@pytest.mark.parametrize(
    ("line", "version", "rule", "part"),
    [
        ("NCCL_TREE_THRESHOLD=0", "2.30.7", "removed", "see NCCL_ALGO"),
        ("NCCL_CREATE_THREAD_CONTEXT=1", "2.30.7", "removed", "since NCCL 2.30.7"),
        ("NCCL_MAX_CTAS=8", "2.16.5", "not-yet", "from NCCL 2.17.1 on"),
        ("NCCL_P2P_LEVEL=P2C", "2.26.2", "not-yet", "P2C is understood from NCCL 2.27.3 on"),
        ("NCCL_MAX_NCHANNELS=8", "2.30.7", "deprecated", "NCCL_MAX_CTAS"),
        ("NCCL_LAUNCH_MODE=PARALLEL", "2.30.7", "deprecated", "since NCCL 2.9"),
    ],
)
def test_names_and_releases(line: str, version: str, rule: str, part: str) -> None:
    assert part in only(line, rule, version).message


def test_the_same_names_in_releases_that_read_them() -> None:
    assert rules("NCCL_CREATE_THREAD_CONTEXT=1", "2.30.4") == [
        "undocumented NCCL_CREATE_THREAD_CONTEXT"
    ]
    assert rules("NCCL_MAX_NCHANNELS=8", "2.16.5") == ["version-bound NCCL_MAX_NCHANNELS"]


# Values.


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("NCCL_BUFFSIZE=8M", "reads 8M as 8 and does not complain; write 8388608"),
        ("NCCL_BUFFSIZE=4MiB", "as 4 and does not complain; write 4194304"),
        ("NCCL_BUFFSIZE=512k", "write 524288"),
        ("NCCL_P2P_DISABLE=true", "reads true as 0 and does not complain; write 1"),
        ("NCCL_SHM_DISABLE=no", "write a plain decimal number"),
        ("NCCL_MAX_CTAS=016", "reads 016 as 14"),
        ("NCCL_MAX_CTAS=8.5", "reads 8.5 as 8"),
        ("NCCL_CROSS_NIC=on", "write 1"),
        ("NCCL_SOCKET_MAGIC=0xzz", "built-in value"),
    ],
)
def test_texts_that_nccl_reads_as_another_number(line: str, part: str) -> None:
    found = only(line, "unreadable-number")
    assert found.severity == "error" and part in found.message


def test_words_that_newer_releases_read() -> None:
    assert rules("NCCL_SET_THREAD_NAME=TRUE", "2.30.7") == []
    assert rules("NCCL_SET_THREAD_NAME=TRUE", "2.28.9") == [
        "unreadable-number NCCL_SET_THREAD_NAME"
    ]


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NCCL_MAX_CTAS=65", "2.30.7"),
        ("NCCL_MAX_CTAS=64", "2.24.3"),
        ("NCCL_MAX_CTAS=0", "2.30.7"),
        ("NCCL_SOCKET_NTHREADS=17", "2.30.7"),
        ("NCCL_SOCKET_NTHREADS=-1", "2.30.7"),
        ("NCCL_IB_TIMEOUT=32", "2.30.7"),
        ("NCCL_CROSS_NIC=3", "2.30.7"),
        ("NCCL_P2P_DISABLE=2", "2.30.7"),
        ("NCCL_NTHREADS=1000", "2.30.7"),
        ("NCCL_NTHREADS=100", "2.30.7"),
        ("NCCL_NTHREADS=32", "2.30.7"),
        ("NCCL_BUFFSIZE=0", "2.30.7"),
        ("NCCL_WORK_FIFO_BYTES=1000000", "2.30.7"),
        (f"NCCL_BUFFSIZE={10**30}", "2.30.7"),
        (f"NCCL_BUFFSIZE={'9' * 6000}", "2.30.7"),
        ("CUDA_DEVICE_MAX_CONNECTIONS=64", "2.30.7"),
        ("CUDA_DEVICE_MAX_CONNECTIONS=0", "2.30.7"),
    ],
)
def test_numbers_out_of_range(line: str, version: str) -> None:
    assert only(line, "out-of-range", version).severity == "error"


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NCCL_MAX_CTAS=64", "2.25.1"),
        ("NCCL_MAX_CTAS=32", "2.24.3"),
        ("NCCL_SOCKET_NTHREADS=16", "2.30.7"),
        ("NCCL_NTHREADS=256", "2.30.7"),
        ("NCCL_BUFFSIZE=0x400000", "2.30.7"),
        ("NCCL_MIN_NCHANNELS=0", "2.30.7"),
    ],
)
def test_numbers_within_range(line: str, version: str) -> None:
    assert {f.severity for f in look(f"export {line}", version)} <= {"note"}


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("NCCL_P2P_LEVEL=nvl", "write NVL, case counts"),
        ("NCCL_P2P_LEVEL=NVLINK", "known: LOC, NVL"),
        ("NCCL_DEBUG=WARNING", "write WARN"),
        ("NCCL_DEBUG_SUBSYS=INIT,VERSION", "does not know VERSION"),
        ("NCCL_SOCKET_FAMILY=ipv4", "AF_INET"),
        ("NCCL_CTA_POLICY='DEFAULT|FAST'", "does not know FAST"),
        ("NCCL_NETDEVS_POLICY=MAX", "AUTO"),
        ("NCCL_SOCKET_IFNAME=e", "one character"),
    ],
)
def test_words_that_nccl_does_not_know(line: str, part: str) -> None:
    found = only(line, "unknown-value")
    assert found.severity == "error" and part in found.message


@pytest.mark.parametrize(
    ("line", "rule", "part"),
    [
        ("NCCL_P2P_LEVEL=6", "out-of-range", "highest number is 5, SYS"),
        ("NCCL_NET_GDR_LEVEL=99", "out-of-range", "highest number is 5, SYS"),
        ("NCCL_P2P_LEVEL=2x", "unreadable-number", "reads 2x as 2"),
    ],
)
def test_levels_that_are_no_word(line: str, rule: str, part: str) -> None:
    assert part in only(line, rule).message
    assert ("raised-level" in str(rules(line))) == (rule == "out-of-range")


def test_blanks_around_a_number_change_nothing() -> None:
    assert rules("NCCL_P2P_DISABLE=' 1 '") == rules("NCCL_P2P_DISABLE=1")
    assert "unreadable-number" in str(rules("NCCL_P2P_DISABLE='1 0'"))


@pytest.mark.parametrize("place", ["shell", "docker", "nccl.conf"])
def test_a_home_directory_that_nobody_fills_in(place: str) -> None:
    text = "export NCCL_TOPO_FILE='~/a'" if place == "shell" else "NCCL_TOPO_FILE=~/a"
    found = [f.rule for f in look(text, format=place) if f.rule != "set-by-nccl"]  # type: ignore[arg-type]
    assert found == ["not-expanded"]


def test_names_that_scripts_use_for_themselves() -> None:
    assert look("NCCL_HOME=/a NCCL_VERSION=2.28\n") == ()
    assert [f.rule for f in look("export NCCL_HOME=/a\n")] == ["not-nccls"]


def test_what_a_file_does_not_expand_is_not_laid_to_a_shell() -> None:
    for place in ("docker", "nccl.conf"):
        found = [f.rule for f in look("NCCL_NET=$A", format=place)]  # type: ignore[arg-type]
        assert "not-expanded" in found and "computed" not in found


def test_words_that_it_knows() -> None:
    for line in ("NCCL_DEBUG=warn", "NCCL_NETDEVS_POLICY=max:2", "NCCL_CTA_POLICY='EFFICIENCY'"):
        assert rules(line) == []
    assert "unknown-value" not in str(rules("NCCL_DEBUG=INFO\nNCCL_DEBUG_SUBSYS=^INIT,net"))


@pytest.mark.parametrize(
    ("line", "version", "part"),
    [
        ("NCCL_ALGO=Rong", "2.30.7", "ends at its start"),
        ("NCCL_ALGO=Rong", "2.21.5", "drops what it does not know"),
        ("NCCL_ALGO='Ring, Tree'", "2.30.7", "space"),
        ("NCCL_ALGO='ring;allreduce:tree'", "2.21.5", "understood from NCCL 2.24"),
        ("NCCL_PROTO=LL64", "2.30.7", "not known"),
        ("NCCL_THREAD_THRESHOLDS=8,8,32", "2.30.7", "single spaces"),
    ],
)
def test_lists_that_are_none(line: str, version: str, part: str) -> None:
    found = only(line, "bad-list", version)
    assert found.severity == "error" and part in found.message


@pytest.mark.parametrize("version", ["2.24.3", "2.30.7"])
def test_an_algorithm_without_which_ddp_cannot_start(version: str) -> None:
    found = only("NCCL_ALGO=Tree", "no-algorithm", version)
    assert "Broadcast, AllGather" in found.message
    assert found.message.endswith("as in 'ring,tree;allreduce:tree'")
    for format in ("docker", "nccl.conf"):
        found = look("NCCL_ALGO=Tree", version, format=format)
        [told] = [f.message for f in found if f.rule == "no-algorithm"]
        assert told.endswith("as in ring,tree;allreduce:tree")


@pytest.mark.parametrize("version", ["2.16.5", "2.17.1", "2.18.5", "2.19.4", "2.23.4"])
def test_before_2_24_ring_is_left_to_what_ddp_starts_with(version: str) -> None:
    found = rules("NCCL_ALGO=Tree", version)
    assert "no-algorithm NCCL_ALGO" not in found
    assert ("falls-back NCCL_ALGO" in found) == (version >= "2.17")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NCCL_NVLS_DISABLE", "NCCL_NVLS_ENABLE, with the opposite value"),
        ("NCCL_DISABLE_NVLS", "NCCL_NVLS_ENABLE, with the opposite value"),
        ("NCCL_P2P_ENABLE", "NCCL_P2P_DISABLE, with the opposite value"),
        ("NCCL_DISABLE_P2P", "NCCL_P2P_DISABLE"),
        ("NCCL_ALGORITHM", "NCCL_ALGO"),
        ("NCCL_DEBUG_LEVEL", "NCCL_DEBUG"),
    ],
)
def test_what_a_name_was_meant_for(name: str, meant: str) -> None:
    assert only(f"{name}=1", "misspelt").message.endswith(f"did you mean {meant}?")


def test_a_protocol_that_the_algorithm_does_not_have() -> None:
    text = "NCCL_ALGO='ring,tree,nvls;allreduce:nvls'\nNCCL_PROTO=LL"
    assert "NVLS has Simple alone" in only(text, "no-algorithm").message
    assert "no-algorithm" not in str(rules(text.replace("=LL", "=LL,Simple")))


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("NCCL_ALGO=", "not"),
        ("NCCL_DEBUG=''", "unset it instead"),
        ("NCCL_BUFFSIZE=", "unset it instead"),
    ],
)
def test_empty_values(line: str, part: str) -> None:
    assert part in only(line, "empty-value").message
    assert "leaves no choice" in only("NCCL_ALGO=", "empty-value", "2.23.4").message


@pytest.mark.parametrize(
    "name", ["NCCL_IB_TC", "NCCL_NET_OVERHEAD", "NCCL_BUFFSIZE", "NCCL_NTHREADS"]
)
def test_marks_for_automatic(name: str) -> None:
    variable = catalog.lookup(name)
    assert variable is not None
    assert only(f"{name}={variable.automatic[0]}", "sentinel").severity == "warning"


@pytest.mark.parametrize("value", ["true", "Y", "0", "no"])
def test_truth_values_of_torch(value: str) -> None:
    assert "torch-refuses" not in str(rules(f"TORCH_NCCL_HIGH_PRIORITY={value}"))


@pytest.mark.parametrize(
    "line",
    [
        "TORCH_NCCL_HIGH_PRIORITY=on",
        "TORCH_NCCL_BLOCKING_WAIT=",
        "NCCL_BLOCKING_WAIT=2",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=ten",
    ],
)
def test_values_with_which_torch_does_not_start(line: str) -> None:
    assert only(line, "torch-refuses").severity == "error"


@pytest.mark.parametrize(
    "line",
    [
        "CUDA_LAUNCH_BLOCKING=1",
        "TORCH_NCCL_BLOCKING_WAIT=1",
        "NCCL_BLOCKING_WAIT=1",
        "TORCH_NCCL_NAN_CHECK=true",
        "TORCH_DISTRIBUTED_DEBUG=detail",
        "NCCL_CHECK_POINTERS=1",
        "NCCL_CHECK_MODE=DEBUG_LOCAL",
        "NCCL_DEBUG=TRACE",
        "NCCL_DEBUG=INFO\nNCCL_DEBUG_SUBSYS=INIT,COLL",
        "NCCL_DEBUG=INFO\nNCCL_DEBUG_SUBSYS=ALL",
    ],
)
def test_debugging_left_on(line: str) -> None:
    assert only(line, "debugging-left-on").severity == "warning"


def test_logs() -> None:
    assert rules("NCCL_DEBUG=INFO") == ["log-left-on NCCL_DEBUG"]
    assert rules("NCCL_DEBUG=INFO\nNCCL_DEBUG_SUBSYS=INIT,ENV") == ["log-left-on NCCL_DEBUG"]
    assert rules("NCCL_DEBUG_SUBSYS=INIT") == ["acts-only-with NCCL_DEBUG_SUBSYS"]
    assert rules("NCCL_DEBUG=WARN\nNCCL_DEBUG_FILE=/a") == ["shared-log-file NCCL_DEBUG_FILE"]
    assert rules("NCCL_DEBUG=WARN\nNCCL_DEBUG_FILE=/a.%h.%p") == []
    assert rules("NCCL_DEBUG=WARN\nNCCL_DEBUG_FILE=/dev/stderr") == []
    assert "not-expanded NCCL_DEBUG_FILE" in rules("NCCL_DEBUG=WARN\nNCCL_DEBUG_FILE='~/a.%p'")
    assert rules("NCCL_TOPO_DUMP_FILE=/a.xml") == ["log-left-on NCCL_TOPO_DUMP_FILE"]


def test_a_torch_whose_hangs_stay() -> None:
    assert only("TORCH_NCCL_ASYNC_ERROR_HANDLING=0", "dangerous").severity == "warning"


def test_numbers_for_paths() -> None:
    assert rules("NCCL_P2P_LEVEL=1") == ["legacy-level NCCL_P2P_LEVEL"]


@pytest.mark.parametrize("name", ["NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_PXN_DISABLE"])
def test_the_default_of_a_switch_is_nothing_to_speak_of(name: str) -> None:
    assert rules(f"{name}=0") == []


def test_leaving_out_interfaces_is_no_matter_of_one_fabric() -> None:
    assert rules("NCCL_SOCKET_IFNAME=^docker0,lo") == []
    assert rules("NCCL_SOCKET_IFNAME=eth0") == ["fabric-specific NCCL_SOCKET_IFNAME"]


@pytest.mark.parametrize("machine", [None, MachineFacts(), replace(PCIE, rdma=None)])
def test_sockets_where_nothing_says_that_there_is_nothing_else(
    machine: MachineFacts | None,
) -> None:
    found = only("NCCL_IB_DISABLE=1", "slow", machine=machine)
    assert found.severity == "warning" and "keep it only where there is none" in found.message
    assert rules("NCCL_IB_DISABLE=1", machine=PCIE) == ["plugin-ignores NCCL_IB_DISABLE"]


# Several settings.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NCCL_NET=IB\nNCCL_IB_DISABLE=1", "error constraint-broken"),
        ("NCCL_NET=ib\nNCCL_IB_DISABLE=1", "error constraint-broken"),
        ("NCCL_NET=IB\nNCCL_IB_DISABLE=0", None),
        ("NCCL_NET=IB\nNCCL_IB_DISABLE=$X", None),
        ("NCCL_NET=Socket\nNCCL_IB_DISABLE=1", None),
        ("NCCL_NET=socket", None),
        ("NCCL_NET=Sockets", "error misspelt Socket"),
        ("NCCL_NET=Socketss", "error misspelt Socket"),
        ("NCCL_NET=RoCE", "error misspelt IB"),
        ("NCCL_NET=Sockets\nNCCL_NET_PLUGIN=none", "error misspelt Socket"),
        ("NCCL_NET=Sockets\nNCCL_NET_PLUGIN=ofi", "note not-nccls Socket"),
        ("NCCL_NET=IBext_v8", None),
        ("NCCL_NET=FasTrak", None),
        ("NCCL_NET='AWS Libfabric'", None),
        ("NCCL_NET=Libfabric", None),
    ],
)
def test_networks(text: str, expected: str | None) -> None:
    lines = "\n".join(f"export {line}" for line in text.splitlines())
    found = [f for f in look(lines, machine=PCIE) if f.name == "NCCL_NET"]
    found = [f for f in found if f.rule in ("constraint-broken", "misspelt", "not-nccls")]
    if expected is None:
        assert found == []
        return
    [item] = found
    severity, rule, *meant = expected.split()
    assert (item.severity, item.rule) == (severity, rule)
    if meant:
        assert item.message.endswith(f"did you mean {meant[0]}?")


@pytest.mark.parametrize(
    ("text", "rule", "name"),
    [
        ("NCCL_MIN_CTAS=32\nNCCL_MAX_CTAS=16", "constraint-broken", "NCCL_MIN_CTAS"),
        ("NCCL_MIN_NCHANNELS=9\nNCCL_MAX_NCHANNELS=8", "constraint-broken", "NCCL_MIN_NCHANNELS"),
        ("NCCL_P2P_NET_CHUNKSIZE=2097152", "constraint-broken", "NCCL_P2P_NET_CHUNKSIZE"),
        (
            "NCCL_P2P_NVL_CHUNKSIZE=524288\nNCCL_BUFFSIZE=1048576",
            "constraint-broken",
            "NCCL_P2P_NVL_CHUNKSIZE",
        ),
        ("NCCL_MAX_NRINGS=4\nNCCL_MAX_NCHANNELS=8", "overruled", "NCCL_MAX_NRINGS"),
        ("NCCL_IB_SPLIT_DATA_ON_QPS=1", "acts-only-with", "NCCL_IB_SPLIT_DATA_ON_QPS"),
        ("NCCL_IB_HCA=mlx5\nNCCL_IB_DISABLE=1", "overruled", "NCCL_IB_HCA"),
        ("NCCL_NET=Socket\nNCCL_IB_GID_INDEX=3", "overruled", "NCCL_IB_GID_INDEX"),
        ("NCCL_NVLS_ENABLE=0\nNCCL_NVLS_NCHANNELS=8", "overruled", "NCCL_NVLS_NCHANNELS"),
        ("NCCL_GDRCOPY_SYNC_ENABLE=1", "acts-only-with", "NCCL_GDRCOPY_SYNC_ENABLE"),
        ("NCCL_CTA_POLICY=EFFICIENCY\nNCCL_ALGO=Ring", "overruled", "NCCL_CTA_POLICY"),
        ("NCCL_CTA_POLICY='EFFICIENCY|ZERO'", "constraint-broken", "NCCL_CTA_POLICY"),
    ],
)
def test_settings_that_do_not_go_together(text: str, rule: str, name: str) -> None:
    assert only(text, rule).name == name


@pytest.mark.parametrize(
    "text",
    [
        "NCCL_MIN_CTAS=16\nNCCL_MAX_CTAS=32",
        "NCCL_P2P_NET_CHUNKSIZE=524288",
        "NCCL_P2P_NET_CHUNKSIZE=2097152\nNCCL_BUFFSIZE=16777216",
        "NCCL_IB_HCA=mlx5\nNCCL_IB_DISABLE=0",
        "NCCL_IB_SPLIT_DATA_ON_QPS=1\nNCCL_IB_QPS_PER_CONNECTION=2",
        "NCCL_GDRCOPY_SYNC_ENABLE=1\nNCCL_GDRCOPY_ENABLE=1",
        "NCCL_NVLS_ENABLE=2\nNCCL_NVLS_NCHANNELS=8",
        "NCCL_P2P_NET_CHUNKSIZE=2097152\nNCCL_BUFFSIZE=$SIZE",
        "NCCL_GDRCOPY_SYNC_ENABLE=1\nNCCL_GDRCOPY_ENABLE=$ON",
        "NCCL_NSOCKS_PERTHREAD=8\nNCCL_SOCKET_NTHREADS=$N",
        "NCCL_DEBUG_SUBSYS=INIT\nNCCL_DEBUG=$LEVEL",
    ],
)
def test_settings_that_do_and_values_that_nobody_knows(text: str) -> None:
    found = {f.rule for f in look("\n".join(f"export {line}" for line in text.splitlines()))}
    assert found.isdisjoint({"constraint-broken", "overruled", "acts-only-with"})


def test_a_setting_of_one_command_meets_those_of_the_script() -> None:
    script = (
        "export NCCL_SOCKET_NTHREADS=16\n"
        "NCCL_NSOCKS_PERTHREAD=4 torchrun a\n"
        "NCCL_NSOCKS_PERTHREAD=8 torchrun a\n"
    )
    found = [(f.line, f.rule) for f in look(script)]
    assert found == [(3, "constraint-broken")]


def test_what_is_unset_again_meets_nothing() -> None:
    script = (
        "export NCCL_SOCKET_NTHREADS=16\nunset NCCL_SOCKET_NTHREADS\n"
        "export NCCL_SOCKET_NTHREADS=2 NCCL_NSOCKS_PERTHREAD=8\n"
    )
    assert look(script) == ()


def test_set_twice() -> None:
    script = "export NCCL_NET=IB\nexport NCCL_NET=Socket\n"
    [found] = look(script)
    assert (found.rule, found.line) == ("duplicate", 1)
    assert found.message == "line 2 sets it to another value, which wins"
    [same] = look("export NCCL_NET=IB\nexport NCCL_NET=IB\n")
    assert (same.rule, same.line, same.severity) == ("repeated", 1, "note")


def test_set_twice_for_docker_and_for_nccl() -> None:
    lines = "NCCL_NET=IB\nNCCL_NET=Socket\n"
    assert [(f.rule, f.line) for f in look(lines, format="docker")] == [("duplicate", 1)]
    found = [(f.rule, f.line) for f in look(lines, format="nccl.conf") if f.rule != "set-by-nccl"]
    assert found == [("duplicate", 2)]


def test_threads_are_capped_before_their_sockets_are_counted() -> None:
    assert rules("NCCL_SOCKET_NTHREADS=65\nNCCL_NSOCKS_PERTHREAD=1") == [
        "out-of-range NCCL_SOCKET_NTHREADS"
    ]
    found = only("NCCL_SOCKET_NTHREADS=65\nNCCL_NSOCKS_PERTHREAD=8", "constraint-broken")
    assert "16 threads x 8 sockets" in found.message and found.message.endswith("to 4")


def test_nvls_alone_where_it_is_switched_off() -> None:
    text = "NCCL_NVLS_ENABLE=0\nNCCL_ALGO='ring,nvls;allreduce:nvls'"
    assert "no algorithm is left" in only(text, "no-algorithm").message
    assert rules(text.replace("allreduce:nvls", "allreduce:ring,nvls")) == [
        "version-bound NCCL_ALGO"
    ]


def test_branches_are_not_doubles_and_leave_the_value_open() -> None:
    script = (
        "if x; then\n export NCCL_SOCKET_NTHREADS=16\nelse\n export NCCL_SOCKET_NTHREADS=2\nfi\n"
        "export NCCL_NSOCKS_PERTHREAD=8\n"
    )
    assert [(f.line, f.rule) for f in look(script)] == [(6, "constraint-broken")]
    assert "16 threads" in look(script)[0].message
    assert look(script.replace("=16", "=4")) == ()
    alone = script.replace("else\n export NCCL_SOCKET_NTHREADS=2\n", "")
    assert [f.rule for f in look(alone)] == ["constraint-broken"]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("x || export NCCL_IB_DISABLE=1\nexport NCCL_IB_HCA=mlx5\n", [(1, "slow")]),
        (
            "export NCCL_IB_DISABLE=1\nx && export NCCL_IB_HCA=mlx5\n",
            [(1, "slow"), (2, "overruled")],
        ),
        ("if x; then\nexport NCCL_NET=Socket\nelse\nexport NCCL_IB_TC=1\nfi\n", []),
        ("if x; then\nexport NCCL_NET=Socket\nexport NCCL_IB_TC=1\nfi\n", [(3, "overruled")]),
        ("case x in\na) export NCCL_NET=Socket ;;\nb) export NCCL_IB_TC=1 ;;\nesac\n", []),
        ("(export NCCL_NET=Socket)\nexport NCCL_IB_TC=1\n", []),
        ("f() {\nexport NCCL_NET=Socket\n}\nexport NCCL_IB_TC=1\n", []),
        ("export NCCL_IB_TC=1\nNCCL_NET=Socket torchrun a\n", [(1, "overruled")]),
        ("x && export NCCL_SOCKET_NTHREADS=4\nexport NCCL_NSOCKS_PERTHREAD=4\n", []),
        ("A=(\n-x NCCL_SOCKET_NTHREADS=4\n-x NCCL_NSOCKS_PERTHREAD=4\n)\n", []),
        (
            "if x; then export NCCL_SOCKET_NTHREADS=4\nelse export NCCL_NSOCKS_PERTHREAD=4\nfi\n",
            [(2, "acts-only-with")],
        ),
        (
            "export NCCL_SOCKET_NTHREADS=16\nbash <<A\nexport NCCL_NSOCKS_PERTHREAD=8\nA\n",
            [(3, "constraint-broken")],
        ),
        ("export NCCL_NET=IB\nif x; then export NCCL_NET=Socket; fi\nexport NCCL_IB_TC=1\n", []),
        (
            "bash -c 'NCCL_SOCKET_NTHREADS=16 NCCL_NSOCKS_PERTHREAD=8 torchrun a'\n",
            [(1, "constraint-broken")],
        ),
    ],
)
def test_what_one_branch_sets_is_not_held_against_another(
    script: str, expected: list[object]
) -> None:
    assert [(f.line, f.rule) for f in look(script) if f.severity != "note"] == expected


def test_the_environment_wins_over_nccl_conf() -> None:
    settings = (
        Setting("environment", None, "NCCL_NET", "IB", "environment"),
        Setting("/etc/nccl.conf", 3, "NCCL_NET", "Socket", "conf"),
        Setting("/etc/nccl.conf", 4, "NCCL_SOCKET_NTHREADS", "16", "conf"),
        Setting("environment", None, "NCCL_NSOCKS_PERTHREAD", "8", "environment"),
    )
    found = lint(settings, Circumstances())
    assert [(f.file, f.line, f.rule) for f in found] == [
        ("environment", None, "constraint-broken"),
        ("/etc/nccl.conf", 3, "overruled"),
    ]
    assert found[1].message == "the environment sets it to another value, which wins"


# The site.


@pytest.mark.parametrize(
    "line",
    [
        "export NCCL_NVLS_ENABLE=2",
        "export TORCH_SYMM_MEM_DISABLE_MULTICAST=0",
        "export NVSHMEM_DISABLE_NVLS=false",
        "export NCCL_NVLS_ENABLE=$X",
        "unset NCCL_NVLS_ENABLE",
        "export -n NCCL_NVLS_ENABLE",
        "env -u NCCL_NVLS_ENABLE torchrun a",
        "sudo NCCL_NVLS_ENABLE=2 torchrun a",
    ],
)
def test_nothing_works_against_multicast_that_is_off(line: str) -> None:
    found = [f for f in look(line, site={"NCCL_NVLS_ENABLE": "0"}) if f.rule == "site-multicast"]
    assert [f.severity for f in found] == ["error"]
    assert "NCCL_NVLS_ENABLE=0 in the environment" in found[0].message
    assert "site-multicast" not in [f.rule for f in look(line)]


def test_an_algorithm_that_needs_multicast() -> None:
    site = {"NVSHMEM_DISABLE_NVLS": "1"}
    text = "NCCL_ALGO='ring,nvls;allreduce:nvls'"
    assert only(text, "site-multicast", site=site).severity == "error"
    for line in (text, "NCCL_ALGO=^NVLS", "NCCL_ALGO=ring,tree"):
        there = {} if line == text else site
        assert "site-multicast" not in str(rules(line, site=there))


def test_switching_multicast_off_once_more_is_fine() -> None:
    assert look("export NCCL_NVLS_ENABLE=0", site={"NCCL_NVLS_ENABLE": "0"}) == ()
    assert look("export NVSHMEM_DISABLE_NVLS=1", site={"NCCL_NVLS_ENABLE": "0"}) == ()


def test_another_value_than_the_sites() -> None:
    [found] = look("export NCCL_NET=IB", site={"NCCL_NET": "Socket"})
    assert (found.rule, found.severity) == ("differs-from-site", "note")
    assert look("export NCCL_NET=IB", site={"NCCL_NET": "IB"}) == ()
    conf = look("NCCL_NET=IB", site={"NCCL_NET": "Socket"}, format="nccl.conf")
    assert "overruled" in [f.rule for f in conf]


# The machine.


@pytest.mark.parametrize(
    ("line", "machine", "part"),
    [
        ("NCCL_IB_GID_INDEX=3", PCIE, "no InfiniBand or RoCE device"),
        ("NCCL_NVB_PRECONNECT=1", PCIE, "no NVLink"),
        ("NCCL_NVLS_NCHANNELS=8", PCIE, "no NVLink"),
        ("NCCL_NVLS_NCHANNELS=8", replace(H200, capabilities=((8, 0),) * 8), "9.0"),
        ("NCCL_CGA_CLUSTER_SIZE=2", PCIE, "9.0"),
        ("NCCL_MEM_SYNC_DOMAIN=0", PCIE, "9.0"),
        ("NCCL_P2P_READ_ENABLE=1", replace(PCIE, capabilities=((8, 9),)), "one GPU"),
        ("NCCL_PXN_C2C=1", H200, "Grace"),
        ("NCCL_CROSS_NIC=1", replace(H200, rdma=("mlx5_0",)), "one network device"),
    ],
)
def test_what_cannot_act_on_this_machine(line: str, machine: MachineFacts, part: str) -> None:
    found = only(line, "dead-here", machine=machine)
    assert found.severity == "warning"
    assert part in found.message


@pytest.mark.parametrize(
    ("line", "machine"),
    [
        ("NCCL_IB_GID_INDEX=3", H200),
        ("NCCL_NVLS_NCHANNELS=8", H200),
        ("NCCL_CGA_CLUSTER_SIZE=2", H200),
        ("NCCL_P2P_READ_ENABLE=1", PCIE),
        ("NCCL_PXN_C2C=1", replace(H200, architecture="aarch64")),
        ("NCCL_CROSS_NIC=1", H200),
        ("NCCL_IB_DISABLE=1", PCIE),
        ("NCCL_NVLS_ENABLE=0", PCIE),
        ("NCCL_IB_GID_INDEX=3", None),
        ("NCCL_IB_GID_INDEX=3", MachineFacts()),
        ("NCCL_IB_GID_INDEX=3", replace(PCIE, capabilities=None)),
        ("NCCL_IB_GID_INDEX=3", replace(PCIE, rdma=None)),
        ("NCCL_NVB_PRECONNECT=1", replace(PCIE, nvlinks=None)),
    ],
)
def test_what_may_act_or_is_not_known(line: str, machine: MachineFacts | None) -> None:
    assert "dead-here" not in str(rules(line, machine=machine))


def test_nvls_for_two_gpus_depends_on_the_release() -> None:
    two = replace(H200, capabilities=((9, 0),) * 2, nvlinks=(18, 18))
    assert (
        "from 3 GPUs on"
        in only("NCCL_NVLS_NCHANNELS=8", "dead-here", "2.27.7", machine=two).message
    )
    assert "dead-here" not in str(rules("NCCL_NVLS_NCHANNELS=8", "2.28.9", machine=two))


def test_all_reduce_by_nvls_where_there_is_none() -> None:
    line = "NCCL_ALGO='ring,tree,nvls;allreduce:nvls'"
    assert "no NVLink" in only(line, "no-algorithm", machine=PCIE).message
    assert "no-algorithm" not in str(rules(line, machine=H200))
    assert "no-algorithm" not in str(rules(line.replace(":nvls", ":nvls,ring"), machine=PCIE))


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("NCCL_SOCKET_IFNAME=ens", True),
        ("NCCL_SOCKET_IFNAME==eth", True),
        ("NCCL_SOCKET_IFNAME=eth", False),
        ("NCCL_SOCKET_IFNAME==eth0", False),
        ("NCCL_SOCKET_IFNAME=ens,ib0", False),
        ("NCCL_SOCKET_IFNAME=^eth", False),
        ("NCCL_OOB_NET_IFNAME=ens", True),
        ("GLOO_SOCKET_IFNAME=eth", True),
        ("GLOO_SOCKET_IFNAME=eth0", False),
        ("TP_SOCKET_IFNAME=ens3", True),
        ("NCCL_IB_HCA=mlx4", True),
        ("NCCL_IB_HCA==mlx5", True),
        ("NCCL_IB_HCA=mlx5_0:1", False),
        ("NCCL_IB_HCA==mlx5_0:1,mlx5_1:1", False),
        ("NCCL_IB_HCA=^mlx4", False),
        ("NCCL_IB_HCA=^mlx5_0", False),
        ("NCCL_IB_HCA=^mlx5", True),
        ("NCCL_SOCKET_IFNAME=x", False),  # NCCL ignores one character
    ],
)
def test_devices_that_are_not_here(line: str, missing: bool) -> None:
    assert ("device-missing" in str(rules(line, machine=H200))) == missing
    assert "device-missing" not in str(rules(line))


@pytest.mark.parametrize("name", ["NCCL_TOPO_FILE", "NCCL_GRAPH_FILE"])
def test_files_that_are_not_here(name: str, tmp_path: Path) -> None:
    missing = only(f"{name}={tmp_path}/no.xml", "device-missing", machine=H200)
    assert missing.severity == "error" and "no such file" in missing.message
    (tmp_path / "a.xml").write_text("<system/>")
    assert "device-missing" not in str(rules(f"{name}={tmp_path}/a.xml", machine=H200))
    assert "device-missing" not in str(rules(f"{name}={tmp_path}/no.xml"))  # another machine


# Findings.


def test_order_and_place() -> None:
    script = "export NCCL_DEBUG=INFO NCCL_BUFFSIZE=8M NCCL_P2P_DISABLE=1\nexport NCCL_ALGO=Tree\n"
    found = look(script)
    assert [(f.line, f.severity, f.rule) for f in found] == [
        (1, "error", "unreadable-number"),
        (1, "warning", "slow"),
        (1, "note", "log-left-on"),
        (2, "error", "no-algorithm"),
    ]
    assert {f.file for f in found} == {"a.sh"}
    assert found[1].to_dict() == {
        "file": "a.sh",
        "line": 1,
        "severity": "warning",
        "rule": "slow",
        "name": "NCCL_P2P_DISABLE",
        "message": found[1].message,
        "source": "NVIDIA/nccl#2079, NVIDIA/nccl-tests#117, #257",
    }


def test_what_kind_of_setting_it_is_gives_way_to_graver_things() -> None:
    assert "version-bound NCCL_P2P_NET_CHUNKSIZE" not in rules("NCCL_P2P_NET_CHUNKSIZE=2097152")
    assert "version-bound NCCL_P2P_NET_CHUNKSIZE" in rules("NCCL_P2P_NET_CHUNKSIZE=262144")


def test_a_computed_value_is_told_and_its_name_judged() -> None:
    assert rules("NCCL_IB_HCA=$HCAS") == ["computed NCCL_IB_HCA", "fabric-specific NCCL_IB_HCA"]
    assert rules("NCCL_TREE_THRESHOLD=$X") == [
        "computed NCCL_TREE_THRESHOLD",
        "removed NCCL_TREE_THRESHOLD",
    ]


@pytest.mark.parametrize("name", [n for n in catalog.names() if catalog.lookup(n)])
def test_every_variable_of_the_catalogue_is_judged_with_any_value(name: str) -> None:
    values = (
        "",
        "0",
        "1",
        "-1",
        "-2",
        "8M",
        "x",
        "=",
        "^",
        ",",
        ";",
        ":",
        "a:b;c",
        "9" * 25,
        "\x1b",
    )
    machines = {"2.18.1": None, "2.23.4": H200, "2.30.7": PCIE, "2.32": H200}
    for version, machine in machines.items():
        around = Circumstances(version=Version(version), machine=machine)
        for value in values:
            for found in lint([Setting("a", 1, name, value)], around):
                assert found.message and found.message[-1] != ".", found


def test_text_of_a_file_is_shown_without_control_characters() -> None:
    assert shown("a\x1b[31m\n\udcff") == "a\\x1b[31m\\n\\udcff"
    assert shown("é" * 100) == "é" * 80 + "..."
    found = look("export NCCL_ALGO='\x1b[31mx' NCCL_DEBUG='\x07'")
    assert all(message.isprintable() for message in (f.message for f in found))


def test_the_document_lists_every_rule_with_its_severity() -> None:
    document = (ROOT / "docs/nccl.md").read_text().partition("## Rules")[2]
    rows = [line.split("|")[1:3] for line in document.splitlines() if line.startswith("| `")]
    assert {rule.strip(" `"): severity.strip() for rule, severity in rows} == {
        rule: severity for rule, (severity, _) in RULES.items()
    }


def test_every_rule_is_used() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src/nccltune/nccl").glob("*.py"))
    unused = [rule for rule in RULES if sources.count(f'"{rule}"') < 2]
    assert unused == []
