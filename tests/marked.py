"""Processes that a test has started, by a mark in their environment."""

from __future__ import annotations

import contextlib

import psutil


def processes_with(mark: str) -> list[int]:
    """Those with MY_MARK as given."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("MY_MARK") == mark:
                found.append(process.pid)
    return found
