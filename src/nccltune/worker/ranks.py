"""The ranks of this worker group and how they talk among themselves: a gloo group for control."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from nccltune.worker.agreement import check, view_here

# An idle group waits for its next request as long as the tuner lives; a hang is ended from outside.
_CONTROL_TIMEOUT = timedelta(days=7)


def new_group(backend: str, options: Any = None) -> dist.ProcessGroup:
    """A process group of all ranks beside the default one. Made without a device_id, or it would
    be split from an older communicator and inherit that one's configuration.
    """
    group = dist.new_group(backend=backend, pg_options=options)
    assert isinstance(group, dist.ProcessGroup)  # every rank is a member
    return group


class Ranks:
    """The default process group. Always gloo, so that control never disturbs what is timed."""

    def __init__(self) -> None:
        dist.init_process_group("gloo", timeout=_CONTROL_TIMEOUT)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.nodes: tuple[int, ...] = (0,) * self.world_size
        """On which node each rank is."""

    @property
    def spread(self) -> bool:
        """Whether they are on several nodes."""
        return len(set(self.nodes)) > 1

    def agree(self) -> None:
        """Also a barrier: every rank is up. Raises Disagreement where ranks have other settings."""
        views = self.gather_json(view_here())
        check(views)
        self.nodes = tuple(int(view["node"]) for view in views)

    def gather(self, values: list[float]) -> list[list[float]]:
        """Every rank's `values` (same length everywhere), by rank. Also a barrier."""
        mine = torch.tensor(values, dtype=torch.float64)
        everyone = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(everyone, mine)
        return [row.tolist() for row in everyone]

    def gather_int64(self, values: torch.Tensor) -> torch.Tensor:
        """Every rank's int64 vector as one tensor of shape (world_size, len(values))."""
        everyone = [torch.empty_like(values) for _ in range(self.world_size)]
        dist.all_gather(everyone, values)
        return torch.stack(everyone)

    def gather_json(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, as JSON bytes."""
        mine = torch.tensor(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = [int(row[0]) for row in self.gather([float(len(mine))])]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(mine)] = mine
        everyone = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(everyone, padded)
        rows = zip(everyone, lengths, strict=True)
        return [json.loads(bytes(row[:length].tolist())) for row, length in rows]

    def share(self, message: dict[str, Any] | None) -> dict[str, Any]:
        """Rank 0's message on every rank, as JSON bytes (no pickles)."""
        payload = b"" if message is None else json.dumps(message).encode()
        length = torch.tensor([len(payload)])
        dist.broadcast(length, src=0)
        data = torch.zeros(int(length), dtype=torch.uint8)
        if payload:
            data.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
        dist.broadcast(data, src=0)
        shared: dict[str, Any] = json.loads(bytes(data.tolist()))
        return shared
