"""What NCCL's log files of a launch say, for one measurement of several in the same ranks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nccltune.launch.environment import DIAGNOSTIC
from nccltune.nccl.log import merge, parse


class NcclLogs:
    """Remembers where the logs end when it is made, so that what comes later can be told apart."""

    def __init__(self, folder: Path, *, whole: bool = False) -> None:
        """`whole`: everything in the logs counts, since the ranks have measured nothing else."""
        self._folder = folder
        self._ends = {} if whole else {file: file.stat().st_size for file in self._files()}

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("nccl.*.log"))

    def facts(self, names: Collection[str] | None = None) -> dict[str, Any] | None:
        """In plain values; None without logs (gloo).

        NCCL names most variables once in a process, so those in `names` are looked for in the
        whole log; the communicator's own facts come from what was written since.
        """
        texts = {file: file.read_bytes() for file in self._files()}
        if not texts:
            return None
        whole = merge(parse(text.decode(errors="replace")) for text in texts.values())
        since = merge(
            parse(text[self._ends.get(file, 0) :].decode(errors="replace"))
            for file, text in texts.items()
        )
        found: dict[str, Any] = {
            "version": None if whole.version is None else str(whole.version),
            "environment": {
                name: value
                for name, value in whole.environment.items()
                if name not in DIAGNOSTIC and (names is None or name in names)
            },
            "config": dict(since.config),
            "transport": list(since.transport or whole.transport),
            "network": since.network or whole.network,
            "channels": since.coll_channels or whole.coll_channels,
            "nvls": whole.nvls,
            "nodes": whole.nodes,
            "warnings": list(since.warnings[:5]),
        }
        if whole.plugins:
            found["plugins"] = dict(whole.plugins)
        if since.choices:  # only where NCCL was asked to log them
            found["choices"] = [asdict(choice) for choice in since.choices]
        return found
