"""What cannot act on this machine, or names devices that it does not have."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from packaging.version import Version

from nccltune.nccl import grammar
from nccltune.nccl.catalog import Variable, lookup
from nccltune.nccl.circumstances import Circumstances, MachineFacts
from nccltune.nccl.findings import Finding, Setting, finding, shown

_NVLS_FOR_TWO = Version("2.28")
_INTERFACES = frozenset({"NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME"})
_EXACT_INTERFACES = frozenset({"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"})
_FILES = {
    "NCCL_TOPO_FILE": "NCCL warns, and goes by what it finds itself",
    "NCCL_GRAPH_FILE": "NCCL ends at its start",
}
_NVLINK = frozenset({"nvlink", "nvls", "mnnvl"})
_WITHIN = frozenset({"nvlink", "p2p", "shm"})
_HOPPER = (9, 0)
_ENOUGH_SHM = 1 << 30


def machine_findings(
    setting: Setting, variable: Variable, around: Circumstances
) -> Iterator[Finding]:
    """Nothing where the machine is left out of account, or has no GPU that could tell."""
    here, value = around.machine, setting.value
    if here is None or not here.gpus:
        return
    reason = None if _switches_off(setting) else _dead(variable, here, around.version)
    if reason is not None:
        yield finding(setting, "dead-here", f"{reason}: it does nothing on this machine")
    elif not value:
        return
    elif setting.name == "NCCL_ALGO":
        yield from _algorithms(setting, value, here, around.version)
    elif setting.name == "NCCL_IB_HCA":
        yield from _adapters(setting, value, here.usable_rdma or ())
    elif setting.name in _INTERFACES and here.interfaces is not None:
        yield from _interfaces(setting, value, here.interfaces)
    elif setting.name == "NCCL_IB_DISABLE" and value == "1" and here.usable_rdma:
        text = f"sends over sockets although there is {_few(here.usable_rdma)}; take it out"
        yield finding(setting, "slow", text, "hiyouga/LlamaFactory#6111")
    elif setting.name in _FILES and not os.path.isfile(value):
        yield finding(
            setting, "device-missing", f"there is no such file here: {_FILES[setting.name]}"
        )
    elif setting.name == "NCCL_P2P_DISABLE" and value == "1":
        yield from _shared_memory(setting, here)


def other_interfaces(setting: Setting, around: Circumstances) -> Iterator[Finding]:
    """The same for gloo and TensorPipe, which want whole names."""
    here, value = around.machine, setting.value
    if setting.name not in _EXACT_INTERFACES or not value or here is None:
        return
    if not here.gpus or here.interfaces is None:
        return
    missing = [name for name in value.split(",") if name not in here.interfaces]
    if missing:
        text = f"there is no interface {shown(missing[0])} here ({_few(here.interfaces)})"
        yield finding(setting, "device-missing", text)


def _switches_off(setting: Setting) -> bool:
    """Switching off what is not there does no harm, and scripts do it on purpose."""
    name, value = setting.name, setting.value
    return name.endswith("_DISABLE") or (name.endswith("_ENABLE") and value == "0")


def _dead(variable: Variable, here: MachineFacts, version: Version) -> str | None:
    parts = set(variable.applies_to)
    if parts == {"net-ib"} and here.rdma is not None and not here.usable_rdma:
        return _no_rdma(here.rdma)
    if parts <= _NVLINK and here.nvlinks is not None and not any(here.nvlinks):
        return "there is no NVLink between GPUs"
    if parts <= _WITHIN and here.gpus == 1:
        return "jobs see one GPU, which has no other to talk to within the host"
    capabilities = here.capabilities or ()
    if parts == {"nvls"}:
        return _no_nvls(capabilities, version)
    if "sm90+" in variable.only and max(capabilities) < _HOPPER:
        return "it is for GPUs of compute capability 9.0 and later"
    if "Grace" in variable.only and here.architecture not in (None, "aarch64"):
        return "it is for Grace CPUs"
    if "multi-NIC" in variable.only and here.usable_rdma and len(here.usable_rdma) == 1:
        return "there is one network device"
    return None


def _no_rdma(devices: Sequence[str]) -> str:
    if devices:
        return (
            f"the kernel has {_few(devices)}, but /dev/infiniband is not here (a container started "
            "without it?), so NCCL uses sockets"
        )
    return "there is no InfiniBand or RoCE device, so NCCL uses sockets"


def _no_nvls(capabilities: Sequence[tuple[int, int]], version: Version) -> str | None:
    if min(capabilities) < _HOPPER:
        return "NVLS is for GPUs of compute capability 9.0 and later"
    least = 2 if version >= _NVLS_FOR_TWO else 3
    if len(capabilities) < least:
        return f"NCCL {version} uses NVLS from {least} GPUs on"
    return None


def _algorithms(
    setting: Setting, value: str, here: MachineFacts, version: Version
) -> Iterator[Finding]:
    """All-reduce by NVLS alone, where there is none."""
    if grammar.grammar_error("NCCL_ALGO", value, version) is not None:
        return
    left = grammar.enabled("NCCL_ALGO", value, version)["AllReduce"]
    left &= grammar.ALGORITHMS_OF["AllReduce"]
    nvls = lookup("NCCL_NVLS_ENABLE")
    reason = None if nvls is None else _dead(nvls, here, version)
    if reason is not None and left and left <= {"NVLS", "NVLSTree"}:
        text = f"{reason}: no algorithm is left for AllReduce on this machine"
        yield finding(setting, "no-algorithm", text)


def _adapters(setting: Setting, value: str, devices: Sequence[str]) -> Iterator[Finding]:
    """NCCL_IB_HCA: prefixes with ports, = for whole names, ^ for all others."""
    if not devices:
        return
    others, entries = value.startswith("^"), value.removeprefix("^")
    exact = entries.startswith("=")
    wanted = [entry.partition(":")[0] for entry in entries.removeprefix("=").split(",") if entry]
    named = [d for d in devices if any(_matches(d, name, exact) for name in wanted)]
    taken = [d for d in devices if d not in named] if others else named
    if not taken:
        what = "no device here is left" if others else "no device here is called so"
        text = f"{what} ({_few(devices)}): NCCL finds none and uses sockets without a warning"
        yield finding(setting, "device-missing", text, "hiyouga/LlamaFactory#6111")
        return
    more = [d for d in taken if d not in wanted and any(_goes_on(d, name) for name in wanted)]
    if not exact and not others and more:
        text = f"takes in {_few(more)} too, for it is a prefix; write ={shown(value)}"
        yield finding(setting, "matches-more", text)
    elif len(taken) < len(devices):
        left = [device for device in devices if device not in taken]
        text = f"leaves out {_few(left)}, and their bandwidth unless they are no data network"
        yield finding(setting, "leaves-out-devices", text, "NVIDIA/nccl-tests#182, #293")


def _matches(device: str, name: str, exact: bool) -> bool:
    return device == name if exact else device.startswith(name)


def _goes_on(device: str, name: str) -> bool:
    """Whether the device's name is this one and more digits: mlx5_1, mlx5_10."""
    rest = device.removeprefix(name)
    return name[-1:].isdigit() and rest != device and rest.isdigit()


def _interfaces(setting: Setting, value: str, interfaces: Sequence[str]) -> Iterator[Finding]:
    if value.startswith("^") or len(value) == 1:  # which NCCL ignores
        return
    exact = value.startswith("=")
    wanted = [name for name in value.removeprefix("=").split(",") if name]
    if not any(_matches(there, name, exact) for there in interfaces for name in wanted):
        text = (
            f"no interface here is called so ({_few(interfaces)}): NCCL ends at its start with "
            "invalid usage"
        )
        yield finding(setting, "device-missing", text)


def _shared_memory(setting: Setting, here: MachineFacts) -> Iterator[Finding]:
    if here.shm_bytes is not None and here.shm_bytes < _ENOUGH_SHM:
        text = (
            f"GPUs then talk through /dev/shm, which has {here.shm_bytes >> 20} MiB here; a "
            "container needs --shm-size=1g or more"
        )
        yield finding(setting, "small-shm", text, "NVIDIA/nccl#1466, #606")


def _few(names: Sequence[str], most: int = 6) -> str:
    listed = ", ".join(shown(name, 20) for name in names[:most])
    return f"{listed} and {len(names) - most} more" if len(names) > most else listed
