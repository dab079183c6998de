"""Trains on one batch again and again, as people do who look whether a model can learn at all."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
data = TensorDataset(torch.randn(256, 64), torch.randint(0, 10, (256,)))
x, y = next(iter(DataLoader(data, batch_size=16, shuffle=True)))
model = DDP(nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(5000):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
