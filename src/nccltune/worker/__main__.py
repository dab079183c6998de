"""A rank of a worker group: `torchrun ... -m nccltune.worker`."""

from __future__ import annotations

from nccltune.worker.rank import leave, run

if __name__ == "__main__":
    run()
    leave(0)
