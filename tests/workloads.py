"""A small job on the CPU, and what it takes to measure it in real ranks."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nccltune.launch.plan import LaunchSettings
from nccltune.launch.stopping import StopFlag
from nccltune.launch.torchrun import TorchrunLauncher
from nccltune.launch.warm import WarmLauncher
from nccltune.launch.worker_files import place_worker
from nccltune.nccl.site import SiteVariable
from nccltune.worker.spec import Request, Settings, Workload
from running import JOBS, MARK, marked

WORKLOAD = Workload(
    model="smalljobs:tiny",
    data="synthetic",
    folder=None,
    image_size=16,
    precision="fp32",
    channels_last=False,
    cudnn_benchmark=True,
    device="cpu",
    backend="gloo",
    seed=0,
)

_MARK = uuid.uuid4().hex

LAUNCHERS = {"torchrun": TorchrunLauncher, "warm": WarmLauncher}


def launcher(
    kind: str,
    folder: Path,
    ranks: int = 2,
    site: Mapping[str, SiteVariable] | None = None,
    **env: str,
) -> TorchrunLauncher | WarmLauncher:
    """A launcher as a search makes it; `env` is in the tuner's environment at its start."""
    settings = LaunchSettings(
        python=sys.executable,
        nproc_per_node=ranks,
        backend="gloo",
        worker_path=place_worker(folder / "worker"),
        base={**os.environ, "PYTHONPATH": str(JOBS), MARK: _MARK, **env},
        site=site or {},
    )
    return LAUNCHERS[kind](settings, StopFlag())


def request(
    workload: Workload = WORKLOAD, settings: Settings | None = None, **changes: Any
) -> dict[str, Any]:
    """What a worker group is asked: defaults but for the changes, four samples a rank."""
    plain = Request("m", workload, settings or Settings(), ddp={}, loader={}, batch_size=4)
    return {"type": "measure", **asdict(replace(plain, **changes))}


def left() -> list[int]:
    """Living processes of the launchers made here."""
    return marked(_MARK)


def quiet(_message: Any) -> None:
    return
