"""How long `nccltune --help` takes, beside a bare interpreter and one that imports torch.

    .venv/bin/python benchmarks/startup.py

The three take turns, so that a drift of the machine falls on all of them alike.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 11
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "nccltune --help": [sys.executable, "-m", "nccltune", "--help"],
    "python -c 'import torch'": [sys.executable, "-c", "import torch"],
}


def main() -> None:
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, command in COMMANDS.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - began)
    bare = statistics.median(seconds["python -c pass"])
    for name, found in seconds.items():
        middle = statistics.median(found)
        print(
            f"{name:<26} median {middle:.3f} s of {ROUNDS} [{min(found):.3f} .. {max(found):.3f}], "
            f"{middle / bare:.1f} x the bare interpreter"
        )


if __name__ == "__main__":
    main()
