"""What the attachment costs a script: a loop of 10 ms steps by plain torchrun commands and in
trials, in turn, in one run on one machine.

    .venv/bin/python benchmarks/attachment.py [--pairs N] [--steps N] [--json FILE|-]

Each run prints its own median step. In a trial all is counted and timed as ever, but windows are so
long that the script comes to its end. The exit code is 1 where a trial's steps are 1 % longer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from nccltune.launch.plan import LaunchSettings
from nccltune.launch.protocol import Limits
from nccltune.launch.script import ScriptLauncher, ScriptRun, read_script
from nccltune.launch.stopping import StopFlag
from nccltune.launch.worker_files import place_worker
from nccltune.study.script_task import ScriptTask
from nccltune.worker.spec import Settings

LOOP = Path(__file__).resolve().parent / "plain" / "steps.py"
LIMIT = 1.01
_MEDIAN = re.compile(r"median step ([\d.]+) ms")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--json", metavar="FILE|-", help="figures and raw rows as JSON")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="nccltune-attachment-") as name:
        for pair in range(args.pairs):
            order = [("plain", plain), ("attached", attached)]
            for side, run in order if pair % 2 == 0 else reversed(order):
                rows.append({"pair": pair, "side": side, "ms": run(args.steps, Path(name))})
                print(f"pair {pair}  {side:8}  {rows[-1]['ms']:.4f} ms", file=sys.stderr)
    found = figures(rows) | {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "rows": rows,
    }
    print(
        f"a step of 10 ms takes {found['added_us']:.0f} us more in a trial: "
        f"{100 * (found['ratio'] - 1):+.2f}%"
    )
    if args.json:
        text = json.dumps(found, indent=1)
        print(text) if args.json == "-" else Path(args.json).write_text(text + "\n")
    return int(found["ratio"] >= LIMIT)


def figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The median over pairs of attached over plain."""
    pairs: dict[int, dict[str, float]] = {}
    for row in rows:
        pairs.setdefault(row["pair"], {})[row["side"]] = row["ms"]
    ratios = [both["attached"] / both["plain"] for both in pairs.values()]
    added = [both["attached"] - both["plain"] for both in pairs.values()]
    return {"ratio": statistics.median(ratios), "added_us": 1000 * statistics.median(added)}


def plain(steps: int, _folder: Path) -> float:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    done = subprocess.run(
        [*command, str(LOOP), "--steps", str(steps)], capture_output=True, text=True, check=True
    )
    return float(_MEDIAN.findall(done.stdout)[0])


def attached(steps: int, folder: Path) -> float:
    command = read_script([str(LOOP), "--steps", str(steps)], os.environ)
    settings = LaunchSettings(
        python=sys.executable,
        nproc_per_node=1,
        backend="gloo",
        worker_path=place_worker(folder / "worker"),
        base=dict(os.environ),
        site={},
    )
    launcher = ScriptLauncher(settings, StopFlag(), ScriptRun(command))
    long = Settings(windows=10**6, max_measure_seconds=1e6)
    message = {"type": "measure", "id": "m", "settings": asdict(long)}
    group = launcher.open({}, folder / "logs")
    try:
        asked = {**message, **ScriptTask(command).request({}, {})}
        group.request(asked, Limits(), lambda _message: None)  # fails: the script comes to its end
    finally:
        group.close()
    return float(_MEDIAN.findall((folder / "logs" / "rank0.log").read_text())[0])


if __name__ == "__main__":
    sys.exit(main())
