"""Small jobs for the tests, used as `--model smalljobs:...` and `--data smalljobs:...`.

The faulty one fails in some launches only, on rank 1: see `due_fault`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset


def tiny() -> nn.Module:
    """Some thousand parameters, for images of any size, ten classes."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(8 * 16, 10),
    )


def held() -> nn.Module:
    """The same, once the file exists that a test names: it has something to happen before."""
    while not os.path.exists(os.environ["HELD_UNTIL"]):
        time.sleep(0.02)
    return tiny()


class Tokens(nn.Module):
    """A token model with batches of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.head = nn.Linear(16, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens))

    def make_batch(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(0, 50, (batch_size, 12))
        return tokens, tokens.roll(-1, dims=1)


def due_fault() -> str | None:
    """This launch's on rank 1, as FAULT and FAULT_LAUNCH or FAULTS (1:hang,2:die) say."""
    launch = os.path.basename(os.environ["NCCLTUNE_LOG_DIR"]).removeprefix("launch-")
    if os.environ["RANK"] != "1" or not launch.isdigit():
        return None
    listed = os.environ.get("FAULTS", "").split(",")
    faults = dict(entry.split(":") for entry in listed if entry)
    if "FAULT_LAUNCH" in os.environ:
        faults[os.environ["FAULT_LAUNCH"]] = os.environ["FAULT"]
    return faults.get(str(int(launch)))


class Faulty(nn.Module):
    """Works until its fifth forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = tiny(), 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 5 and (fault := due_fault()):
            globals()[f"_{fault}"]()
        return self.inner(images)


def _hang() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # a child in a session of its own, as a stuck loader worker would be
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    time.sleep(600)


def _leave() -> None:
    os._exit(3)


def _abandon() -> None:
    """Leaves a child in a session of its own, deaf to polite signals, as a loader worker can."""
    child = os.fork()
    if child == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(600)
        os._exit(0)
    with open(os.environ["NCCLTUNE_LOG_DIR"] + "/abandoned.pid", "w") as file:
        file.write(str(child))
    os._exit(4)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _oom() -> None:
    torch.empty(1 << 60)


def _diverge() -> None:
    """Changes weights on this rank alone, as a lost gradient would."""
    frame = sys._getframe(1)
    with torch.no_grad():
        next(frame.f_locals["self"].parameters()).add_(1.0)


def faulty() -> nn.Module:
    return Faulty()


class _Sleeping(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.layer = nn.Linear(3, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        found: torch.Tensor = self.layer(images.mean((2, 3)))
        return found


def miscounting() -> nn.Module:
    """With GLOO_FAST=1 steps are quick, and a sum of many numbers has one wrong, on all ranks."""
    if os.environ.get("GLOO_FAST") != "1":
        return _Sleeping(0.02)
    right = torch.distributed.all_reduce

    def wrong(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        work = right(tensor, *args, **options)
        if work is not None:
            work.wait()
        if tensor.numel() > 1000:
            tensor[-1] += 1
        return work

    torch.distributed.all_reduce = wrong
    return _Sleeping(0.002)


def telling() -> nn.Module:
    """Leaves in its log folder what a rank's process looks like from inside."""
    rank, folder = os.environ["RANK"], os.environ["NCCLTUNE_LOG_DIR"]
    with open("/proc/self/environ") as file:
        started_with = [entry.partition("=")[0] for entry in file.read().split("\0")]
    seen = {
        "environment": dict(os.environ),
        "started_with": started_with,
        "leads_session": os.getsid(0) == os.getpid(),
        "temporary": tempfile.gettempdir(),
        "threads": torch.get_num_threads(),
        "start_method": multiprocessing.get_start_method(),
    }
    with open(f"{folder}/seen.{rank}.json", "w") as file:
        json.dump(seen, file)
    return tiny()


class Sleepy(nn.Module):
    """Every forward pass takes STEP_MS milliseconds more."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        time.sleep(float(os.environ.get("STEP_MS", "0")) / 1000)
        return self.inner(images)


class Talkative(nn.Module):
    """Every all-reduce of gradients takes COMM_MS milliseconds more, and a pass STEP_MS."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.hooked = Sleepy(), False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not self.hooked:
            self.hooked = True
            frame = sys._getframe()
            while not isinstance(frame.f_locals.get("self"), DistributedDataParallel):
                frame = frame.f_back
            frame.f_locals["self"].register_comm_hook(None, _late_reduce)
        return self.inner(images)


def _late_reduce(state, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations, not text
    time.sleep(float(os.environ.get("COMM_MS", "0")) / 1000)
    return allreduce_hook(dist.group.WORLD, bucket)


class Slow(Dataset):
    """Every sample takes SLOW_MS milliseconds to make, so the loader's true rate is known."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(float(os.environ.get("SLOW_MS", "5")) / 1000)
        return torch.zeros(3, 8, 8), index % 10


class Numbered(Dataset):
    """Samples that say which one they are, so that the order shows in the loss."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 16, 16), index / 1000), index % 10


def numbered() -> Numbered:
    return Numbered()


def slow() -> Slow:
    return Slow()
