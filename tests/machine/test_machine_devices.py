"""What the kernel shows of network devices and shared memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from nccltune.machine import gpus
from nccltune.machine.devices import has_verbs, interfaces, rdma_devices, shared_memory_bytes
from nccltune.machine.gpus import Gpu, compute_capabilities


def test_rdma_devices(tmp_path: Path) -> None:
    assert rdma_devices(tmp_path / "none") is None
    assert rdma_devices(tmp_path) == ()
    for name in ("mlx5_1", "mlx5_0"):
        (tmp_path / "infiniband" / name).mkdir(parents=True)
    assert rdma_devices(tmp_path) == ("mlx5_0", "mlx5_1")


def test_whether_processes_can_open_them(tmp_path: Path) -> None:
    assert not has_verbs(tmp_path / "none")
    (tmp_path / "rdma_cm").touch()
    assert not has_verbs(tmp_path)
    (tmp_path / "uverbs0").touch()
    assert has_verbs(tmp_path)


def test_interfaces_are_folders(tmp_path: Path) -> None:
    assert interfaces(tmp_path) is None
    for name in ("lo", "eth0"):
        (tmp_path / "net" / name).mkdir(parents=True)
    (tmp_path / "net" / "bonding_masters").touch()
    assert interfaces(tmp_path) == ("eth0", "lo")


def test_this_machine_has_interfaces() -> None:
    found = interfaces()
    assert found is None or "lo" in found


def test_shared_memory(tmp_path: Path) -> None:
    size = shared_memory_bytes(str(tmp_path))
    assert size is not None and size > 0
    assert shared_memory_bytes(str(tmp_path / "none")) is None


def test_no_gpus_have_no_capabilities() -> None:
    assert compute_capabilities(()) == ()


class NVMLError(Exception):
    pass


@pytest.mark.parametrize(("answer", "expected"), [([9, 0], ((9, 0),)), (None, ())])
def test_capabilities_are_nvmls(
    monkeypatch: pytest.MonkeyPatch, answer: list[int] | None, expected: object
) -> None:
    def capability(handle: str) -> list[int]:
        assert handle == "handle 3"
        if answer is None:
            raise NVMLError
        return answer

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlDeviceGetHandleByIndex=lambda index: f"handle {index}",
        nvmlDeviceGetCudaComputeCapability=capability,
    )

    @contextlib.contextmanager
    def opened() -> Iterator[SimpleNamespace]:
        yield nvml

    monkeypatch.setattr(gpus, "opened_nvml", opened)
    assert compute_capabilities([Gpu(3, "GPU-3", "NVIDIA H200", 1, 18)]) == expected
