"""Which process is the rank: what forks from it must not act as one."""

from __future__ import annotations

import os

_rank = os.getpid()


def ours() -> bool:
    """Whether this is the process that the attachment was loaded in, and no child of it."""
    return _rank == os.getpid()
