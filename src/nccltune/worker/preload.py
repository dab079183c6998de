"""What every rank will import, imported once in the process that ranks are forked from.

Never CUDA: a context does not survive a fork. A package that is missing or broken is passed over;
the rank that needs it says so.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os

_MODULES = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.utils.data",
    "torchvision",
    "torchvision.models",
    "torchvision.transforms",
    "torchvision.datasets",
    "nccltune.worker.rank",
    "nccltune.worker.measure",
    "nccltune.worker.probe",
    "nccltune.worker.ask",
    "nccltune.worker.images",
)

_environment = dict(os.environ)
for _name in _MODULES:
    with contextlib.suppress(Exception):
        importlib.import_module(_name)
for _name in set(os.environ) - set(_environment):
    del os.environ[_name]  # torch notes where its compiler's cache is: in our own temporary folder
gc.collect()
gc.freeze()  # what is here stays shared: the collector of a fork need not touch it
