"""A training loop of steps that take 10 ms: prints the median step, in ms."""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

STEP_SECONDS = 0.010


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(16 * (steps + 20), 8), torch.randint(4, (16 * (steps + 20),)))
    loader = DataLoader(data, batch_size=16, num_workers=1, shuffle=True)
    model = DDP(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    spent, last = [], time.perf_counter()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        until = time.perf_counter() + STEP_SECONDS  # beside what the loop itself takes
        while time.perf_counter() < until:
            pass
        optimizer.step()
        now = time.perf_counter()
        spent.append(now - last)
        last = now
        if len(spent) == steps:
            break
    print(f"median step {1000 * statistics.median(spent[20:]):.4f} ms", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
