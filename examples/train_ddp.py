"""Trains a torchvision model with DDP on random images, on GPUs or CPUs.

    torchrun --standalone --nproc-per-node=2 train_ddp.py --device cpu --image-size 32 --steps 5

With `--best STUDY/best.yaml` it takes DDP's arguments, the loader's and the batch size from a study
of nccltune; the lines that do so are in `settings`. Without it nccltune is not needed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, models, transforms


def main() -> None:
    args = parse_arguments()
    device = start(args)
    batch_size, loader_kwargs, ddp_kwargs = settings(args, device)

    data = datasets.FakeData(
        args.samples, (3, args.image_size, args.image_size), 1000, transforms.ToTensor()
    )
    sampler: DistributedSampler[Any] = DistributedSampler(data, drop_last=True)
    loader: DataLoader[Any] = DataLoader(
        data, batch_size=batch_size, sampler=sampler, drop_last=True, **loader_kwargs
    )
    torch.manual_seed(0)
    model = DistributedDataParallel(
        models.get_model(args.model, weights=None).to(device),
        device_ids=[device.index] if device.type == "cuda" else None,
        **ddp_kwargs,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        steps, seconds, loss = train(model, loader, optimizer, device, args.steps)
        if steps == 0:
            raise SystemExit(f"--samples {args.samples}: not one batch of {batch_size} a rank")
        if dist.get_rank() == 0:
            rate = steps * batch_size * dist.get_world_size() / seconds
            print(f"epoch {epoch}: {steps} steps, loss {loss:.3f}, {rate:.1f} samples/s")
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="DDP training on random images")
    parser.add_argument("--model", default="resnet18", help="a torchvision model (%(default)s)")
    parser.add_argument("--device", choices=["cuda", "cpu"], help="cuda where there are GPUs")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="at most so many steps an epoch")
    parser.add_argument("--samples", type=int, default=4096, help="images in the data set")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=64, help="of a rank (%(default)s)")
    parser.add_argument("--num-workers", type=int, default=2, help="of a rank (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--best", metavar="FILE", help="best.yaml of an nccltune study")
    return parser.parse_args()


def start(args: argparse.Namespace) -> torch.device:
    """Joins the process group and returns this rank's device."""
    kind = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cpu":
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device


def settings(
    args: argparse.Namespace, device: torch.device
) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """(batch size of a rank, arguments of DataLoader, arguments of DDP)."""
    loader_kwargs = {"num_workers": args.num_workers, "pin_memory": device.type == "cuda"}
    if args.best is None:
        return args.batch_size, loader_kwargs, {}

    import nccltune

    best = nccltune.load(args.best)
    unset = [name for name, value in best.env.items() if os.environ.get(name) != value]
    if unset and dist.get_rank() == 0:
        print(f"not as in {args.best}: {' '.join(unset)}; source best.env first", file=sys.stderr)
    return best.batch_size, {**loader_kwargs, **best.loader_kwargs}, best.ddp_kwargs


def train(
    model: torch.nn.Module,
    loader: DataLoader[Any],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    most: int | None,
) -> tuple[int, float, float]:
    """One epoch, or `most` steps of it: (steps, seconds, last loss)."""
    steps, loss = 0, torch.tensor(float("nan"))
    began = time.perf_counter()
    for images, labels in itertools.islice(loader, most):
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        steps += 1
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return steps, time.perf_counter() - began, float(loss)


if __name__ == "__main__":
    main()
