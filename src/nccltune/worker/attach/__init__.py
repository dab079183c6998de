"""The attachment: what is loaded in each process of the user's own script before it.

torchrun starts every rank with the program that PYTHON_EXEC names in place of its own Python. Ours
runs `main.py`, which prepares the process and then runs the script as that Python would.
"""

from __future__ import annotations

PYTHON_EXEC = "PYTHON_EXEC"
"""torchrun's own variable: what it starts Python scripts with (torch/distributed/run.py)."""

TRIAL = "NCCLTUNE_TRIAL"
"""Is 1 in a trial, also for scripts that want to know."""

SAVES = "NCCLTUNE_SAVES"
"""In a trial: where checkpoints go; absent where the script saves as ever."""

FORCED = "forced"
"""File in a trial's folder: a rank did not end when it was told to."""

APPLY = "NCCLTUNE_APPLY"
"""JSON with `ddp`, `loader`, `training`, `match` and `watch`, set by `nccltune run`."""

USERS_PYTHON_EXEC = "NCCLTUNE_PYTHON_EXEC"
"""What PYTHON_EXEC was before `nccltune run`, where it was set."""
