"""Under what a setting will act: releases, the machine, what the site has set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from packaging.version import Version

from nccltune.nccl.catalog import NEWEST
from nccltune.nccl.site import SiteVariable


@dataclass(frozen=True)
class MachineFacts:
    """What a machine has, as far as it can be read without a launch; None is left out of account.

    capabilities: CUDA's compute capability of each GPU that jobs see, as (9, 0).
    nvlinks: active links of each of these GPUs.
    rdma: InfiniBand and RoCE devices. `verbs` says whether processes can open them: containers
        often show the devices and not /dev/infiniband.
    interfaces: names of the network interfaces.
    architecture: of the CPU, as x86_64 or aarch64.
    shm_bytes: size of /dev/shm.
    """

    capabilities: tuple[tuple[int, int], ...] | None = None
    nvlinks: tuple[int, ...] | None = None
    rdma: tuple[str, ...] | None = None
    verbs: bool = True
    interfaces: tuple[str, ...] | None = None
    architecture: str | None = None
    shm_bytes: int | None = None

    @property
    def gpus(self) -> int | None:
        return None if self.capabilities is None else len(self.capabilities)

    @property
    def usable_rdma(self) -> tuple[str, ...] | None:
        """The RDMA devices that a process can open."""
        return () if self.rdma is not None and not self.verbs else self.rdma

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Circumstances:
    """`torch` None is not known; `machine` None stands for another machine than this."""

    version: Version = NEWEST
    torch: Version | None = None
    machine: MachineFacts | None = None
    site: Mapping[str, SiteVariable] = field(default_factory=dict)
