"""Running the real command, and seeing that nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any

JOBS = Path(__file__).parent / "jobs"
MARK = "NCCLTUNE_TEST_MARK"


def marked(mark: str) -> list[int]:
    """Living processes that descend from one started with this mark, however they got away."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError, IndexError):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def warm_hosts(pids: list[int]) -> list[int]:
    """The warm hosts among these processes; not their supervisors, which name the same command."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids}
    return [
        pid
        for pid, line in commands.items()
        if line.endswith(b"nccltune.worker.host\0") and b"supervisor" not in line
    ]


class Cli:
    """`nccltune` in a folder of its own, with its own cache and a mark on all its processes."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.env = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "PYTHONPATH": str(JOBS),
            "XDG_CACHE_HOME": str(cache),
            MARK: self.mark,
        }

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "nccltune", *arguments],
            cwd=self.folder,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **env)
        try:
            out, err = process.communicate(timeout=600)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def study(self, name: str) -> Path:
        return self.folder / "studies" / name

    def trials(self, name: str) -> list[dict[str, Any]]:
        file = self.study(name) / "trials.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()]

    def processes(self) -> list[int]:
        return marked(self.mark)

    def assert_nothing_left(self, seconds: float = 5.0) -> None:
        deadline = time.monotonic() + seconds
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.processes() == []


def shared_memory(ours: Collection[int] = ()) -> list[str]:
    """What is in /dev/shm and not mapped by a living process other than these: others on this
    machine use multiprocessing too.
    """
    names = set(os.listdir("/dev/shm"))
    for maps in Path("/proc").glob("[0-9]*/maps"):
        if int(maps.parent.name) in ours:
            continue
        with contextlib.suppress(OSError):  # it has just ended, or is not ours to read
            text = maps.read_text()
            names = {name for name in names if f"/dev/shm/{name}\n" not in text}
    return sorted(names)
