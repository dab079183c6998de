"""Accumulates gradients over four batches, with no_sync for the first three."""

import argparse
import contextlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=2000, help="of the optimizer")
parser.add_argument("--accumulate", type=int, default=4, help="batches a step")
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
model = DDP(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

batch, last = 0, args.steps * args.accumulate
first = 10 * args.accumulate
while batch < last:
    for x, y in loader:
        batch += 1
        steps_now = batch % args.accumulate == 0
        with contextlib.nullcontext() if steps_now else model.no_sync():
            (nn.functional.cross_entropy(model(x), y) / args.accumulate).backward()
        if steps_now:
            optimizer.step()
            optimizer.zero_grad()
        if batch == first:
            began = time.perf_counter()
        if batch == last:
            break
if dist.get_rank() == 0 and batch > first:
    samples = (batch - first) * args.batch_size * dist.get_world_size()
    print(f"train: {samples / (time.perf_counter() - began):.1f} samples/s")
dist.destroy_process_group()
