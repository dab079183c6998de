"""Reads its input to the end before it trains."""

import argparse
import sys
import time

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
print(f"rank {dist.get_rank()} read {len(sys.stdin.buffer.read())} bytes", flush=True)

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
if dist.get_rank() == 0 and step > 10:
    samples = (step - 10) * args.batch_size * dist.get_world_size()
    print(f"train: {samples / (time.perf_counter() - began):.1f} samples/s")
dist.destroy_process_group()
