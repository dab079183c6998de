"""Known-answer checks: a setting that is fast because the sums are wrong must never win."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from nccltune.worker.status import WrongResult

_SIZES = (1, 3, 1021, 65_537, 262_147)
_CHUNK = 1 << 22
_PERIOD = 10_007  # prime: data moved by a power of two, as a wrong chunk would be, never fits


class Ranks(Protocol):
    """Ranks of a group."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...


class GatheringRanks(Protocol):
    """`worker.ranks.Ranks`, or the same over a store."""

    def gather_int64(self, values: torch.Tensor) -> torch.Tensor: ...


class Job(Protocol):
    """What is checked: a model on its device, and how its gradients are put together."""

    @property
    def model(self) -> torch.nn.Module: ...

    @property
    def device(self) -> torch.device: ...

    def bucket_bytes(self) -> list[int]: ...


class Parameters(Protocol):
    """A module, or what counts of it."""

    def named_parameters(self) -> Iterable[tuple[str, torch.nn.Parameter]]: ...


def check_collectives(job: Job, group: dist.ProcessGroup | None, ranks: Ranks) -> int:
    """All-reduce, broadcast and all-gather whose results are known exactly, on the job's own group.

    Sizes are small and odd ones and those of the job's gradient buckets, in the parameters' types;
    matrix products run beside them, as in training.

    Returns: the number of collectives checked.
    Raises: WrongResult naming collective, type, size, position and both values.
    """
    types = {p.dtype for p in job.model.parameters() if p.dtype.is_floating_point}
    return check_types(types, job.bucket_bytes(), job.device, group, ranks)


def check_types(
    types: Collection[torch.dtype],
    bucket_bytes: Collection[int],
    device: torch.device,
    group: dist.ProcessGroup | None,
    ranks: Ranks,
) -> int:
    """The same for these types and sizes; `ranks` are those of the group. With NCCL reduce-scatter
    too, which sharded training uses.
    """
    checked = 0
    for dtype in sorted(types, key=str):
        for size in _sizes(bucket_bytes, dtype):
            _check_all_reduce(size, dtype, device, group, ranks)
            checked += 1
        for size in _SIZES[:4]:
            _check_broadcast_and_gather(size, dtype, device, group, ranks)
            checked += 2
            if dist.get_backend(group) == "nccl":
                _check_reduce_scatter(size, dtype, device, group, ranks)
                checked += 1
    return checked


def _sizes(bucket_bytes: Collection[int], dtype: torch.dtype) -> list[int]:
    buckets = {size // dtype.itemsize for size in bucket_bytes}
    largest = sorted(buckets)[-3:]
    return sorted({*_SIZES, *largest, *(size - 1 for size in largest[-1:] if size > 1)})


def pattern(
    rank: int, size: int, world_size: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Integers that depend on rank and position, small enough that sums over all ranks are exact
    in `dtype` (integers up to 256 are exact in bf16, up to 2048 in fp16, up to 2**24 in fp32).
    """
    return _tiled(_period(rank, world_size, dtype, device), size)


def _period(rank: int, world_size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    exact = {torch.bfloat16: 1 << 8, torch.float16: 1 << 11}.get(dtype, 1 << 24)
    values = max(2, min(8191, exact // world_size))
    position = torch.arange(_PERIOD, dtype=torch.int64, device=device)
    return ((position * 31 + (rank + 1) * (position // 97 + 11)) % values).to(dtype)


def _tiled(period: torch.Tensor, size: int) -> torch.Tensor:
    return period.repeat(-(-size // _PERIOD))[:size].clone()


def _check_all_reduce(
    size: int,
    dtype: torch.dtype,
    device: torch.device,
    group: dist.ProcessGroup | None,
    ranks: Ranks,
) -> None:
    world_size = ranks.world_size
    expected = _tiled(_total(world_size, dtype, device), size)
    data = pattern(ranks.rank, size, world_size, dtype, device)
    work = dist.all_reduce(data, group=group, async_op=True)
    _matrix_products(device)
    if work is not None:
        work.wait()
    _compare("all_reduce", data, expected)


def _total(world_size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """One period of the sum over all ranks."""
    total = torch.zeros(_PERIOD, dtype=dtype, device=device)
    for rank in range(world_size):
        total += _period(rank, world_size, dtype, device)
    return total


def _check_reduce_scatter(
    size: int,
    dtype: torch.dtype,
    device: torch.device,
    group: dist.ProcessGroup | None,
    ranks: Ranks,
) -> None:
    world_size = ranks.world_size
    whole = size * world_size
    mine = torch.zeros(size, dtype=dtype, device=device)
    data = pattern(ranks.rank, whole, world_size, dtype, device)
    dist.reduce_scatter_tensor(mine, data, group=group)
    expected = _tiled(_total(world_size, dtype, device), whole)
    _compare("reduce_scatter", mine, expected[ranks.rank * size : (ranks.rank + 1) * size])


def _check_broadcast_and_gather(
    size: int,
    dtype: torch.dtype,
    device: torch.device,
    group: dist.ProcessGroup | None,
    ranks: Ranks,
) -> None:
    world_size = ranks.world_size
    source = size % world_size
    data = pattern(ranks.rank, size, world_size, dtype, device)
    everyone = [torch.zeros_like(data) for _ in range(world_size)]
    dist.all_gather(everyone, data, group=group)
    for rank, received in enumerate(everyone):
        _compare("all_gather", received, pattern(rank, size, world_size, dtype, device))
    global_source = source if group is None else dist.get_global_rank(group, source)
    dist.broadcast(data, src=global_source, group=group)
    _compare("broadcast", data, pattern(source, size, world_size, dtype, device))


def _matrix_products(device: torch.device) -> None:
    """Arithmetic beside the collective; on a GPU it queues on the compute stream meanwhile."""
    side = 1024 if device.type == "cuda" else 128
    a = torch.ones(side, side, device=device)
    for _ in range(4):
        a = (a @ a) / side


def _compare(collective: str, got: torch.Tensor, wanted: torch.Tensor) -> None:
    if torch.equal(got, wanted):
        return
    position = int((got != wanted).nonzero()[0])
    raise WrongResult(
        f"{collective} of {got.numel()} x {str(got.dtype).removeprefix('torch.')} gave "
        f"{got[position].item()} at position {position}, right is {wanted[position].item()}"
    )


def check_parameters(model: Parameters, ranks: GatheringRanks) -> None:
    """DDP keeps parameters bitwise equal on all ranks; if they differ, gradients were not reduced.

    Raises: WrongResult naming the first parameter that differs.
    """
    named = list(model.named_parameters())
    if not named:
        return
    names, digests = [name for name, _ in named], [_digest(p) for _, p in named]
    everyone = ranks.gather_int64(torch.stack(digests).cpu())
    differing = _first_difference(everyone.tolist())
    if differing is not None:
        number, rank = differing
        raise WrongResult(
            f"parameter {names[number]} is not the same on all ranks: rank {rank} differs", rank
        )


def _first_difference(rows: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    """(column, row) of the first value that most rows do not share; where as many say one thing as
    another, the first row is taken at its word.
    """
    for number, column in enumerate(zip(*rows, strict=True)):
        usual = Counter(column).most_common(1)[0][0]
        for rank, value in enumerate(column):
            if value != usual:
                return number, rank
    return None


def _digest(parameter: torch.Tensor) -> torch.Tensor:
    """A position-weighted sum over the parameter's bits, modulo 2**64: int64, left on its device,
    so that many of them wait for the device once.
    """
    data = parameter.detach().contiguous().flatten()
    bits = data.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[data.itemsize])
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for start in range(0, bits.numel(), _CHUNK):
        part = bits[start : start + _CHUNK].to(torch.int64)
        weights = torch.arange(start, start + part.numel(), device=part.device) % 65_521 + 1
        total += (part * weights).sum()
    return total
