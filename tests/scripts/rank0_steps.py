"""Rank 0 alone has an optimizer, and sends what it makes to the others."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(5000):
    model.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    for parameter in model.parameters():
        dist.reduce(parameter.grad, 0)
    if dist.get_rank() == 0:
        optimizer.step()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
