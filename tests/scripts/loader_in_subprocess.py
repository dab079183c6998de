"""Another process makes and iterates a DataLoader of its own while the rank trains."""

import argparse
import multiprocessing
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def prepare(parent: int) -> None:
    """Reads batches until the rank has gone."""
    batches = 0
    while os.getppid() == parent:
        for _ in DataLoader(TensorDataset(torch.randn(640, 64)), batch_size=64):
            batches += 1
            time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    other = multiprocessing.Process(target=prepare, args=(os.getpid(),), daemon=True)
    other.start()
    data = TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = DDP(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    step = 0
    while step < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            step += 1
            if step == 10:
                began = time.perf_counter()
            if step == args.steps:
                break
    if dist.get_rank() == 0 and step > 10:
        samples = (step - 10) * args.batch_size * dist.get_world_size()
        print(f"train: {samples / (time.perf_counter() - began):.1f} samples/s")
    print(f"rank {dist.get_rank()}: the other process lives: {other.is_alive()}")
    other.terminate()
    other.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
