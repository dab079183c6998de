"""Which variables a file of settings may hold. A file from elsewhere is data: it chooses how NCCL
talks, and makes no job load a library, run a program or write a file.
"""

from __future__ import annotations

import re

PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "FI_", "OFI_NCCL_", "OMP_")

OTHERS = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_MAX_COPY_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_SCALE_LAUNCH_QUEUES",
    "NVSHMEM_DISABLE_NVLS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
)
"""Names that are accepted beside those that begin with one of PREFIXES."""

VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# What else is read or loaded, or where ranks meet: the launch's and the site's to say.
_NEVER = {
    "FI_PROVIDER_PATH": "names a folder whose libraries are loaded",
    "NCCL_COMM_ID": "says where ranks meet",
    "NCCL_CONF_FILE": "names another file of settings",
    "NCCL_CUDA_PATH": "names a folder whose libraries are loaded",
    "NCCL_ENV_PLUGIN": "names a library that sets other variables",
    "NCCL_GRAPH_DUMP_FILE": "names a file to be written",
    "NCCL_PROXY_PROFILE": "names a file to be written",
    "NCCL_TOPO_DUMP_FILE": "names a file to be written",
    "OMP_TOOL_LIBRARIES": "names libraries to be loaded",
    "OMP_TOOL_VERBOSE_INIT": "names a file to be written",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "names a file to be written",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "names a file to be written",
}

# By a plain name the loader finds what is installed; a path would be any file.
_LIBRARIES = frozenset(
    {
        "NCCL_GIN_PLUGIN",
        "NCCL_IBVERBS_LIB",
        "NCCL_NET_PLUGIN",
        "NCCL_PROFILER_PLUGIN",
        "NCCL_RMA_PLUGIN",
        "NCCL_TUNER_PLUGIN",
    }
)
_LIBRARY = re.compile(r"[A-Za-z0-9_+.-]+(,[A-Za-z0-9_+.-]+)*", re.A)

# NCCL reads these files and does nothing else with them; the last holds networks: 10.0.0.0/8.
_MAY_HAVE_SLASHES = frozenset({"NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_IB_ADDR_RANGE"})


def name_problem(name: str) -> str | None:
    """Why no file of settings may set a variable of this name, or None."""
    if not VARIABLE_NAME.fullmatch(name):
        return "is no name of a variable"
    if not name.startswith(PREFIXES) and name not in OTHERS:
        listed = ", ".join((*(f"{prefix}*" for prefix in PREFIXES), *OTHERS))
        return f"is none of the variables that settings may hold ({listed})"
    return _NEVER.get(name)


def value_problem(name: str, value: str) -> str | None:
    """Why a file of settings may not give a variable that it may set this value, or None."""
    if not value.isprintable():
        return "has a line break or another control character in its value"
    if name in _LIBRARIES:
        if value and not _LIBRARY.fullmatch(value):
            return "would load a library by its path; only a plain name, such as none, may be here"
    elif "/" in value and name not in _MAY_HAVE_SLASHES:
        return "has a path for its value, which may be loaded or written to"
    return None
