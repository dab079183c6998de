"""A tuner as anyone would write it: an Optuna study that starts one torchrun a trial.

    python benchmarks/plain/tune.py PROPOSALS.json RESULT.json RANKS NODES -- --model resnet50 ...

PROPOSALS.json is a list of {"env": {...}, "ddp": {...}}, tried in order; RESULT.json gets samples/s
and seconds of each trial. RANKS are those of a node. NODES above 0 are those of the Slurm
allocation around it, to which srun brings torchrun. What follows -- goes to train.py.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import optuna

TRAIN = Path(__file__).with_name("train.py")


def main() -> None:
    split = sys.argv.index("--")
    proposals_file, result_file, ranks, nodes = sys.argv[1:split]
    proposals = json.loads(Path(proposals_file).read_text())
    rows = []

    def objective(trial: optuna.Trial) -> float:
        proposal = proposals[trial.suggest_int("proposal", 0, len(proposals) - 1)]
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=Path(result_file).parent) as folder:
            result = Path(folder) / "result.json"
            command = [*launch(int(nodes)), f"--nproc-per-node={ranks}", str(TRAIN)]
            command += sys.argv[split + 1 :]
            command += ["--ddp", json.dumps(proposal["ddp"]), "--result", str(result)]
            env = {**os.environ, **proposal["env"]}
            done = subprocess.run(command, env=env, capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
            found = json.loads(result.read_text())["samples_per_second"]
        rows.append({"samples_per_second": found, "seconds": time.monotonic() - began})
        return found

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    for number in range(len(proposals)):
        study.enqueue_trial({"proposal": number})
    study.optimize(objective, n_trials=len(proposals))
    Path(result_file).write_text(json.dumps(rows))


def launch(nodes: int) -> list[str]:
    """torchrun as it starts a trial's ranks on this machine, or on every node of the allocation."""
    if nodes == 0:
        return ["torchrun", "--standalone"]
    names = ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]
    head = subprocess.check_output(names, text=True).split()[0]
    told = subprocess.check_output(["scontrol", "--oneliner", "show", "node", head], text=True)
    address = dict(word.split("=", 1) for word in told.split() if "=" in word)["NodeAddr"]
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    return [
        *("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--overlap"),
        *("--mem=0", "--cpu-bind=none", "torchrun", f"--nnodes={nodes}", "--rdzv-backend=c10d"),
        *(f"--rdzv-id={port}", f"--rdzv-endpoint={address}:{port}"),
    ]


if __name__ == "__main__":
    main()
