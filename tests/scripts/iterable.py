"""An IterableDataset without an end or a length, read by two workers."""

import argparse
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        info = get_worker_info()
        generator = torch.Generator().manual_seed(100 * self.rank + (info.id if info else 0))
        while True:
            x = torch.randn(64, generator=generator)
            yield x, torch.randint(10, (), generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    loader = DataLoader(Stream(dist.get_rank()), batch_size=args.batch_size, num_workers=2)
    model = DDP(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for step, (x, y) in enumerate(loader, 1):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step == 10:
            began = time.perf_counter()
        if step == args.steps:
            break
    if dist.get_rank() == 0 and step > 10:
        samples = (step - 10) * args.batch_size * dist.get_world_size()
        print(f"train: {samples / (time.perf_counter() - began):.1f} samples/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
