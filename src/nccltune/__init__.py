"""nccltune finds the NCCL, DDP and DataLoader settings that make a job fastest on this machine.

Importing this package is cheap on purpose: neither torch nor Optuna is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nccltune.worker.stepping import step

if TYPE_CHECKING:
    import os

    from nccltune.output.best import Best

__version__ = "0.1.0"
__all__ = ["__version__", "apply", "load", "step"]


def load(path: str | os.PathLike[str]) -> Best:
    """Read a best.yaml written by `nccltune search`; of a study's folder, its best.yaml.

    The result has `.env`, `.ddp_kwargs`, `.loader_kwargs` and `.batch_size` (a rank's).

    Raises:
        nccltune.errors.UsageError: the file is missing, not YAML, or not a best.yaml.
    """
    from nccltune.output.best import read_best

    return read_best(path)


def apply(path: str | os.PathLike[str] | None = None) -> Best:
    """Set the variables of a best.yaml in this process; call it before the process group is made.

    `path` is by default what NCCLTUNE_BEST names. Variables that are set already keep their values,
    and nothing is set that would wake NVLink multicast where the site has it off; a warning says
    so. In a trial of `nccltune search` nothing is set. What NCCL has read in this process earlier,
    for a process group that is gone again, cannot be told from here and stays.

    Returns: what `load` gives, for `.ddp_kwargs` and `.loader_kwargs`.

    Raises:
        nccltune.errors.UsageError: as `load`; no file is named; or there is something to set and
            torch.distributed is initialised already, so that it would come too late.
    """
    from nccltune.applying import apply_best

    return apply_best(path)
