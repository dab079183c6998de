"""What a trial costs: `nccltune search` beside Optuna with one torchrun a trial, on the same
configurations of the same job, in one run on one machine.

    .venv/bin/python benchmarks/trial_cost.py [--quick] [--launcher slurm] [--json FILE|-]

The search goes first; what it measured is then tried again, in the same order, by plain/tune.py.
Both warm up and count for the same time. The ratio is of wall times, everything included: starts,
imports, the search's own start and its warm host, writing results.

With --launcher slurm both use all nodes of the allocation that it runs in: the search by warm hosts
on them, the plain tuner by one srun with a torchrun on every node a trial. Without an allocation
in_slurm.py makes one of two nodes on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WINDOWS, WINDOW_SECONDS = 2, 0.3  # 0.6 s a trial on both sides
QUICK_PLAIN = 2  # a torchrun launch takes 8 to 15 s on two cores; all shall take a minute
CPU_JOB = {"model": "squeezenet1_1", "batch_size": 4, "image_size": 32}
GPU_JOB = {"model": "resnet50", "batch_size": 64, "image_size": 224}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="6 proposals instead of 40, 2 of them by torchrun"
    )
    parser.add_argument("--trials", type=int, help="so many proposals")
    parser.add_argument("--cudnn-benchmark", action="store_true", help="GPUs: autotuned first step")
    parser.add_argument("--json", metavar="FILE|-", help="figures and raw rows as JSON")
    parser.add_argument(
        "--plain-trials",
        type=int,
        metavar="N",
        help="try only N of the configurations by torchrun, evenly spaced, and scale that wall; "
        "for machines that are lent for minutes",
    )
    parser.add_argument(
        "--launcher", choices=["warm", "slurm"], default="warm", help="of the search"
    )
    args = parser.parse_args()
    trials = args.trials or (6 if args.quick else 40)
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "0")) if args.launcher == "slurm" else 0
    if args.launcher == "slurm" and not nodes:
        parser.error("--launcher slurm: no allocation; see benchmarks/in_slurm.py")
    found_gpus = gpus()
    ranks = found_gpus or (1 if nodes > 1 else 2)
    job = GPU_JOB if found_gpus else CPU_JOB
    # Where all nodes see it.
    with tempfile.TemporaryDirectory(
        prefix="nccltune-cost-", dir=Path.cwd() if nodes else None
    ) as name:
        folder = Path(name)
        options = ["--launcher", args.launcher, "--nproc-per-node", str(ranks)]
        search_wall = run_search(
            folder, trials, bool(found_gpus), job, args.cudnn_benchmark, options
        )
        study = folder / "studies/cost"
        searched = [json.loads(line) for line in (study / "measurements.jsonl").open()]
        wanted = args.plain_trials or (QUICK_PLAIN if args.quick else len(searched))
        tried = spaced(len(searched), min(wanted, len(searched)))
        proposals = [proposal(searched[number]) for number in tried]
        rows, plain_wall = run_plain(folder, proposals, ranks, nodes, job, args.cudnn_benchmark)
    plain = dict(zip(tried, rows, strict=True))
    found = figures(searched, search_wall, plain, plain_wall)
    found |= {"launcher": args.launcher, "nodes": nodes or 1, "ranks_a_node": ranks}
    found |= {"device": "cuda" if found_gpus else "cpu", **about(job)}
    show(found)
    if args.json:
        text = json.dumps(found, indent=1)
        print(text) if args.json == "-" else Path(args.json).write_text(text + "\n")


def spaced(count: int, wanted: int) -> list[int]:
    """`wanted` numbers below `count`, evenly spaced."""
    return sorted({number * count // wanted for number in range(wanted)})


def gpus() -> int:
    """GPUs that torch can use, asked in a process that ends."""
    code = "import torch; print(torch.cuda.device_count())"
    return int(subprocess.check_output([sys.executable, "-c", code], text=True))


def run_search(
    folder: Path,
    trials: int,
    gpu: bool,
    job: dict[str, Any],
    autotune: bool,
    options: list[str],
) -> float:
    command = [
        *(sys.executable, "-m", "nccltune", "search", "--data", "synthetic", "--study", "cost"),
        *("--model", job["model"], "--batch-size", str(job["batch_size"])),
        *("--image-size", str(job["image_size"]), "--trials", str(trials)),
        *("--space", str(HERE / "plain" / ("gpu.yaml" if gpu else "cpu.yaml"))),
        *("--measure-seconds", str(WINDOWS * WINDOW_SECONDS), "--confirm-launches", "0"),
        "--cudnn-benchmark" if autotune else "--no-cudnn-benchmark",
        *options,
    ]
    command += [] if gpu else ["--device", "cpu"]
    began = time.monotonic()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def proposal(row: dict[str, Any]) -> dict[str, Any]:
    """What a measurement set, as the plain tuner is given it."""
    effective = row["effective"]
    return {"env": effective["env"], "ddp": effective["ddp"]}


def run_plain(
    folder: Path,
    proposals: list[dict[str, Any]],
    ranks: int,
    nodes: int,
    job: dict[str, Any],
    autotune: bool,
) -> tuple[list[dict[str, Any]], float]:
    asked, answer = folder / "proposals.json", folder / "plain.json"
    asked.write_text(json.dumps(proposals))
    command = [
        *(sys.executable, str(HERE / "plain/tune.py"), str(asked), str(answer), str(ranks)),
        *(str(nodes), "--"),
        *("--model", job["model"], "--batch-size", str(job["batch_size"])),
        *("--image-size", str(job["image_size"]), "--windows", str(WINDOWS)),
    ]
    command += ["--cudnn-benchmark"] if autotune else []
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    began = time.monotonic()
    subprocess.run(command, check=True, env={**os.environ, "PATH": path})
    return json.loads(answer.read_text()), time.monotonic() - began


def figures(
    searched: list[dict[str, Any]],
    search_wall: float,
    plain: dict[int, dict[str, Any]],
    plain_wall: float,
) -> dict[str, Any]:
    rows = []
    for number, row in enumerate(searched):
        seconds = row["seconds"]
        scope = scope_of(row, searched[number - 1] if number else None)
        timed = seconds.get("warmup", 0.0) + seconds.get("measure", 0.0)
        host = seconds.get("host", 0.0)
        rows.append(
            {
                "trial": number,
                "scope": scope,
                "state": row["state"],
                "env": row["effective"]["env"],
                "ddp": row["effective"]["ddp"],
                "samples_per_second": row["value"],
                "overhead_s": round(sum(seconds.values()) - timed - host, 3),
                "warmup_s": seconds.get("warmup", 0.0),
                "measure_s": seconds.get("measure", 0.0),
                "seconds": seconds,
                "plain": plain.get(number),
            }
        )
    fresh = [row for row in rows if row["scope"] == "process"]
    live = [row for row in rows if row["scope"] != "process"]
    in_trials = sum(sum(row["seconds"].values()) for row in rows)
    return {
        "trials": len(rows),
        "ratio": round(plain_wall * len(rows) / len(plain) / search_wall, 3),
        "plain_trials": len(plain),
        "plain_wall_s": round(plain_wall, 2),
        "search_wall_s": round(search_wall, 2),
        "start_and_end_s": round(search_wall - in_trials, 2),
        "launches": len({row["launch"] for row in searched}),
        "process_overhead_s": median([r["overhead_s"] for r in fresh]),
        "group_overhead_s": median([r["overhead_s"] for r in live]),
        "overhead_s_by_scope": {
            scope: median([r["overhead_s"] for r in rows if r["scope"] == scope])
            for scope in dict.fromkeys(r["scope"] for r in rows)
        },
        "first_step_process_s": median([r["seconds"].get("first_step", 0.0) for r in fresh]),
        "first_step_group_s": median([r["seconds"].get("first_step", 0.0) for r in live]),
        "warmup_s": round(statistics.median(row["warmup_s"] for row in rows), 3),
        "measure_s": round(statistics.median(row["measure_s"] for row in rows), 3),
        "rows": rows,
    }


def scope_of(row: dict[str, Any], before: dict[str, Any] | None) -> str:
    """The dearest level at which this configuration differs from the one measured before it."""
    if before is None or row["launch"] != before["launch"]:
        return "process"
    for name, scope in (("env", "communicator"), ("ddp", "model"), ("loader", "loader")):
        if row["effective"][name] != before["effective"][name]:
            return scope
    return "model"


def median(values: list[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


def about(job: dict[str, Any]) -> dict[str, Any]:
    return {
        "job": job,
        "date": date.today().isoformat(),
        "cores": os.cpu_count(),
        "processor": processor(),
        "python": platform.python_version(),
    }


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def show(found: dict[str, Any]) -> None:
    plain = "srun with torchrun" if found["launcher"] == "slurm" else "torchrun"
    lines = [
        ("trials, worker groups opened", f"{found['trials']}, {found['launches']}"),
        ("of them tried by torchrun too", str(found["plain_trials"])),
        (f"Optuna + one {plain} a trial, wall", seconds(found["plain_wall_s"])),
        ("nccltune search, wall", seconds(found["search_wall_s"])),
        ("  of it outside trials: start, warm host, results", seconds(found["start_and_end_s"])),
        ("ratio of the walls, for all trials", str(found["ratio"])),
        ("outside warm-up and windows, new worker group", seconds(found["process_overhead_s"])),
        ("  of it the first two steps", seconds(found["first_step_process_s"])),
        ("outside warm-up and windows, live worker group", seconds(found["group_overhead_s"])),
        ("  of it the first two steps", seconds(found["first_step_group_s"])),
        *(
            (f"  {scope} scope", seconds(value))
            for scope, value in found["overhead_s_by_scope"].items()
            if scope != "process"
        ),
        ("warm-up, counted windows (medians)", f"{found['warmup_s']} s, {found['measure_s']} s"),
    ]
    for name, value in lines:
        print(f"{name:<52} {value}", file=sys.stderr)


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


if __name__ == "__main__":
    main()
