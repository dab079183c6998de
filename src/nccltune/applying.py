"""`nccltune.apply`: a result's variables for this process, before NCCL reads them."""

from __future__ import annotations

import os
import sys
import warnings

from nccltune.errors import UsageError
from nccltune.nccl.to_set import variables_to_set
from nccltune.output.best import Best, read_best, read_variables, result_file
from nccltune.output.writers import others_can_write
from nccltune.worker.attach import TRIAL

BEST = "NCCLTUNE_BEST"
"""Names the file where the script does not."""

_STACK = 4  # from _tell up to the line of the script that called nccltune.apply


def apply_best(path: str | os.PathLike[str] | None) -> Best:
    """See `nccltune.apply`."""
    file = path if path is not None else os.environ.get(BEST)
    if not file:
        raise UsageError(f"nccltune.apply: name a best.yaml, or set {BEST} to its path")
    file = result_file(file)
    best = read_best(file)
    found = variables_to_set(read_variables(file, best), os.environ)
    if os.environ.get(TRIAL):
        _tell("in a trial the trial's own settings hold, so nothing of the file is set")
        return best
    if warning := others_can_write(file):
        _tell(warning)
    for line in found.kept:
        _tell(line)
    if found.values and _process_group_exists():
        listed = ", ".join(found.values)
        raise UsageError(
            f"nccltune.apply: too late to set {listed}: this process has a process group already; "
            "call it before torch.distributed.init_process_group (or what calls that), or start "
            "the job with `nccltune run`"
        )
    os.environ.update(found.values)
    return best


def _process_group_exists() -> bool:
    distributed = sys.modules.get("torch.distributed")  # never imported for the question
    if distributed is None or not distributed.is_available():
        return False
    return bool(distributed.is_initialized())


def _tell(text: str) -> None:
    """Once, by the first rank of a host: the others have the same to say."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        warnings.warn(f"nccltune.apply: {text}", stacklevel=_STACK)
