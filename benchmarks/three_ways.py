"""Whether a live worker group measures what a fresh launch does: the same configurations by a fresh
torchrun command, in a fresh warm group, and in a live group that has measured others before.

    .venv/bin/python benchmarks/three_ways.py [--blocks N] [--json FILE|-]

Blocks of all configurations in all three ways, in random order; within a block each configuration
has the same model state and the same data in all three. Ratios to torchrun are paired within a
block, since a drift of the machine falls on all three alike; the block is the unit of repetition.
Equal means: the 95 % interval of the ratio lies within +-3 %.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

from nccltune.launch.plan import LaunchSettings
from nccltune.launch.protocol import Launcher, Limits
from nccltune.launch.stopping import StopFlag
from nccltune.launch.torchrun import TorchrunLauncher
from nccltune.launch.warm import WarmLauncher
from nccltune.launch.worker_files import place_worker
from nccltune.machine.gpus import visible_gpus
from nccltune.nccl.site import site_variables
from nccltune.stats.ratios import equality, ratio_interval, repetitions_needed
from nccltune.worker.spec import Request, Settings, Workload

MARGIN = 0.03
SAME_LOSS = 1e-3  # relative; on GPUs sums may be taken in another order
WAYS = ("torchrun", "warm", "live")
SETTINGS = Settings()

Row = dict[str, Any]
Say = Callable[[str], None]


def compare(
    launchers: Mapping[str, Launcher],
    configurations: Mapping[str, Request],
    blocks: int,
    folder: Path,
    say: Say,
    seconds: float = math.inf,
) -> list[Row]:
    """Measure every configuration in every way, `blocks` times, or as often as fits in `seconds`
    by the time that the longest block took. `launchers` has "torchrun" and "warm". Raises
    RuntimeError where a measurement fails.
    """
    end, longest = time.monotonic() + seconds, 0.0
    rows: list[Row] = []
    order = random.Random(0)
    for block in range(blocks):
        began = time.monotonic()
        if began + longest > end:
            break
        tasks = [(way, name) for way in ("torchrun", "warm") for name in configurations]
        tasks.append(("live", ""))  # all of them in one group, after another measurement
        order.shuffle(tasks)
        for number, (way, name) in enumerate(tasks):
            place = folder / f"block{block}-{number}"
            launcher = launchers["torchrun" if way == "torchrun" else "warm"]
            names = [name]
            if way == "live":
                several = order.sample(list(configurations), len(configurations))
                names = [several[-1], *several]
            group = launcher.open({}, place)
            for position, asked in enumerate(names):
                request = replace(configurations[asked], id=f"b{block}", data_seed=block)
                outcome = group.request(
                    {"type": "measure", **asdict(request)}, Limits(), lambda _: None
                )
                if outcome.failure is not None or outcome.result is None:
                    group.close()
                    raise RuntimeError(f"{way} {asked}: {outcome.failure}")
                if way != "live" or position > 0:
                    rows.append(_row(block, way, asked, position, outcome.result, outcome.seconds))
                    say(
                        f"block {block + 1}/{blocks}  {way:<8} {asked:<28} "
                        f"{rows[-1]['samples_per_second']:10.1f} samples/s"
                    )
            group.close()
        longest = max(longest, time.monotonic() - began)
    return rows


def _row(
    block: int,
    way: str,
    name: str,
    position: int,
    result: Mapping[str, Any],
    seconds: Mapping[str, float],
) -> Row:
    kept = ("samples_per_second", "steady", "first_loss", "peak_memory_bytes", "held_memory_bytes")
    return {
        "block": block,
        "way": way,
        "configuration": name,
        "measured_before": position,
        **{key: result[key] for key in kept},
        "seconds": dict(seconds),
    }


def ratios(rows: Sequence[Row], way: str) -> list[float]:
    """Speed in this way over that by torchrun, one for each block: the geometric mean over the
    configurations, which in a live group share a launch and so are no repetitions.
    """
    speeds = {(r["block"], r["configuration"], r["way"]): r["samples_per_second"] for r in rows}
    logs: dict[int, list[float]] = {}
    for (block, name, other), speed in speeds.items():
        if other == "torchrun":
            logs.setdefault(block, []).append(math.log(speeds[block, name, way] / speed))
    return [math.exp(statistics.fmean(several)) for several in logs.values()]


def summary(rows: Sequence[Row], level: float = 0.95) -> dict[str, dict[str, Any]]:
    """For the ways that are compared with torchrun: ratio, interval, what that allows to say."""
    found = {}
    for way in WAYS[1:]:
        several = ratios(rows, way)
        interval = ratio_interval(several, level)
        said = equality(interval, MARGIN)
        needed = repetitions_needed(several, MARGIN, level) if said == "unknown" else None
        found[way] = {
            "ratio": round(interval.ratio, 5),
            "low": round(interval.low, 5),
            "high": round(interval.high, 5),
            "blocks": interval.count,
            "said": said,
            "blocks_needed": needed,
        }
    return found


def sentence(way: str, found: Mapping[str, Any]) -> str:
    text = (
        f"{way} / torchrun: {found['ratio']:.4f} [{found['low']:.4f} .. {found['high']:.4f}], "
        f"{found['blocks']} blocks: "
    )
    if found["said"] == "equal":
        return text + f"equal within {MARGIN:.0%}"
    if found["said"] == "different":
        return text + f"not equal within {MARGIN:.0%}"
    if found["blocks_needed"] is None:
        return text + "not shown to be equal; more blocks of this kind would not show it either"
    missing = max(1, found["blocks_needed"] - found["blocks"])
    return text + f"not known; {missing} more blocks should settle it"


def same_start(rows: Sequence[Row]) -> bool:
    """Whether the loss of the first steps is the same in all ways: same weights, same data."""
    seen: dict[tuple[int, str], list[float]] = {}
    for row in rows:
        losses = seen.setdefault((row["block"], row["configuration"]), [])
        losses.append(math.nan if row["first_loss"] is None else row["first_loss"])
    return all(max(several) - min(several) <= SAME_LOSS * max(several) for several in seen.values())


def default_configurations(gpu: bool, job: argparse.Namespace) -> dict[str, Request]:
    workload = Workload(
        model=job.model,
        data=job.data,
        folder=None,
        image_size=job.image_size,
        precision=job.precision or ("tf32" if gpu else "fp32"),
        channels_last=job.channels_last,
        cudnn_benchmark=True,
        device="cuda" if gpu else "cpu",
        backend="nccl" if gpu else "gloo",
        seed=0,
    )
    plain = Request("b", workload, SETTINGS, {}, {}, job.batch_size)
    if not gpu:
        return {
            "default": plain,
            "bucket_cap_mb=1": replace(plain, ddp={"bucket_cap_mb": 1}),
            "gradient_as_bucket_view": replace(plain, ddp={"gradient_as_bucket_view": True}),
        }
    return {
        "default": plain,
        "bucket_cap_mb=5": replace(plain, ddp={"bucket_cap_mb": 5}),
        "tree": replace(plain, communicator_env={"NCCL_ALGO": "ring,tree;allreduce:tree"}),
        "8 CTAs": replace(plain, communicator_config={"min_ctas": 8, "max_ctas": 8}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=6, help="repetitions, a minute or more each")
    parser.add_argument("--seconds", type=float, help="no block beyond these")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these configurations")
    parser.add_argument("--model", help="a torchvision model")
    parser.add_argument("--data", default="synthetic", help="synthetic, or pkg.module:factory")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--precision")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--json", metavar="FILE|-", help="figures and raw rows as JSON")
    args = parser.parse_args()
    gpus = visible_gpus(os.environ)
    defaults = ("resnet50", 224, 64) if gpus else ("squeezenet1_1", 32, 4)
    for name, value in zip(("model", "image_size", "batch_size"), defaults, strict=True):
        setattr(args, name, getattr(args, name) or value)
    with tempfile.TemporaryDirectory(prefix="nccltune-ways-") as name:
        settings = LaunchSettings(
            python=sys.executable,
            nproc_per_node=len(gpus) or 2,
            backend="nccl" if gpus else "gloo",
            worker_path=place_worker(Path(name) / "worker"),
            base=dict(os.environ),
            site=site_variables(os.environ),
            gpus=gpus,
        )
        stop = StopFlag()
        launchers = {
            "torchrun": TorchrunLauncher(settings, stop),
            "warm": WarmLauncher(settings, stop),
        }
        configurations = default_configurations(bool(gpus), args)
        configurations = {n: configurations[n] for n in args.only or configurations}
        try:
            rows = compare(
                launchers,
                configurations,
                args.blocks,
                Path(name),
                lambda text: print(text, flush=True),
                args.seconds or math.inf,
            )
        finally:
            launchers["warm"].close()
    found = summary(rows)
    for way, figures in found.items():
        print(sentence(way, figures))
    print(f"first losses alike in all three: {'yes' if same_start(rows) else 'NO'}")
    if args.json:
        document = {
            **found,
            "same_start": same_start(rows),
            "date": date.today().isoformat(),
            "ranks": len(gpus) or 2,
            "job": {name: value for name, value in vars(args).items() if name != "json"},
            "rows": rows,
        }
        text = json.dumps(document, indent=1)
        print(text) if args.json == "-" else Path(args.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
