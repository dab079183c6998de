"""Who uses the CPU: ours, with what has ended, and others."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nccltune.machine import health
from nccltune.machine.cpu import (
    CpuLoad,
    CpuReading,
    Family,
    _family_in,
    busy_by_core,
    family_of,
    load,
)
from nccltune.machine.health import cpu_load, read

STAT = """cpu  900 80 70 9000 600 50 40 30 20 10
cpu0 100 20 30 4000 500 6 7 8 90 1
cpu3 1000 0 0 1 2 3 4 0 0 0
intr 12345 0 0
ctxt 99
"""


def test_busy_is_what_processes_used_by_the_number_of_the_core() -> None:
    tick = os.sysconf("SC_CLK_TCK")
    # user, nice, system and stolen; neither idle, waiting, interrupts nor guests (in user already)
    assert busy_by_core(STAT) == {0: 158 / tick, 3: 1000 / tick}


@pytest.mark.parametrize("text", ["cpu0 1 2 3", "cpux 1 2 3 4 5 6 7 8", "cpu0 a b c d e f g h"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        busy_by_core(text)


def test_trees_are_summed_and_named_by_their_outermost_root() -> None:
    processes = {
        1: (0, 1000.0),
        10: (1, 1.0),  # the tuner
        11: (10, 2.0),  # its supervisor
        12: (11, 4.0),
        20: (1, 8.0),  # a rank started elsewhere
        21: (20, 16.0),
        30: (1, 32.0),
    }
    assert _family_in(processes, {10, 12, 20, 99}) == Family(
        {10: 7.0, 20: 24.0}, frozenset({10, 11, 12, 20, 21})
    )
    assert _family_in(processes, {99}) == Family({}, frozenset())


def reading(busy: float, ours: dict[int, float], cores: int = 4) -> CpuReading:
    return CpuReading(cores, busy, ours)


def test_load_is_cores_in_use() -> None:
    found = load(reading(100, {1: 10, 2: 5}), reading(130, {1: 20, 2: 10}), 10.0)
    assert found == CpuLoad(cores=4, ours=1.5, others=1.5)


def test_a_root_that_came_meanwhile_counts_from_its_start() -> None:
    found = load(reading(100, {1: 10}), reading(130, {1: 20, 2: 15}), 10.0)
    assert found == CpuLoad(cores=4, ours=2.5, others=0.5)


def test_ticks_make_nobody_use_less_than_nothing() -> None:
    found = load(reading(100, {1: 10}), reading(109.8, {1: 20}), 10.0)
    assert found == CpuLoad(cores=4, ours=1.0, others=0.0)


@pytest.mark.parametrize(
    ("after", "seconds"),
    [
        (reading(130, {1: 20}), 10.0),  # a root has ended, and nobody knows what it had used
        (reading(130, {1: 20, 2: 10}, cores=8), 10.0),
        (reading(130, {1: 20, 2: 10}), 0.2),
    ],
)
def test_what_cannot_be_told_is_not(after: CpuReading, seconds: float) -> None:
    assert load(reading(100, {1: 10, 2: 5}), after, seconds) is None


def test_a_reading_costs_little_and_tells_of_this_machine() -> None:
    found = read((), ours=())
    assert found.gpus == () and found.cpu is not None
    assert found.cpu.cores == len(os.sched_getaffinity(0))
    assert set(found.cpu.ours) == {os.getpid()}
    assert 0 < found.cpu.ours[os.getpid()] <= found.cpu.busy


def test_without_proc_there_is_no_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = read(())
    monkeypatch.setattr("nccltune.machine.cpu._PROC", tmp_path)
    after = read(())
    assert after.cpu is None and cpu_load(before, after) is None
    assert health.taints(before, after) == ()


def test_what_is_below_this_process_is_ours() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert {os.getpid(), child.pid} <= family_of({os.getpid()}).pids
        assert family_of({child.pid}).pids == {child.pid}
        child.communicate(b"\n")
    assert family_of({child.pid}).pids == set()


BUSY_SECONDS = 0.8
BUSY = f"""
import time
while time.process_time() < {BUSY_SECONDS}:
    pass
"""
# It starts another process, tells its number, and ends: that other one is then nobody's of ours.
ORPHANING = f"""
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", {BUSY!r}], start_new_session=True).pid, flush=True)
"""


def busy_child() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", BUSY]):
        yield


def busy_grandchild_that_ends() -> Iterator[None]:
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])"
    with subprocess.Popen([sys.executable, "-c", code]):
        yield


def busy_stranger() -> Iterator[None]:
    done = subprocess.run([sys.executable, "-c", ORPHANING], stdout=subprocess.PIPE, check=True)
    stranger = Path(f"/proc/{int(done.stdout)}/stat")
    yield
    while stranger.exists() and stranger.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.02)


def used_meanwhile(work: Callable[[], Iterator[None]]) -> tuple[float, float]:
    """CPU seconds of ours and of others while this work is done, to its end."""
    before = read(())
    for _ in work():
        pass
    after = read(())
    found = cpu_load(before, after)
    assert found is not None
    seconds = after.at - before.at
    return found.ours * seconds, found.others * seconds


def test_work_counts_for_whom_it_belongs_to() -> None:
    # Others use this machine too, more or less from moment to moment: what a loop adds shows in
    # the figure of those that it belongs to, and the other figure is what it is.
    for work in (busy_child, busy_grandchild_that_ends):
        ours, _ = used_meanwhile(work)
        assert ours > 0.9 * BUSY_SECONDS, work.__name__
    ours, others = used_meanwhile(busy_stranger)
    assert others > 0.8 * BUSY_SECONDS
    assert others > ours  # some of it for starting the stranger
