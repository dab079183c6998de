"""Who reads a variable whose name looks like NCCL's: torch, plugins, tests, build systems."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from types import MappingProxyType

from nccltune.nccl.catalog import FOREIGN, lookup, names
from nccltune.nccl.site import SITE_PREFIXES

TORCH_SWITCHES = frozenset(
    {
        "TORCH_NCCL_AVOID_RECORD_STREAMS",
        "TORCH_NCCL_BCAST_UNIQUEID",
        "TORCH_NCCL_BLOCKING_WAIT",
        "TORCH_NCCL_CUDA_EVENT_CACHE",
        "TORCH_NCCL_DESYNC_DEBUG",
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "TORCH_NCCL_ENABLE_MONITORING",
        "TORCH_NCCL_ENABLE_TIMING",
        "TORCH_NCCL_EXTRA_DUMP_ON_EXEC",
        "TORCH_NCCL_HIGH_PRIORITY",
        "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN",
        "TORCH_NCCL_NAN_CHECK",
        "TORCH_NCCL_PROPAGATE_ERROR",
        "TORCH_NCCL_RETHROW_CUDA_ERRORS",
        "TORCH_NCCL_TRACE_CPP_STACK",
        "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
    }
)
"""Read as a truth value: torch fails on a word that it does not know."""

TORCH_NUMBERS = frozenset(
    {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "TORCH_NCCL_COORD_CHECK_MILSEC",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
        "TORCH_NCCL_NONBLOCKING_TIMEOUT",
        "TORCH_NCCL_RANKS_PER_ROOT",
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC",
    }
)
"""Read as a whole number."""

TORCH_NAMES = (
    TORCH_SWITCHES
    | TORCH_NUMBERS
    | {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING",
        "TORCH_NCCL_USE_COMM_NONBLOCKING",
    }
)
"""What ProcessGroupNCCL of torch 2.6 to 2.14 reads under TORCH_NCCL_."""

_JOB = frozenset(
    {
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_LAUNCH_BLOCKING",
        "TORCH_DISTRIBUTED_DEBUG",
        "TP_SOCKET_IFNAME",
    }
)
_AMD = ("RCCL_", "HSA_", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")

_SCRIPTS = ("scripts and build systems", "nccl-tests")
_OTHERS: Mapping[str, str] = MappingProxyType(
    {
        "NCCL_CFG_PATH": "training frameworks",
        "NCCL_DYNAMIC_CHUNK_SIZE": "a network plugin of Google's",
        "NCCL_MIN_ZCOPY_SIZE": "a network plugin of Google's",
        "NCCL_IBEXT_DISABLE": "NVIDIA's nccl-rdma-sharp-plugins",
        "NCCL_PLUGIN_P2P": "NVIDIA's nccl-rdma-sharp-plugins",
        "NCCL_TUNER_CONFIG_PATH": "a tuner plugin",
        **{
            f"NCCL_{part}": _SCRIPTS[0]
            for part in (
                *("DIR", "HOME", "INCLUDE_DIR", "INCLUDE_DIRS", "LIB", "LIBRARY", "LIB_DIR"),
                *("LIBRARIES", "PATH", "ROOT", "ROOT_DIR", "VER"),
            )
        },
    }
)
_OTHER_PREFIXES: Mapping[str, str] = MappingProxyType(
    {
        "NCCL_FASTRAK_": "a network plugin of Google's",
        "NCCL_GPUDIRECTTCPX_": "a network plugin of Google's",
        "NCCL_SHIMNET_": "a network plugin of Google's",
        "NCCL_SHARP_": "NVIDIA's nccl-rdma-sharp-plugins",
        "NCCL_UCX_": "NVIDIA's nccl-rdma-sharp-plugins",
        "NCCL_TESTS_": _SCRIPTS[1],
    }
)
# Slips of the four letters that are no other library's.
_NEARLY = re.compile(r"(?!NCCL_)(?:N[NCL]{2,4}|[Nn][Cc][Cc][Ll])_", re.A)


def reader_of(name: str) -> str | None:
    """Who reads a variable that begins with NCCL_ but is not NCCL's; None if nobody is known."""
    known = FOREIGN.get(name) or _OTHERS.get(name)
    if known is not None:
        return known
    return next((who for part, who in _OTHER_PREFIXES.items() if name.startswith(part)), None)


def of_scripts(name: str) -> bool:
    """Whether scripts use the name for themselves, and so need not export it."""
    return name == "NCCL_VERSION" or reader_of(name) in _SCRIPTS


def is_known(name: str) -> bool:
    """Whether somebody is known to read it, in some release."""
    if name.startswith("NCCL_"):
        return lookup(name) is not None or reader_of(name) is not None
    if name.startswith("TORCH_NCCL_"):
        return name in TORCH_NAMES
    return concerns(name) and not nearly_nccl(name)


def nearly_nccl(name: str) -> bool:
    """Whether the name begins with a slip for NCCL_: NNCL_, NCLL_, nccl_, or NCCL without _."""
    return _NEARLY.match(name) is not None or without_underscore(name) is not None


def without_underscore(name: str) -> str | None:
    """The variable of NCCL that a name such as NCCLDEBUG stands for, None if for none."""
    if not name.startswith("NCCL") or name[4:5] in ("", "_"):
        return None
    return _glued().get(name.replace("_", ""))


@functools.cache
def _glued() -> Mapping[str, str]:
    return {name.replace("_", ""): name for name in names()}


def is_amds(name: str) -> bool:
    """Whether only ROCm or RCCL reads it."""
    return name.startswith(_AMD)


def concerns(name: str) -> bool:
    """Whether lint may have something to say of a variable of this name."""
    return name.startswith(SITE_PREFIXES) or name in _JOB or is_amds(name) or nearly_nccl(name)
