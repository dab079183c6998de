"""Validates over a loader of its own after every 20 steps."""

import argparse
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
data = TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
val_data = TensorDataset(torch.randn(640, 64), torch.randint(10, (640,)))
val_loader = DataLoader(val_data, batch_size=2 * args.batch_size)
model = DDP(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


@torch.no_grad()
def validate() -> float:
    model.eval()
    right = sum((model(x).argmax(dim=1) == y).sum() for x, y in val_loader)
    model.train()
    return float(right) / len(val_data)


step, timed, seconds, began = 0, 0, 0.0, time.perf_counter()
while step < args.steps:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        if step % 20 == 0:
            if step > 20:
                timed, seconds = timed + 20, seconds + time.perf_counter() - began
            accuracy = validate()
            began = time.perf_counter()
        if step == args.steps:
            break
if dist.get_rank() == 0 and timed:
    samples = timed * args.batch_size * dist.get_world_size()
    print(f"accuracy {accuracy:.3f}")
    print(f"train: {samples / seconds:.1f} samples/s")
dist.destroy_process_group()
