"""Which process is the rank: what forks from it must not act as one."""

from __future__ import annotations

import os
from collections.abc import Mapping

_rank = os.getpid()
# Which of all ranks this is: by torchrun, srun, or mpirun.
_NUMBERS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def ours() -> bool:
    """Whether this is the process that the attachment was loaded in, and no child of it."""
    return _rank == os.getpid()


def is_first(environ: Mapping[str, str]) -> bool:
    """Whether this is rank 0 of all; so is a process that is the only one."""
    return next((environ[name] for name in _NUMBERS if name in environ), "0") == "0"
