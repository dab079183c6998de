"""Values that work and should not be there: wrong sums, hangs, lost speed, debugging."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from nccltune.nccl.circumstances import Circumstances
from nccltune.nccl.findings import Finding, Setting, finding
from nccltune.nccl.integers import plain_integer, strtoll

# By name and number: rule, text, source.
_NUMBERS: dict[tuple[str, int], tuple[str, str, str | None]] = {
    ("NCCL_NVLS_ENABLE", 1): (
        "dangerous",
        "takes NVLink multicast for granted: fatal or a hang where it is missing, used up, or "
        "several ranks share a GPU, whatever NCCL_ALGO says; leave it unset (the default 2 asks "
        "the device), or set 0 where multicast is broken",
        "NVIDIA/nccl#2077, #1197, #1716",
    ),
    ("NCCL_P2P_DISABLE", 1): (
        "slow",
        "GPUs then talk through the host's memory, or the network: it hides a hang of PCIe "
        "peer-to-peer, whose cause is ACS or the IOMMU; switch those off and take this out",
        "NVIDIA/nccl#2079, NVIDIA/nccl-tests#117, #257",
    ),
    ("NCCL_SHM_DISABLE", 1): (
        "slow",
        "GPUs of one host without peer-to-peer then talk over the network; NCCL uses /dev/shm all "
        "the same",
        "NVIDIA/nccl#406, #1466, #606",
    ),
    ("NCCL_COLLNET_ENABLE", 1): (
        "needs-plugin",
        "CollNet needs a network that reduces (SHARP) and its plugin; where some call finds no "
        "algorithm left, it ends with an internal error",
        "NVIDIA/nccl#1709, #653",
    ),
    ("NCCL_GDR_FLUSH_DISABLE", 1): (
        "dangerous",
        "drops the flush after a GPUDirect receive: stale data may be read",
        None,
    ),
    ("NCCL_LEGACY_CUDA_REGISTER", 1): (
        "dangerous",
        "registering memory of cudaMalloc can synchronise and hang",
        None,
    ),
    ("NCCL_LL128_C2C", 1): (
        "dangerous",
        "LL128 over the links of Grace CPUs: wrong sums are reported on GH200",
        "NVIDIA/nccl PR #2053",
    ),
    ("NCCL_COMM_BLOCKING", 0): (
        "dangerous",
        "torch decides itself whether communicators block: this overrules it",
        None,
    ),
    ("NCCL_GRAPH_STREAM_ORDERING", 0): (
        "dangerous",
        "the order of collectives in CUDA graphs becomes the job's own duty: hangs",
        None,
    ),
    ("NCCL_MNNVL_CROSS_CLIQUE", 1): (
        "dangerous",
        "ranks of different NVLink partitions try to reach each other: hangs",
        None,
    ),
    ("NCCL_MNNVL_ENABLE", 1): (
        "dangerous",
        "fails where NVLink across hosts is not there; leave it unset (the default 2 looks first)",
        None,
    ),
    ("NCCL_MULTI_RANK_GPU_ENABLE", 1): (
        "dangerous",
        "an experiment: several ranks of a GPU can exhaust it and hang",
        "NVIDIA/nccl#1716",
    ),
    ("NCCL_CHECK_POINTERS", 1): ("debugging-left-on", "checks pointers at every call", None),
    ("NCCL_IB_DISABLE", 1): (
        "plugin-ignores",
        "switches the built-in network alone off: a plugin may go on with its own; "
        "NCCL_NET=Socket and NCCL_NET_PLUGIN=none hold for all",
        "NVIDIA/nccl#676",
    ),
    ("CUDA_DEVICE_MAX_CONNECTIONS", 1): (
        "slow",
        "puts all kernels of a device into one queue, so that DDP and FSDP may no longer overlap "
        "computing with communication; unset it (8), or try 16 or 32 (tensor and sequence "
        "parallelism of Megatron want it)",
        "pytorch/torchtitan#1147, verl-project/verl-omni#421, pytorch/pytorch#143890",
    ),
}

_NEVER = {
    "NCCL_CHUNK_SIZE": "NVIDIA/nccl#2408, #1496, PR #2410",
    "NCCL_LL_BUFFSIZE": "NVIDIA/nccl#1739",
    "NCCL_LL128_BUFFSIZE": "NVIDIA/nccl#1739",
}
_DUMPS = frozenset({"NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE"})
_RAISED = frozenset({"PHB", "SYS"})


def dangers(setting: Setting, around: Circumstances) -> Iterator[Finding]:
    """What the value does, as far as the value alone tells."""
    name, value = setting.name, setting.value
    if not value:
        return
    number = plain_integer(value)
    if number is not None:
        entry = _NUMBERS.get((name, number))
        if entry is not None:
            yield finding(setting, *entry)
        if name == "NCCL_IB_DISABLE" and number == 1 and _may_have_rdma(around):
            yield _over_sockets(setting)
        yield from _of_release(setting, number, around.version)
    if name in _NEVER and value != "0":
        text = "hangs and wrong sums are reported for values that NCCL takes; never set it"
        yield finding(setting, "dangerous", text, _NEVER[name])
    elif name in ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL") and _is_raised(value):
        yield _raised(setting)
    elif name == "NCCL_HOSTID":
        text = (
            "the same text on two hosts makes NCCL take GPUs of one for GPUs of the other, which "
            "fails: never in a file that hosts share"
        )
        yield finding(setting, "shared-host-id", text, "NVIDIA/nccl#879")
    else:
        yield from _logs(setting, value)


def _may_have_rdma(around: Circumstances) -> bool:
    """Whether nothing is known of the network devices; if they are known, others judge."""
    here = around.machine
    return here is None or not here.gpus or here.rdma is None


def _over_sockets(setting: Setting) -> Finding:
    text = (
        "traffic between hosts goes over TCP sockets, several times slower where there is "
        "InfiniBand or RoCE; keep it only where there is none"
    )
    return finding(setting, "slow", text, "hiyouga/LlamaFactory#6111")


def _is_raised(level: str) -> bool:
    return level in _RAISED or (level[:1].isdigit() and strtoll(level) >= 3)


def _raised(setting: Setting) -> Finding:
    if setting.name == "NCCL_P2P_LEVEL":
        text = (
            "peer-to-peer across the CPU: hangs and wrong data behind ACS or the IOMMU; leave it "
            "unset, or check ACS and the sums first"
        )
        source = "NVIDIA/nccl#2079, tinygrad/open-gpu-kernel-modules#45"
    else:
        text = (
            "GPUDirect across the CPU: decisive on some hosts, slow or unsafe on others; measure "
            "without it, and look for /GDRDMA in NCCL's log"
        )
        source = "NVIDIA/nccl-tests#182, #293"
    return finding(setting, "raised-level", text, source)


def _of_release(setting: Setting, number: int, at: Version) -> Iterator[Finding]:
    """Faults of single releases."""
    name = setting.name
    if name == "NCCL_NTHREADS" and number == 64 and at < Version("2.8"):
        text = "in old releases a receive returned too early with 64 threads; use 128 or more"
        yield finding(setting, "dangerous", text, "NVIDIA/nccl#355")
    disabled = name in ("NCCL_P2P_DISABLE", "NCCL_PXN_DISABLE") and number == 1
    if disabled and Version("2.15") <= at < Version("2.16"):
        text = "many wrong values are reported with NCCL 2.15; take a later release"
        yield finding(setting, "dangerous", text, "NVIDIA/nccl#1199")
    if name == "NCCL_COLLNET_ENABLE" and Version("2.27.3") <= at < Version("2.27.5"):
        text = f"NCCL {at} reads it once for the process: settings of single groups do nothing"
        yield finding(setting, "overruled", text, "NVIDIA/nccl#1741")
    if name == "CUDA_DEVICE_MAX_CONNECTIONS" and not 1 <= number <= 32:
        yield finding(setting, "out-of-range", "CUDA has 1 to 32 queues")


def _logs(setting: Setting, value: str) -> Iterator[Finding]:
    name = setting.name
    if name == "NCCL_DEBUG" and value.upper() == "INFO":
        text = "pages of log from every rank at each start; WARN tells what matters"
        yield finding(setting, "log-left-on", text)
    elif name == "NCCL_DEBUG" and value.upper() == "TRACE":
        text = "a line for every call where NCCL is built for it; WARN tells what matters"
        yield finding(setting, "debugging-left-on", text)
    elif name == "NCCL_CHECK_MODE" and value.startswith("DEBUG"):
        yield finding(setting, "debugging-left-on", "checks arguments at every call")
    elif name == "NCCL_DEBUG_FILE" and "%p" not in value and not value.startswith("/dev/std"):
        text = "ranks of a host write into one file and lose lines; put %h and %p into the name"
        yield finding(setting, "shared-log-file", text)
    elif name in _DUMPS:
        yield finding(setting, "log-left-on", "writes a file at each start")
