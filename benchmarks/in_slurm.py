"""A Slurm of two nodes on this machine, made for one command that runs in an allocation of both.

    .venv/bin/python benchmarks/in_slurm.py COMMAND ...

Needs Debian's slurm-wlm and munge. Nothing is left at the end. The nodes share this machine's
cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/slurm"))

from cluster import cluster, missing_programs


def main() -> int:
    if missing := missing_programs():
        sys.exit(f"not installed: {', '.join(missing)}; apt-get install slurm-wlm munge")
    with cluster() as running:
        allocate = ["salloc", "--nodes=2", "--no-kill", "--quiet", *sys.argv[1:]]
        return subprocess.run(allocate, env={**os.environ, **running.environment}).returncode


if __name__ == "__main__":
    sys.exit(main())
