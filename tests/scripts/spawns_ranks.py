"""Spawns its own ranks: to be run with python, not with torchrun."""

import argparse
import os
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def train(rank: int, ranks: int, port: int, args: argparse.Namespace) -> None:
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    limit = timedelta(seconds=30)
    dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=limit)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = DDP(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while step < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            step += 1
            if step == 10:
                began = time.perf_counter()
            if step == args.steps:
                break
    if rank == 0 and step > 10:
        samples = (step - 10) * args.batch_size * ranks
        print(f"train: {samples / (time.perf_counter() - began):.1f} samples/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(train, (args.ranks, port, args), nprocs=args.ranks)
