"""Which NCCL and which torch a job's Python would load, found without importing torch.

`python libraries.py ANSWER.json`. A library on LD_LIBRARY_PATH comes before the one that was
installed with torch, and that before the system's, as for the dynamic linker.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

_LIBRARY = "libnccl.so.2"


def libraries() -> dict[str, str | None]:
    """`nccl` and `torch` are versions or None, `nccl_from` says where NCCL was found."""
    found: dict[str, str | None] = {"nccl": None, "nccl_from": None, "torch": _installed("torch")}
    for version, place in _candidates():
        if version is not None:
            return {**found, "nccl": version, "nccl_from": place}
    return found


def _candidates() -> Iterator[tuple[str | None, str]]:
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        path = os.path.join(folder, _LIBRARY)
        if folder and os.path.exists(path):
            yield _asked(path), path
    for release in ("13", "12", "11"):
        name = f"nvidia-nccl-cu{release}"
        yield _installed(name), name
    yield _asked(_LIBRARY), _LIBRARY


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _asked(library: str) -> str | None:
    """The version code of a library; None if it cannot be loaded."""
    code = ctypes.c_int(0)
    try:
        failed = ctypes.CDLL(library).ncclGetVersion(ctypes.byref(code))
    except (OSError, AttributeError):
        return None
    return None if failed or code.value <= 0 else str(code.value)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(libraries()))
