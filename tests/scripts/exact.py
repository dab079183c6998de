"""Has no optimizer of torch's: it updates by hand and says itself when a step is done."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from nccltune import step

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
model = DDP(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))

done = 0
while done < args.steps:
    for x, y in loader:
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
        step(samples=len(x))
        done += 1
        if done == 10:
            began = time.perf_counter()
        if done == args.steps:
            break
if dist.get_rank() == 0 and done > 10:
    samples = (done - 10) * args.batch_size * dist.get_world_size()
    print(f"train: {samples / (time.perf_counter() - began):.1f} samples/s")
dist.destroy_process_group()
