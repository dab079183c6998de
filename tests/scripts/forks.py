"""Forks a child that trains alone, and starts another Python that does, while the rank trains."""

import argparse
import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

ALONE = """
import torch
model = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(torch.randn(1600, 64), batch_size=16):
    model(x).sum().backward()
    optimizer.step()
print("a subprocess has trained", flush=True)
"""


def train(model: nn.Module, steps: int, batch_size: int) -> int:
    data = TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
    loader = DataLoader(data, batch_size=batch_size, shuffle=True, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    done = 0
    while done < steps:
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    return done


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
mlp = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
child = os.fork()  # before the first backward: autograd cannot be forked once it has threads
if child == 0:
    print(f"a child has trained {train(mlp, 100, 4)} steps", flush=True)
    os._exit(0)
process = subprocess.Popen([sys.executable, "-c", ALONE])
print(f"rank {dist.get_rank()} has trained {train(DDP(mlp), args.steps, args.batch_size)} steps")
status = os.waitpid(child, 0)[1]
print(f"child {os.waitstatus_to_exitcode(status)}, subprocess {process.wait()}")
dist.destroy_process_group()
