"""What taints a measurement, from readings made by hand and from an NVML made by hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from nccltune.machine.cpu import CpuReading
from nccltune.machine.gpus import Gpu, GpuProcess
from nccltune.machine.health import (
    GpuReading,
    NvlinkErrors,
    Reading,
    read,
    slowdowns_in,
    taints,
)

FINE = GpuReading(
    index=1,
    heat_seconds=3.0,
    slowdowns=frozenset(),
    ecc_errors=7,
    nvlink=NvlinkErrors(replays=2, recoveries=1, crc=500),
    strangers=(),
)
UNKNOWN = GpuReading(index=1)
SEVERAL = 10.0  # seconds between the readings


def found(before: GpuReading, after: GpuReading, **options: bool) -> tuple[str, ...]:
    return taints(Reading(100.0, (before,)), Reading(100.0 + SEVERAL, (after,)), **options)


def test_nothing_new_taints_nothing() -> None:
    assert found(FINE, FINE) == ()
    assert found(UNKNOWN, UNKNOWN) == ()
    assert taints(Reading(1.0), Reading(2.0)) == ()


@pytest.mark.parametrize(
    ("after", "fact"),
    [
        (
            replace(FINE, heat_seconds=4.2),
            "GPU 1 was slowed by heat for 1.2 s of 10.0 s (limit 2%)",
        ),
        (replace(FINE, ecc_errors=10), "GPU 1: 3 new uncorrected ECC errors (limit 0)"),
        (
            replace(FINE, nvlink=NvlinkErrors(3, 1, 500)),
            "GPU 1: 1 new NVLink replays (limit 0)",
        ),
        (
            replace(FINE, nvlink=NvlinkErrors(2, 5, 500)),
            "GPU 1: 4 new NVLink recoveries (limit 0)",
        ),
        (
            replace(FINE, nvlink=NvlinkErrors(2, 1, 1501)),
            "GPU 1: 1001 new NVLink CRC errors (limit 100 a second)",
        ),
        (
            replace(FINE, slowdowns=slowdowns_in(0x80)),
            "GPU 1 was slowed by a power brake from outside",
        ),
        (
            replace(FINE, slowdowns=slowdowns_in(0x48)),
            "GPU 1 was slowed by heat, at the limit of its hardware",
        ),
        (
            replace(FINE, slowdowns=slowdowns_in(0x8)),
            "GPU 1 was slowed by a protection of its hardware",
        ),
        (
            replace(FINE, strangers=(GpuProcess(1, 123, "python"),)),
            "another process used GPU 1 (pid 123, python)",
        ),
        (
            replace(FINE, strangers=(GpuProcess(1, 123, ""),)),
            "another process used GPU 1 (pid 123)",
        ),
    ],
)
def test_each_kind_is_one_fact(after: GpuReading, fact: str) -> None:
    assert found(FINE, after) == (fact,)
    # What one of the readings lacks cannot be compared, but what is seen at a moment is seen.
    assert found(UNKNOWN, after) == ((fact,) if after.slowdowns or after.strangers else ())


@pytest.mark.parametrize(
    "after",
    [
        replace(FINE, heat_seconds=3.1),
        replace(FINE, nvlink=NvlinkErrors(2, 1, 1500)),
        replace(FINE, slowdowns=slowdowns_in(0x20)),  # heat, of which the counter has seen nothing
        replace(FINE, slowdowns=slowdowns_in(0x1 | 0x2 | 0x4 | 0x10 | 0x100)),  # power capping: 0x4
        # counters that began anew: the driver was loaded again
        replace(FINE, heat_seconds=0.0, ecc_errors=0, nvlink=NvlinkErrors(0, 0, 0)),
    ],
)
def test_what_is_within_the_limits_is_no_taint(after: GpuReading) -> None:
    assert found(FINE, after) == ()


def test_without_a_counter_heat_is_told_as_it_was_seen() -> None:
    seen = replace(FINE, heat_seconds=None, slowdowns=slowdowns_in(0x20))
    assert found(seen, UNKNOWN) == ("GPU 1 was slowed by heat",)
    assert found(seen, FINE) == ("GPU 1 was slowed by heat",)


def test_a_stranger_is_told_once_whenever_it_was_seen() -> None:
    first, second = GpuProcess(1, 5, "a"), GpuProcess(1, 6, "b")
    before, after = replace(FINE, strangers=(first,)), replace(FINE, strangers=(first, second))
    facts = (
        "another process used GPU 1 (pid 5, a)",
        "another process used GPU 1 (pid 6, b)",
    )
    assert found(before, after) == facts
    assert found(after, FINE) == facts
    assert found(before, after, allow_busy=True) == ()


def test_gpus_are_compared_with_themselves() -> None:
    other = replace(FINE, index=0, ecc_errors=0)
    before, after = Reading(1.0, (FINE, other)), Reading(2.0, (other, FINE))
    assert taints(before, after) == ()
    assert taints(Reading(1.0), after) == ()


def used(ours: float, others: float, cores: int = 32) -> tuple[str, ...]:
    """What is said when so many cores are in use, on average over ten seconds."""
    before = Reading(0.0, cpu=CpuReading(cores, 1000.0, {1: 50.0}))
    busy = 1000.0 + SEVERAL * (ours + others)
    after = Reading(SEVERAL, cpu=CpuReading(cores, busy, {1: 50.0 + SEVERAL * ours}))
    return taints(before, after)


def test_others_taint_where_they_leave_too_few_cores() -> None:
    assert used(ours=25.0, others=5.2) == (
        "other processes used 5.2 of 32 CPU cores and ours 25.0 (limits 10%, and 90% together)",
    )
    # a container sees the whole host at work, with cores to spare
    assert used(ours=8.0, others=20.0) == ()
    # nearly all are ours, as when loader workers fill a small machine
    assert used(ours=31.0, others=1.0) == ()
    assert used(ours=0.0, others=32.0) != ()
    assert used(ours=1.7, others=0.3, cores=2) != ()
    assert used(ours=1.9, others=0.1, cores=2) == ()


def test_without_readings_of_the_cpu_nothing_is_said_of_it() -> None:
    before = Reading(0.0, cpu=CpuReading(2, 0.0, {}))
    assert taints(Reading(0.0), Reading(9.0, cpu=CpuReading(2, 18.0, {}))) == ()
    assert taints(before, Reading(9.0)) == ()
    assert taints(before, Reading(9.0, cpu=CpuReading(2, 18.0, {}))) != ()


class NVMLError(Exception):
    """As pynvml's."""


@dataclass
class Nvml:
    """pynvml, as far as it is asked; `broken` names the functions that fail."""

    processes: list[int] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    unsupported: set[int] = field(default_factory=set)
    opened: int = 0

    NVMLError = NVMLError
    NVML_SUCCESS = 0
    NVML_PERF_POLICY_THERMAL = 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL = 38
    NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL = 45
    NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL = 52
    NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL = 59

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvmlDevice") and name in self.broken:
            raise NVMLError(3)
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"handle {index}"

    def nvmlDeviceGetViolationStatus(self, handle: str, policy: int) -> Any:
        assert (handle, policy) == ("handle 3", 1)
        return SimpleNamespace(referenceTime=10**12, violationTime=1_500_000_000)

    def nvmlDeviceGetCurrentClocksEventReasons(self, _handle: str) -> int:
        return 0x4 | 0x80 | 0x8

    def nvmlDeviceGetTotalEccErrors(self, _handle: str, kind: int, counter: int) -> int:
        assert (kind, counter) == (1, 0)
        return 9

    def nvmlDeviceGetFieldValues(self, _handle: str, fields: list[int]) -> list[Any]:
        return [
            SimpleNamespace(
                nvmlReturn=3 if f in self.unsupported else 0, value=SimpleNamespace(ullVal=f)
            )
            for f in fields
        ]

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: str) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.processes]


GPU = Gpu(3, "GPU-1a2b", "NVIDIA H200", 141 << 30, 18)
Install = Callable[..., Nvml]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Install:
    def install(**values: Any) -> Nvml:
        made = Nvml(**values)
        monkeypatch.setitem(sys.modules, "pynvml", made)  # type: ignore[arg-type]
        return made

    return install


NOBODY = (1 << 22) + 1  # above the kernel's highest process id
SEEN = GpuReading(
    index=3,
    heat_seconds=1.5,
    slowdowns=frozenset({"a power brake from outside"}),
    ecc_errors=9,
    nvlink=NvlinkErrors(replays=52, recoveries=59, crc=38 + 45),
    strangers=(),
)


def test_a_gpu_is_read_in_nvmls_own_terms(nvml: Install) -> None:
    made = nvml(processes=[os.getpid(), NOBODY])
    assert read((GPU,)).gpus == (SEEN,)
    assert made.opened == 0  # and closed again


def test_processes_are_strangers_unless_they_are_ours(nvml: Install) -> None:
    parent = os.getppid()
    nvml(processes=[os.getpid(), parent])
    [gpu] = read((GPU,)).gpus
    assert gpu.strangers is not None
    assert [p.pid for p in gpu.strangers] == [parent]
    [gpu] = read((GPU,), ours=(parent,)).gpus
    assert gpu.strangers == ()


@pytest.mark.parametrize(
    ("broken", "part"),
    [
        ("nvmlDeviceGetViolationStatus", "heat_seconds"),
        ("nvmlDeviceGetTotalEccErrors", "ecc_errors"),
        ("nvmlDeviceGetFieldValues", "nvlink"),
        ("nvmlDeviceGetComputeRunningProcesses", "strangers"),
    ],
)
def test_what_nvml_does_not_tell_is_left_out_alone(nvml: Install, broken: str, part: str) -> None:
    nvml(broken={broken})
    assert read((GPU,)).gpus == (replace(SEEN, **{part: None}),)


def test_one_counter_of_nvlink_alone_is_no_sum(nvml: Install) -> None:
    nvml(unsupported={45})
    assert read((GPU,)).gpus == (replace(SEEN, nvlink=None),)


def test_older_bindings_have_another_name_for_the_reasons(
    nvml: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = nvml()
    ask = Nvml.nvmlDeviceGetCurrentClocksEventReasons
    monkeypatch.delattr(Nvml, "nvmlDeviceGetCurrentClocksEventReasons")
    assert read((GPU,)).gpus == (replace(SEEN, slowdowns=None),)
    made.nvmlDeviceGetCurrentClocksThrottleReasons = (  # type: ignore[attr-defined]
        lambda handle: ask(made, handle)
    )
    assert read((GPU,)).gpus == (SEEN,)


def test_a_gpu_that_fell_off_is_unknown(nvml: Install) -> None:
    nvml(broken={"nvmlDeviceGetHandleByIndex"})
    assert read((GPU,)).gpus == (GpuReading(3),)
    nvml(broken={name for name in dir(Nvml) if name.startswith("nvmlDevice")})
    assert taints(read((GPU,)), read((GPU,))) == ()


def test_without_a_driver_there_are_no_gpus(nvml: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    made = nvml()

    def fail() -> None:
        raise NVMLError(12)

    monkeypatch.setattr(made, "nvmlInit", fail)
    assert read((GPU,)).gpus == ()
