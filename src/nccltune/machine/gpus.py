"""GPUs through NVML: which are ours, what they are, who uses them. Never makes a CUDA context."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil

_T = TypeVar("_T")


@dataclass(frozen=True)
class Gpu:
    """A GPU that jobs started now would see. `index` is NVML's, memory is in bytes."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    nvlinks: int


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds GPU memory. The name is empty where it is not visible from here."""

    gpu: int
    pid: int
    name: str


@contextlib.contextmanager
def opened_nvml() -> Iterator[Any]:
    """pynvml, initialised; None where there is no NVIDIA driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, no driver, no permission: no GPUs for us
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def or_none(ask: Callable[[], _T]) -> _T | None:
    """NVML's answer; None where the GPU, the driver, the binding or a permission is lacking."""
    try:
        return ask()
    except Exception:
        return None


def visible_gpus(environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order (all where it is not set)."""
    with opened_nvml() as nvml:
        if nvml is None:
            return ()
        everything = [_describe(nvml, i) for i in range(nvml.nvmlDeviceGetCount())]
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(everything) if chosen is None else select(everything, chosen)


def select(gpus: Sequence[Gpu], chosen: str) -> tuple[Gpu, ...]:
    """CUDA's own reading of CUDA_VISIBLE_DEVICES: indices or UUID prefixes, up to the first that
    names no GPU.
    """
    found: list[Gpu] = []
    for token in (part.strip() for part in chosen.split(",")):
        if len(token) < 10 and token.isascii() and token.isdigit() and int(token) < len(gpus):
            match = gpus[int(token)]
        else:
            named = [gpu for gpu in gpus if token.startswith("GPU-") and gpu.uuid.startswith(token)]
            if len(named) != 1:
                break
            match = named[0]
        if match in found:
            return ()  # CUDA sees no device at all when one is named twice
        found.append(match)
    return tuple(found)


def _describe(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    links = 0
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        try:
            links += int(nvml.nvmlDeviceGetNvLinkState(handle, link))
        except nvml.NVMLError:
            break
    return Gpu(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        nvlinks=links,
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def driver_version() -> str | None:
    with opened_nvml() as nvml:
        return None if nvml is None else _text(nvml.nvmlSystemGetDriverVersion())


def processes(gpus: Sequence[Gpu]) -> tuple[GpuProcess, ...]:
    """Processes that compute on these GPUs. Before anything is started none of them is ours."""
    found: list[GpuProcess] = []
    with opened_nvml() as nvml:
        for gpu in gpus if nvml is not None else ():
            handle = nvml.nvmlDeviceGetHandleByIndex(gpu.index)
            try:
                found += compute_processes(nvml, handle, gpu.index)
            except nvml.NVMLError:
                continue
    return tuple(found)


def compute_processes(nvml: Any, handle: Any, index: int) -> tuple[GpuProcess, ...]:
    """Processes that compute on one GPU. Raises NVMLError where NVML does not tell."""
    running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return tuple(GpuProcess(index, p.pid, _process_name(p.pid)) for p in running)


def _process_name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return ""


def used_memory(gpus: Sequence[Gpu]) -> tuple[int, ...]:
    """Memory in use on each GPU, bytes."""
    with opened_nvml() as nvml:
        if nvml is None:
            return ()
        handles = [nvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in gpus]
        return tuple(int(nvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)


def free_memory(gpus: Sequence[Gpu]) -> tuple[int, ...]:
    """Memory that is free on each GPU, bytes."""
    pairs = zip(gpus, used_memory(gpus), strict=False)
    return tuple(gpu.memory_bytes - used for gpu, used in pairs)


def compute_capabilities(gpus: Sequence[Gpu]) -> tuple[tuple[int, int], ...]:
    """CUDA's (major, minor) of each GPU; empty where NVML does not tell."""
    with opened_nvml() as nvml:
        if nvml is None:
            return ()
        handles = [nvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in gpus]
        try:
            pairs = [nvml.nvmlDeviceGetCudaComputeCapability(handle) for handle in handles]
        except nvml.NVMLError:
            return ()
        return tuple((int(major), int(minor)) for major, minor in pairs)


def utilization(gpus: Sequence[Gpu]) -> tuple[int, ...]:
    """Per cent of the last sampling period in which a kernel ran, of each GPU."""
    with opened_nvml() as nvml:
        if nvml is None:
            return ()
        handles = [nvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in gpus]
        try:
            return tuple(int(nvml.nvmlDeviceGetUtilizationRates(h).gpu) for h in handles)
        except nvml.NVMLError:
            return ()
