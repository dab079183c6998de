"""Runs 50 batches forward and backward, and has no optimizer."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
loader = DataLoader(data, batch_size=args.batch_size, drop_last=True)
model = DDP(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))

for batch, (x, y) in enumerate(loader, 1):
    model.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    if batch == args.steps:
        break
norm = sum(parameter.grad.norm() for parameter in model.parameters())
print(f"rank {dist.get_rank()}: {batch} batches, gradient {norm:.4f}")
dist.destroy_process_group()
