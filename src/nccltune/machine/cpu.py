"""Who uses the CPU cores: our own processes, with those that have ended, and all others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

_SHORTEST_SECONDS = 0.5  # the kernel counts in ticks of 10 ms: less time tells nothing
_SCANS = 3
_PROC = Path("/proc")


@dataclass(frozen=True)
class CpuReading:
    """CPU seconds used so far on the cores that we may run on. `ours` are those of each process
    that was named as ours, with all below it, by its id.
    """

    cores: int
    busy: float
    ours: Mapping[int, float]


@dataclass(frozen=True)
class CpuLoad:
    """CPU cores in use on average, of `cores`."""

    cores: int
    ours: float
    others: float


@dataclass(frozen=True)
class Family:
    """Our processes: the CPU seconds of each tree of them, by the id of its root, and all ids."""

    seconds: Mapping[int, float]
    pids: frozenset[int]


def load(before: CpuReading, after: CpuReading, seconds: float) -> CpuLoad | None:
    """Who used the cores in the `seconds` between two readings; None where that is not known: too
    short a time, or a root of ours has ended and taken its count with it.
    """
    ended = before.ours.keys() - after.ours.keys()
    if seconds < _SHORTEST_SECONDS or before.cores != after.cores or ended:
        return None
    ours = sum(spent - before.ours.get(pid, 0.0) for pid, spent in after.ours.items())
    others = after.busy - before.busy - ours
    # Ours are counted exactly and busy time in ticks, so the rest can come out below nothing.
    return CpuLoad(after.cores, max(0.0, ours) / seconds, max(0.0, others) / seconds)


def read_cpu(ours: Mapping[int, float]) -> CpuReading | None:
    """None where /proc does not tell."""
    try:
        by_core = busy_by_core((_PROC / "stat").read_text())
        allowed = by_core.keys() & os.sched_getaffinity(0)
    except (OSError, ValueError):
        return None
    # A container's own /proc (lxcfs) shows its cores alone, under other numbers.
    mine = allowed or by_core.keys()
    return CpuReading(len(mine), sum(by_core[core] for core in mine), ours) if mine else None


def busy_by_core(stat: str) -> dict[int, float]:
    """CPU seconds that processes used on each core, from the text of /proc/stat (psutil does not
    tell which core is which). What a hypervisor took away counts as used. Time in interrupts does
    not: it is no process's, and what the network takes of it is mostly for our own ranks.

    Raises: ValueError when the text is another.
    """
    tick = os.sysconf("SC_CLK_TCK")
    found: dict[int, float] = {}
    for line in stat.splitlines():
        name, *numbers = line.split() or [""]
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, _idle, _iowait, _irq, _softirq, steal = map(int, numbers[:8])
            found[int(name[3:])] = (user + nice + system + steal) / tick
    return found


def family_of(roots: Collection[int]) -> Family:
    """The trees of processes below `roots`; those that are not there are left out.

    A process keeps the CPU time of the children that it waited for, and of theirs. So a tree's sum
    over what lives, with what each has kept, loses nothing when processes end, as long as their
    parents wait for them: launches run under processes that adopt orphans and wait for all. Ranks
    and loader workers that were ended so still count as ours.
    """
    for _ in range(_SCANS):
        family = _family_in(_processes(), roots)
        # One that ended meanwhile may be counted twice, with its parent, or not at all.
        if all((_PROC / str(pid)).exists() for pid in family.pids):
            break
    return family


def _family_in(processes: Mapping[int, tuple[int, float]], roots: Collection[int]) -> Family:
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    seconds: dict[int, float] = {}
    met: set[int] = set()
    for root in _outermost(roots, processes):
        tree = [root]
        for pid in tree:
            tree += children.get(pid, [])
        seconds[root] = sum(processes[pid][1] for pid in tree)
        met.update(tree)
    return Family(seconds, frozenset(met))


def _outermost(roots: Collection[int], processes: Mapping[int, tuple[int, float]]) -> list[int]:
    """Without those that are gone or below another one."""
    found = []
    for root in sorted({root for root in roots if root in processes}):
        above = processes[root][0]
        while above in processes and above not in roots:
            above = processes[above][0]
        if above not in processes:
            found.append(root)
    return found


def _processes() -> dict[int, tuple[int, float]]:
    """(parent, CPU seconds) of all that is in /proc, in one pass: psutil opens several files for
    each process, which takes longer and lets more happen meanwhile.
    """
    tick = os.sysconf("SC_CLK_TCK")
    found: dict[int, tuple[int, float]] = {}
    for entry in os.listdir(_PROC):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"{_PROC}/{entry}/stat", "rb", buffering=0) as file:
                fields = file.read(4096).rpartition(b")")[2].split()  # a name can hold anything
            # utime, stime, and cutime, cstime of children that were waited for
            found[int(entry)] = (int(fields[1]), sum(map(int, fields[11:15])) / tick)
    return found
