"""The last rank is slower: the others wait for it in every backward pass."""

import argparse
import os
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
parser.add_argument("--pause", type=float, default=0.03, help="seconds a step")
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
model = DDP(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
slow = dist.get_rank() == dist.get_world_size() - 1

for step, (x, y) in enumerate(loader, 1):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    if slow:
        time.sleep(args.pause)
    loss.backward()
    optimizer.step()
    if step == args.steps:
        break
dist.destroy_process_group()
# Past that the interpreter only takes itself down, in which gloo's threads abort now and then.
sys.stdout.flush()
os._exit(0)
