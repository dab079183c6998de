"""A few collectives under NCCL's log, which then says what this machine's ranks talk over."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from nccltune.worker.job import own_device
from nccltune.worker.ranks import Ranks, new_group
from nccltune.worker.status import Status

_ELEMENTS = (1 << 10, 1 << 18, 25 * (1 << 18))
"""fp32 elements: 4 KiB, 1 MiB (DDP's first bucket) and 25 MiB (its default bucket)."""


def probe(message: dict[str, Any], ranks: Ranks, status: Status) -> dict[str, Any]:
    """All-reduce, broadcast and all-gather on a fresh group of `message["backend"]`."""
    status.at("probe")
    device = own_device(message["device"], ranks)
    group = new_group(message["backend"])
    for elements in _ELEMENTS:
        data = torch.ones(elements, device=device)
        dist.all_reduce(data, group=group)
        dist.broadcast(data, src=0, group=group)
    gathered = [torch.empty(8, device=device) for _ in range(ranks.world_size)]
    dist.all_gather(gathered, torch.ones(8, device=device), group=group)
    if device.type == "cuda":
        torch.cuda.synchronize()
    dist.destroy_process_group(group)
    return {"ranks": ranks.world_size}
