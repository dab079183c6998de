"""Ranks of a script talk among themselves over a store of their own: the script's process groups
are left to the script.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed

_torch: Any = torch.distributed  # its stub hides the store
_FILE = "store.port"
_TIMEOUT = timedelta(days=7)  # a hang is ended from outside
_START_SECONDS = 600.0  # for rank 0 to import torch


class StoreRanks:
    """What `worker.ranks.Ranks` does, without a collective. Every rank makes the same calls in the
    same order.
    """

    def __init__(self, folder: Path) -> None:
        """Rank 0 serves the store and leaves its port in `folder`, which all ranks see."""
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self._store = _serve(folder) if self.rank == 0 else _find(folder)
        self._turn = 0
        self.patience: float | None = None
        """Seconds after which a rank that is not there is an error; None: a hang is ended from
        outside.
        """

    def gather(self, values: list[float]) -> list[list[float]]:
        """Every rank's `values` (same length everywhere), by rank. Also a barrier."""
        return [list(map(float, row)) for row in self.gather_json(values)]

    def gather_int64(self, values: torch.Tensor) -> torch.Tensor:
        """Every rank's int64 vector as one tensor of shape (world_size, len(values))."""
        return torch.tensor(self.gather_json(values.tolist()), dtype=torch.int64)

    def gather_json(self, value: Any) -> list[Any]:
        """Every rank's value, by rank."""
        self._turn += 1
        self._store.set(f"{self._turn}/{self.rank}", json.dumps(value))
        found = [json.loads(self._get(rank)) for rank in range(self.world_size)]
        if self._turn > 1:  # all have read that, or they would not have come to this turn
            self._store.delete_key(f"{self._turn - 1}/{self.rank}")
        return found

    def _get(self, rank: int) -> bytes:
        """What that rank has to say this turn."""
        key = f"{self._turn}/{rank}"
        if self.patience is not None:
            try:
                self._store.wait([key], timedelta(seconds=self.patience))
            except RuntimeError:  # what all errors of a store are
                raise RuntimeError(
                    f"rank {rank} has taken no optimizer step, {self.patience:.0f} s after rank "
                    f"{self.rank} has: each rank has to take its steps, with an optimizer or by "
                    "calling nccltune.step()"
                ) from None
        found: bytes = self._store.get(key)
        return found

    def share(self, message: Mapping[str, Any] | None) -> dict[str, Any]:
        """Rank 0's message on every rank."""
        found: dict[str, Any] = self.gather_json(message)[0]
        return found


def _serve(folder: Path) -> Any:
    store = _connect(0, is_master=True)
    temporary = folder / f"{_FILE}.tmp"
    temporary.write_text(str(store.port))
    temporary.rename(folder / _FILE)
    return store


def _find(folder: Path) -> Any:
    deadline = time.monotonic() + _START_SECONDS
    while not (folder / _FILE).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 did not begin within {_START_SECONDS:.0f} s")
        time.sleep(0.01)
    port = int((folder / _FILE).read_text())
    return _connect(port, is_master=False)


def _connect(port: int, *, is_master: bool) -> Any:
    return _torch.TCPStore(
        "127.0.0.1",
        port,
        is_master=is_master,
        wait_for_workers=False,
        timeout=_TIMEOUT,
        use_libuv=os.environ.get("USE_LIBUV", "1") == "1",  # as torch reads it
    )
