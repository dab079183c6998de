"""Trains only where it is nobody's child, and tells how it was started."""

import multiprocessing
import sys

import torch
import torch.distributed as dist
from torch import nn

print("I am", multiprocessing.current_process().name, multiprocessing.parent_process())
print("started as", sys.orig_argv[1:])
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
main = multiprocessing.parent_process() is None
for _ in range(5000 if main else 0):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
