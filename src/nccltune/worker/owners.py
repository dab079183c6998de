"""Processes and folders that say whose they are: what a tuner that died has left is found by it."""

from __future__ import annotations

import os
from pathlib import Path

TAG = "NCCLTUNE_TAG"
"""In the environment of every process that a tuner starts: which tuner it is."""

OWNER = "owner"
"""The same, as a file in a folder that is to be gone at the end."""


TUNER = "address"
"""Where that tuner listens and in which network, in such a folder on a node that knows nothing else
of it.
"""


def mark_as_ours(folder: Path) -> None:
    """Note the tuner of this process in a folder; nothing where no tuner started it."""
    if tag := os.environ.get(TAG):
        (folder / OWNER).write_text(tag)
