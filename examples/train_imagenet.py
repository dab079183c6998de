"""Trains a torchvision model on ImageNet, or any other folder of images, with DDP.

    torchrun --standalone --nproc-per-node=gpu train_imagenet.py --arch resnet50 /data/imagenet

The folder holds `train/` and `val/` with one folder a class. Without a folder the images are noise.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision import datasets, models
from torchvision import transforms as T


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ImageNet training")
    parser.add_argument("data", nargs="?", type=Path, help="folder with train/ and val/")
    parser.add_argument("-a", "--arch", default="resnet18", help="model (%(default)s)")
    parser.add_argument("-b", "--batch-size", type=int, default=64, help="per rank (%(default)s)")
    parser.add_argument("-j", "--workers", type=int, default=4, help="per rank (%(default)s)")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--samples", type=int, default=50_000, help="images if there is no folder")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--max-steps", type=int, default=0, help="stop after so many steps")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--amp", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--skip-steps", type=int, default=10, help="of an epoch, not timed")
    parser.add_argument("--output-dir", type=Path, default=Path("checkpoints"))
    return parser.parse_args()


def make_datasets(args: argparse.Namespace) -> tuple[Dataset, Dataset]:
    tail = [T.ToTensor(), T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
    if args.data is None:
        shape = (3, args.image_size, args.image_size)
        train = datasets.FakeData(args.samples, shape, 1000, T.Compose(tail))
        return train, datasets.FakeData(args.samples // 20, shape, 1000, T.Compose(tail))
    crop = [T.RandomResizedCrop(args.image_size), T.RandomHorizontalFlip()]
    middle = [T.Resize(args.image_size * 8 // 7), T.CenterCrop(args.image_size)]
    train = datasets.ImageFolder(args.data / "train", T.Compose(crop + tail))
    return train, datasets.ImageFolder(args.data / "val", T.Compose(middle + tail))


def start() -> torch.device:
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device


def now(device: torch.device) -> float:
    """The time when all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def train(model, loader, criterion, optimizer, device, args, done) -> tuple[int, float]:
    """One epoch, or what --max-steps leaves of it: (steps, samples/s of all ranks)."""
    model.train()
    step, samples, began = 0, 0, now(device)
    for step, (images, target) in enumerate(loader, 1):
        images = images.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.amp):
            loss = criterion(model(images), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        samples += len(images) * dist.get_world_size()
        if step == args.skip_steps:
            samples, began = 0, now(device)
        if done + step == args.max_steps:
            break
    return step, samples / (now(device) - began)


@torch.no_grad()
def validate(model, loader, device) -> float:
    """The share of images of all ranks that are classified right."""
    model.eval()
    counts = torch.zeros(2, device=device)
    for images, target in loader:
        output = model(images.to(device, non_blocking=True))
        counts[0] += (output.argmax(dim=1) == target.to(device, non_blocking=True)).sum()
        counts[1] += len(target)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main() -> None:
    args = parse_arguments()
    device = start()
    train_set, val_set = make_datasets(args)
    sampler = DistributedSampler(train_set)
    loading = {"batch_size": args.batch_size, "num_workers": args.workers}
    loading["pin_memory"] = device.type == "cuda"
    train_loader = DataLoader(train_set, sampler=sampler, drop_last=True, **loading)
    val_loader = DataLoader(val_set, sampler=DistributedSampler(val_set, shuffle=False), **loading)

    model = models.get_model(args.arch, weights=None).to(device)
    model = DistributedDataParallel(model, [device.index] if device.type == "cuda" else None)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)
    args.output_dir.mkdir(parents=True, exist_ok=True)

    done = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        steps, rate = train(model, train_loader, criterion, optimizer, device, args, done)
        done += steps
        scheduler.step()
        accuracy = validate(model, val_loader, device)
        if dist.get_rank() == 0:
            if rate:
                print(f"epoch {epoch}: {rate:.1f} samples/s", flush=True)
            print(f"epoch {epoch}: accuracy {accuracy:.4f}", flush=True)
            state = {"epoch": epoch, "model": model.module.state_dict()}
            state["optimizer"] = optimizer.state_dict()
            torch.save(state, args.output_dir / f"{args.arch}-{epoch}.pt")
        if done == args.max_steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
