"""Two DDP models: the discriminator steps on every batch, the generator on every second one."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import softplus
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=2000, help="batches")
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
loader = DataLoader(
    TensorDataset(torch.randn(4096, 64)), batch_size=args.batch_size, shuffle=True, drop_last=True
)
generator = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64)))
discriminator = DDP(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4)
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4)

step = 0
while step < args.steps:
    for (real,) in loader:
        step += 1
        noise = torch.randn(len(real), 16)
        with torch.no_grad():
            fake = generator(noise)
        d_optimizer.zero_grad()
        scores = discriminator(torch.cat([real, fake]))
        (softplus(-scores[: len(real)]).mean() + softplus(scores[len(real) :]).mean()).backward()
        d_optimizer.step()
        if step % 2 == 0:
            g_optimizer.zero_grad()
            softplus(-discriminator.module(generator(noise))).mean().backward()
            g_optimizer.step()
        if step == 10:
            began = time.perf_counter()
        if step == args.steps:
            break
if dist.get_rank() == 0 and step > 10:
    samples = (step - 10) * args.batch_size * dist.get_world_size()
    print(f"train: {samples / (time.perf_counter() - began):.1f} samples/s")
dist.destroy_process_group()
