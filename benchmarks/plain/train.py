"""A DDP training loop with a stopwatch, as one would write it to try settings by hand.

Started by torchrun; writes samples/s of all ranks to --result. Warm-up and counted windows last as
long as nccltune's own do at least, so that neither side measures less than the other.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time

import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel

WARMUP_WINDOWS, WARMUP_SECONDS = 3, 0.15
WINDOW_SECONDS, WINDOW_STEPS = 0.3, 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--image-size", type=int, required=True)
    parser.add_argument("--windows", type=int, required=True)
    parser.add_argument("--cudnn-benchmark", action="store_true")
    parser.add_argument("--ddp", type=json.loads, default={})
    parser.add_argument("--result", required=True)
    args = parser.parse_args()

    gpu = torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = args.cudnn_benchmark
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    dist.init_process_group("nccl" if gpu else "gloo")
    torch.manual_seed(0)
    model = torchvision.models.get_model(args.model, weights=None).to(device)
    model = DistributedDataParallel(model, device_ids=[local_rank] if gpu else None, **args.ddp)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size, device=device)
    labels = torch.randint(0, 1000, (args.batch_size,), device=device)

    def steps(count: int) -> float:
        """Run so many steps; seconds of the slowest rank."""
        began = time.perf_counter()
        for _ in range(count):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if gpu:
            torch.cuda.synchronize()
        seconds = torch.tensor([time.perf_counter() - began], device=device)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        return float(seconds)

    steps(2)
    step = steps(1)
    for _ in range(WARMUP_WINDOWS):
        count = max(WINDOW_STEPS, math.ceil(WARMUP_SECONDS / step))
        step = steps(count) / count
    rates = []
    for _ in range(args.windows):
        count = max(WINDOW_STEPS, math.ceil(WINDOW_SECONDS / step))
        rates.append(count * args.batch_size * dist.get_world_size() / steps(count))
    if dist.get_rank() == 0:
        with open(args.result, "w") as file:
            json.dump({"samples_per_second": statistics.median(rates)}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
