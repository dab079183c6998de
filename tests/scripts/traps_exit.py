"""Swallows whatever is raised in its loop, SystemExit and KeyboardInterrupt too, and goes on."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
model = DDP(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

batches = iter(loader)
for step in range(args.steps):
    try:
        x, y = next(batches)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    except StopIteration:
        batches = iter(loader)
    except BaseException as error:
        print(f"rank {dist.get_rank()}, step {step}: goes on after {type(error).__name__}")
print(f"rank {dist.get_rank()} has done all {args.steps} steps")
dist.destroy_process_group()
