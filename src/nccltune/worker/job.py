"""The training job that is timed: model, DDP, optimizer, one step. Reads top to bottom."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from nccltune.worker.feed import (
    Batch,
    Feed,
    LoaderFeed,
    SyntheticFeed,
    load_object,
    open_dataset,
)
from nccltune.worker.lead import Lead
from nccltune.worker.ranks import Ranks, new_group
from nccltune.worker.spec import Request, Workload
from nccltune.worker.status import Status

_NEWS_SECONDS = 5.0
_AUXILIARY = 0.3  # weight of auxiliary heads: Szegedy et al., Going deeper with convolutions, 2014
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Communicator:
    """The process group that gradients travel on. One is alive at a time beside the control group.

    NCCL reads NCCL_ALGO and NCCL_PROTO anew for every communicator, so setting them in the live
    ranks is enough; limits on CTAs are fields of its configuration.
    """

    def __init__(self, request: Request) -> None:
        self._before = {name: os.environ.get(name) for name in request.communicator_env}
        os.environ.update(request.communicator_env)
        if request.workload.backend == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            for name, value in request.communicator_config.items():
                setattr(options.config, name, value)
            self.group = new_group("nccl", options)
        else:
            self.group = new_group(request.workload.backend)

    def close(self) -> None:
        dist.destroy_process_group(self.group)
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class Job:
    """A model in DDP with its optimizer and its batches. `step()` trains one batch."""

    def __init__(
        self,
        request: Request,
        ranks: Ranks,
        group: dist.ProcessGroup | None,
        status: Status,
        announce: Callable[..., None],
    ) -> None:
        self._workload = workload = request.workload
        self._batch_size = request.batch_size
        self._status, self._announce = status, announce
        self._steps, self._told = 0, time.monotonic()
        self.device = own_device(workload.device, ranks)
        _set_precision(workload)
        dataset = None if workload.data == "synthetic" else open_dataset(workload)
        model = seeded_model(workload, dataset, self.device)
        if workload.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.loss_function = getattr(model, "loss", cross_entropy)
        self.feed = open_feed(model, dataset, request, ranks, self.device)
        self.model = DistributedDataParallel(
            model,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            process_group=group,
            **request.ddp,
        )
        # A small rate: nothing here is meant to converge, and losses must stay finite.
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        self._scaler = (
            torch.amp.GradScaler(self.device.type) if workload.precision == "fp16" else None
        )
        self.loss: torch.Tensor | None = None
        self.lead: Lead | None = None
        """Measured where it is set."""

    def pull(self, phase: str) -> Batch:
        """The next batch, without training on it."""
        self._status.at(phase, self._steps, "data")
        if time.monotonic() - self._told > _NEWS_SECONDS:  # a long window is no silence
            self._told = time.monotonic()
            self._announce("alive", step=self._steps)
        return self.feed.next()

    def step(self, phase: str) -> None:
        if self.lead is not None:
            self.lead.begin()
        inputs, targets = self.pull(phase)
        number = self._steps
        inputs = inputs.to(self.device, non_blocking=True)
        targets = targets.to(self.device, non_blocking=True)
        if self._workload.channels_last and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        self._status.at(phase, number, "forward")
        with self._autocast():
            loss = self.loss_function(self.model(inputs), targets)
        self._status.at(phase, number, "backward")
        if self.lead is not None:
            self.lead.end()
        self._update(loss)
        self.loss = loss.detach()
        self._steps = number + 1

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        dtype = _AUTOCAST.get(self._workload.precision)
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=dtype)

    def _update(self, loss: torch.Tensor) -> None:
        if self._scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        else:
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            self._scaler.step(self.optimizer)
            self._scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def counted(self, steps: int) -> tuple[int, int]:
        """(samples of this rank, interruptions) in so many steps."""
        return self._batch_size * steps, 0

    def rhythm(self) -> tuple[int, int]:
        """Nothing interrupts it."""
        return 0, 0

    def bucket_bytes(self) -> list[int]:
        return bucket_bytes(self.model)

    def close(self) -> None:
        """Let go of everything that holds memory."""
        self.feed.close()
        del self.model, self.optimizer, self.loss_function, self.loss


def bucket_bytes(model: DistributedDataParallel) -> list[int]:
    """Sizes of DDP's gradient buckets, bytes; as rebuilt after the first step if they are."""
    try:
        facts = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    except (AttributeError, RuntimeError):
        return []
    text = facts.get("rebuilt_bucket_sizes") or facts.get("bucket_sizes") or ""
    return [int(size) for size in str(text).replace(",", " ").split()]


def own_device(kind: str, ranks: Ranks) -> torch.device:
    """This rank's device, made the current one. A GPU is touched only where the job wants one."""
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device(kind, ranks.local_rank)
    torch.cuda.set_device(device)
    return device


def _set_precision(workload: Workload) -> None:
    tf32 = workload.precision != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = workload.cudnn_benchmark


def seeded_model(workload: Workload, dataset: Any, device: torch.device) -> torch.nn.Module:
    """The model on its device, with the same weights on every rank and in every measurement, and
    the random state that making it leaves behind.
    """
    torch.manual_seed(workload.seed)
    if ":" in workload.model:
        return build_model(workload.model, 0).to(device)
    classes = max(1000, len(getattr(dataset, "classes", ())))
    model, state = _built(workload.model, classes, workload.seed)
    torch.set_rng_state(state)
    return _copied(model, device)


def _copied(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """A copy on the device, without a second one in the host's memory on the way."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        data = parameter.detach().to(device, copy=True)
        memo[id(parameter)] = torch.nn.Parameter(data, parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.to(device, copy=True)
    return copy.deepcopy(model, memo)


@functools.lru_cache(maxsize=1)  # drawing a ResNet-50's weights takes longer than a window
def _built(name: str, classes: int, seed: int) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    return build_model(name, classes), torch.get_rng_state()


def build_model(name: str, classes: int) -> torch.nn.Module:
    """torchvision's model of that name, or what the user's factory returns."""
    if ":" in name:
        model: torch.nn.Module = load_object(name)()
        return model
    from torchvision import models

    built: torch.nn.Module = models.get_model(name, weights=None, num_classes=classes)
    return built


def open_feed(
    model: torch.nn.Module,
    dataset: Any,
    request: Request,
    ranks: Ranks,
    device: torch.device,
) -> Feed:
    if dataset is not None:
        return LoaderFeed(dataset, request, ranks)
    make_batch = getattr(model, "make_batch", None)
    if make_batch is not None:
        inputs, targets = make_batch(request.batch_size)
    else:
        inputs, targets = _image_batch(model, request, device)
    return SyntheticFeed((inputs.to(device), targets.to(device)))


def _image_batch(model: torch.nn.Module, request: Request, device: torch.device) -> Batch:
    """Drawn on the device: a hundred million numbers take a processor longer than a window."""
    size = request.workload.image_size
    classes = getattr(model, "num_classes", 1000 if ":" not in request.workload.model else 10)
    inputs = torch.randn(request.batch_size, 3, size, size, device=device)
    return inputs, torch.randint(0, classes, (request.batch_size,), device=device)


def cross_entropy(output: Any, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy of what classification models return: logits, or a tuple of them with auxiliary
    heads, as GoogLeNet and Inception have (in DDP every parameter needs its gradient), or (batch,
    positions, classes) for token models.
    """
    if not isinstance(output, (tuple, list)):
        heads = [getattr(output, "logits", output)]
    else:
        heads = [head for head in output if head is not None]
        heads = [head for head in heads if head.shape == heads[0].shape]  # features are no head
    main, *auxiliary = (
        F.cross_entropy(head.reshape(-1, head.shape[-1]), targets.reshape(-1)) for head in heads
    )
    return main + _AUXILIARY * sum(auxiliary) if auxiliary else main
