"""What else went on around a measurement: GPUs that were slowed down or had errors, others at work
on them or on the CPU cores. Read before and after; the difference says whether to trust it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from nccltune.machine.cpu import CpuLoad, CpuReading, family_of, load, read_cpu
from nccltune.machine.gpus import Gpu, GpuProcess, compute_processes, opened_nvml, or_none

HEAT_LIMIT = 0.02
"""Share of the time that a GPU may be slowed by heat; NVML's counter moves in steps of 0.1 s."""
CRC_LIMIT = 100.0
"""NVLink CRC errors a second. They are repaired by sending again; NVIDIA's DCGM, too, takes fewer
for harmless, but no replay and no recovery of a link (dcgm_gpu_hardware_limits.h).
"""
OTHERS_LIMIT = 0.1
"""Share of the CPU cores that others may use in any case."""
FULL_LIMIT = 0.9
"""Share of the CPU cores in use, ours and others together, up to which nobody waits for another."""

# nvml.h's nvmlClocksEventReasons, spelled out because older bindings have other names for them.
# Power capping (0x4) is not among them: it is how a GPU under full load runs.
_SW_THERMAL, _HW_SLOWDOWN, _HW_THERMAL, _POWER_BRAKE = 0x20, 0x8, 0x40, 0x80


@dataclass(frozen=True)
class NvlinkErrors:
    """Of all links of a GPU, since the driver was loaded."""

    replays: int
    recoveries: int
    crc: int


@dataclass(frozen=True)
class GpuReading:
    """One GPU; what NVML does not tell is None. `index` is NVML's."""

    index: int
    heat_seconds: float | None = None
    """Spent below its clocks because of heat, since the driver was loaded."""
    slowdowns: frozenset[str] | None = None
    """What slows it at this very moment, in words."""
    ecc_errors: int | None = None
    """Uncorrected, since the driver was loaded."""
    nvlink: NvlinkErrors | None = None
    strangers: tuple[GpuProcess, ...] | None = None
    """Processes that compute on it and are not ours."""


@dataclass(frozen=True)
class Reading:
    """The machine at one moment: `at` is seconds of the monotonic clock."""

    at: float
    gpus: tuple[GpuReading, ...] = ()
    cpu: CpuReading | None = None


def read(gpus: Sequence[Gpu], ours: Collection[int] = ()) -> Reading:
    """The state of these GPUs and of the CPU. Ours are this process, those in `ours`, and all below
    them. Takes some milliseconds, and never fails: what cannot be read is None.
    """
    family = family_of({os.getpid(), *ours})
    cpu, at = read_cpu(family.seconds), time.monotonic()
    readings: tuple[GpuReading, ...] = ()
    if gpus:
        with opened_nvml() as nvml:
            if nvml is not None:
                readings = tuple(_gpu_reading(nvml, gpu.index, family.pids) for gpu in gpus)
    return Reading(at, readings, cpu)


def strangers(gpus: Sequence[Gpu]) -> tuple[GpuProcess, ...]:
    """Processes that compute on these GPUs now and are not ours."""
    return tuple(p for gpu in read(gpus).gpus for p in gpu.strangers or ())


@dataclass
class Watch:
    """Called now and then, says what disturbed the machine since the last call."""

    gpus: Sequence[Gpu]
    allow_busy: bool = False
    _last: Reading | None = None

    def __call__(self) -> tuple[str, ...]:
        before, self._last = self._last, read(self.gpus)
        if before is None:
            return ()
        return taints(before, self._last, allow_busy=self.allow_busy)


def taints(before: Reading, after: Reading, *, allow_busy: bool = False) -> tuple[str, ...]:
    """Why what was measured between two readings should not be trusted: short facts with their
    limits, none where nothing was the matter. `allow_busy`: the user knows that others use the
    GPUs, so that they are not told again.
    """
    seconds = after.at - before.at
    earlier = {gpu.index: gpu for gpu in before.gpus}
    found: list[str] = []
    for gpu in after.gpus:
        then = earlier.get(gpu.index, GpuReading(gpu.index))
        found += [*_slowdowns(then, gpu, seconds), *_errors(then, gpu, seconds)]
        found += [] if allow_busy else _strangers(then, gpu)
    used = cpu_load(before, after)
    if used is not None and _is_crowded(used):
        found.append(
            f"other processes used {used.others:.1f} of {used.cores} CPU cores and ours "
            f"{used.ours:.1f} (limits {OTHERS_LIMIT:.0%}, and {FULL_LIMIT:.0%} together)"
        )
    return tuple(found)


def cpu_load(before: Reading, after: Reading) -> CpuLoad | None:
    """Who used the CPU cores between two readings; None where that is not known."""
    if before.cpu is None or after.cpu is None:
        return None
    return load(before.cpu, after.cpu, after.at - before.at)


def _is_crowded(used: CpuLoad) -> bool:
    """Whether others took CPU time that we needed.

    In a container /proc shows the load of the whole host: what others use there is no harm as long
    as cores stay free. It is when nearly all are in use, for then ours may have waited, and used
    less than they needed. Where we fill the machine alone, a little of others is no harm either.
    """
    crowded = used.others + used.ours > FULL_LIMIT * used.cores
    return crowded and used.others > OTHERS_LIMIT * used.cores


def _slowdowns(before: GpuReading, after: GpuReading, seconds: float) -> Iterator[str]:
    now = {*(before.slowdowns or ()), *(after.slowdowns or ())}
    if before.heat_seconds is not None and after.heat_seconds is not None:
        now.discard(_WORDS[_SW_THERMAL])  # counted, which tells more
        hot = after.heat_seconds - before.heat_seconds
        if hot > HEAT_LIMIT * seconds:
            yield (
                f"GPU {after.index} was slowed by heat for {hot:.1f} s of {seconds:.1f} s "
                f"(limit {HEAT_LIMIT:.0%})"
            )
    for words in sorted(now):
        yield f"GPU {after.index} was slowed by {words}"


def _errors(before: GpuReading, after: GpuReading, seconds: float) -> Iterator[str]:
    index = after.index
    if before.ecc_errors is not None and after.ecc_errors is not None:
        yield from _new(index, "uncorrected ECC errors", after.ecc_errors - before.ecc_errors)
    if before.nvlink is None or after.nvlink is None:
        return
    yield from _new(index, "NVLink replays", after.nvlink.replays - before.nvlink.replays)
    yield from _new(index, "NVLink recoveries", after.nvlink.recoveries - before.nvlink.recoveries)
    crc = after.nvlink.crc - before.nvlink.crc
    if crc > CRC_LIMIT * seconds:
        yield f"GPU {index}: {crc} new NVLink CRC errors (limit {CRC_LIMIT:.0f} a second)"


def _new(index: int, what: str, count: int) -> Iterator[str]:
    if count > 0:
        yield f"GPU {index}: {count} new {what} (limit 0)"


def _strangers(before: GpuReading, after: GpuReading) -> Iterator[str]:
    seen = {p.pid: p for p in (*(before.strangers or ()), *(after.strangers or ()))}
    for process in seen.values():
        name = f", {process.name}" if process.name else ""
        yield f"another process used GPU {after.index} (pid {process.pid}{name})"


def _gpu_reading(nvml: Any, index: int, ours: Collection[int]) -> GpuReading:
    handle = or_none(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        return GpuReading(index)
    return GpuReading(
        index=index,
        heat_seconds=or_none(lambda: _heat_seconds(nvml, handle)),
        slowdowns=or_none(lambda: slowdowns_in(_event_reasons(nvml, handle))),
        ecc_errors=or_none(
            lambda: int(
                nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                )
            )
        ),
        nvlink=or_none(lambda: _nvlink_errors(nvml, handle)),
        strangers=or_none(
            lambda: tuple(
                p
                for p in compute_processes(nvml, handle, index)
                # In a container NVML may give the host's ids, under which ours are strangers too;
                # an id that is nobody's here tells nothing.
                if p.pid not in ours and psutil.pid_exists(p.pid)
            )
        ),
    )


def _heat_seconds(nvml: Any, handle: Any) -> float:
    # The newer field values count more causes, but under ids that changed from release to release
    # (251 and 269 for the same one), so that a binding can ask the driver for another thing.
    status = nvml.nvmlDeviceGetViolationStatus(handle, nvml.NVML_PERF_POLICY_THERMAL)
    return float(status.violationTime) / 1e9


def _event_reasons(nvml: Any, handle: Any) -> int:
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    return int((ask or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle))


_WORDS = {
    _SW_THERMAL: "heat",
    _HW_THERMAL: "heat, at the limit of its hardware",
    _POWER_BRAKE: "a power brake from outside",
    _HW_SLOWDOWN: "a protection of its hardware",
}


def slowdowns_in(reasons: int) -> frozenset[str]:
    """NVML's clocks event reasons in words, as far as they slow a measurement down."""
    if reasons & (_HW_THERMAL | _POWER_BRAKE):
        reasons &= ~_HW_SLOWDOWN  # which of them it was is known
    return frozenset(words for bit, words in _WORDS.items() if reasons & bit)


def _nvlink_errors(nvml: Any, handle: Any) -> NvlinkErrors | None:
    """None without NVLink, or where one of the counters is not kept."""
    names = ("REPLAY", "RECOVERY", "CRC_FLIT", "CRC_DATA")
    fields = [getattr(nvml, f"NVML_FI_DEV_NVLINK_{name}_ERROR_COUNT_TOTAL") for name in names]
    values = nvml.nvmlDeviceGetFieldValues(handle, fields)
    if any(value.nvmlReturn != nvml.NVML_SUCCESS for value in values):
        return None
    replays, recoveries, flit, data = (int(value.value.ullVal) for value in values)
    return NvlinkErrors(replays, recoveries, flit + data)
