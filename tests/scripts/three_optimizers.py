"""Three optimizers: two step once an iteration, the third one four times."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=2000, help="iterations")
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
body, head = nn.Sequential(nn.Linear(64, 128), nn.ReLU()), nn.Linear(128, 10)
model, critic = DDP(nn.Sequential(body, head)), DDP(nn.Linear(10, 1))
body_optimizer = torch.optim.SGD(body.parameters(), lr=0.01)
head_optimizer = torch.optim.Adam(head.parameters(), lr=0.001)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)

step = 0
while step < args.steps:
    for x, y in loader:
        output = model(x)
        for _ in range(4):
            critic_optimizer.zero_grad()
            critic(output.detach()).mean().backward()
            critic_optimizer.step()
        body_optimizer.zero_grad()
        head_optimizer.zero_grad()
        nn.functional.cross_entropy(output, y).backward()
        body_optimizer.step()
        head_optimizer.step()
        step += 1
        if step == 10:
            began = time.perf_counter()
        if step == args.steps:
            break
if dist.get_rank() == 0 and step > 10:
    samples = (step - 10) * args.batch_size * dist.get_world_size()
    print(f"train: {samples / (time.perf_counter() - began):.1f} samples/s")
dist.destroy_process_group()
