"""What a failing rank leaves, and how its error is called."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from nccltune.worker.status import Status, WrongResult, kind_of, one_line

OOM = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.81 GiB of "
    "which 11.94 MiB is free. Process 4711 has 139.79 GiB memory in use."
)
UNHANDLED = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, unhandled "
    "{kind} error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\n{reason}"
)

KINDS: list[tuple[BaseException, str]] = [
    (torch.OutOfMemoryError(OOM), "out_of_memory"),
    (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously"),
     "out_of_memory"),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
                  "allocate memory: you tried to allocate 4000000000000 bytes."), "out_of_memory"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
     "out_of_memory"),
    (MemoryError(), "out_of_memory"),
    (dist.DistBackendError(UNHANDLED.format(kind="cuda", reason="Cuda failure 2 'out of memory'")),
     "out_of_memory"),
    (dist.DistBackendError(UNHANDLED.format(kind="system", reason="socketStart failed")),
     "nccl_error"),
    (dist.DistBackendError(UNHANDLED.format(kind="cuda", reason="Cuda failure 1 'invalid'")),
     "nccl_error"),
    (RuntimeError("NCCL error in: NCCLUtils.cpp:77, invalid usage, NCCL version 2.27.5"),
     "nccl_error"),
    (WrongResult("all_reduce of 3 x float32 gave 1.0 at position 0, right is 2.0"), "wrong_result"),
    (WrongResult("parameter out of memory.weight is not the same on all ranks"), "wrong_result"),
    (RuntimeError("CUDA error: an illegal memory access was encountered"), "crashed"),
    (RuntimeError("DataLoader worker (pid 4711) is killed by signal: Killed."), "crashed"),
    (RuntimeError("Connection closed by peer [127.0.0.1]:4711"), "crashed"),
    (ValueError("prefetch_factor option could only be specified in multiprocessing"), "crashed"),
    (KeyboardInterrupt(), "crashed"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "kind"), KINDS, ids=[f"{type(e).__name__}-{n}" for n, (e, _) in enumerate(KINDS)]
)
def test_kinds(error: BaseException, kind: str) -> None:
    assert kind_of(error) == kind


def test_memory_that_torch_itself_cannot_get_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert kind_of(caught.value) == "out_of_memory"


def test_one_line() -> None:
    assert one_line(ValueError("a\n\n  b\n")) == "ValueError: a b"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert one_line(ValueError("x" * 1000)) == "ValueError: " + "x" * 388
    error = RuntimeError("NCCL error in: f.cpp:1, unhandled\nncclX: y\nLast error:\nno eth9\n")
    assert one_line(error) == "RuntimeError: NCCL error in: f.cpp:1, unhandled ... no eth9"


def test_the_status_is_one_short_line_rewritten_in_place(tmp_path: Path) -> None:
    status = Status(tmp_path, 3)
    file = tmp_path / "rank3.status"
    assert file.read_text().rstrip() == "start|0|"
    status.at("first_step", 12345, "backward")
    assert file.read_text().rstrip() == "first_step|12345|backward"
    status.at("idle")  # nothing of the longer one before is left
    assert file.read_text().rstrip() == "idle|0|"
    assert len(file.read_text()) == 64


def test_a_failure_leaves_a_record_that_is_never_half_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    status = Status(tmp_path, 1)
    status.at("measure", 7, "forward")
    before = time.time()
    try:
        raise torch.OutOfMemoryError(OOM)
    except torch.OutOfMemoryError as error:
        status.failed(error)
    record = json.loads((tmp_path / "rank1.error.json").read_text())
    assert before <= record.pop("time") <= time.time()
    assert record == {
        "rank": 1,
        "pid": os.getpid(),
        "phase": "measure",
        "step": 7,
        "kind": "out_of_memory",
        "message": f"OutOfMemoryError: {OOM}",
    }
    assert sorted(os.listdir(tmp_path)) == ["rank1.error.json", "rank1.pid", "rank1.status"]
    assert (tmp_path / "rank1.pid").read_text() == str(os.getpid())
    # The whole traceback goes to the rank's log.
    assert "Traceback (most recent call last)" in capfd.readouterr().err
