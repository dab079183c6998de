"""A script that starts ranks of its own cannot be started by torchrun: it says so at once."""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist
import torch.multiprocessing

from nccltune.worker.attach.process import ours


class SpawnsRanks(Exception):
    """Raised in the script where it would start them."""


def refuse_spawned_ranks() -> None:
    """From now on `torch.multiprocessing.spawn` raises SpawnsRanks before there is a process group,
    as in a script that makes one in each process that it spawns.
    """
    mp: Any = torch.multiprocessing
    original = mp.spawn

    @functools.wraps(original)
    def spawn(fn: Any, *args: Any, **kwargs: Any) -> Any:
        if ours() and not dist.is_initialized():
            raise SpawnsRanks(
                "the script starts its own ranks with torch.multiprocessing.spawn, and nccltune "
                "starts them with torchrun: take the rank from the environment (RANK, LOCAL_RANK, "
                "WORLD_SIZE) and call the training function without spawn"
            )
        return original(fn, *args, **kwargs)

    mp.spawn = spawn
