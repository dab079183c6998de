"""nccltune finds the NCCL, DDP and DataLoader settings that make a job fastest on this machine.

Importing this package is cheap on purpose: neither torch nor Optuna is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from nccltune.output.best import Best

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(path: str | os.PathLike[str]) -> Best:
    """Read a best.yaml written by `nccltune search`.

    The result has `.env`, `.ddp_kwargs`, `.loader_kwargs` and `.batch_size` (a rank's).

    Raises:
        nccltune.errors.UsageError: the file is missing, not YAML, or not a best.yaml.
    """
    from nccltune.output.best import read_best

    return read_best(path)
