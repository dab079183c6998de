"""What resolving a search space needs to know of the job, and what the user asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from packaging.version import Version

from nccltune.space.scalars import Value

if TYPE_CHECKING:
    from nccltune.nccl.site import SiteVariable

Data = Literal["images", "synthetic", "folder", "custom"]


@dataclass(frozen=True)
class Facts:
    """One job on one machine.

    Before the probe launch (`probed` false) network, transports and nccl may be unknown.
    """

    backend: Literal["nccl", "gloo"]
    world_size: int
    nodes: int = 1
    probed: bool = False
    network: str | None = None
    """NCCL's name of the network that ranks use, such as Socket or IB, or "IB and Socket"; None: no
    rank uses one.
    """
    transports: tuple[str, ...] = ()
    """Transport families in use, such as P2P, SHM, NET."""
    nvlinks: bool | None = None
    """Whether every GPU in use has NVLinks; None: not known, or no GPUs."""
    nccl: Version | None = None
    interfaces: tuple[str, ...] = ()
    """Names of the network interfaces here that could carry sockets between hosts."""
    site: Mapping[str, SiteVariable] = field(default_factory=dict)
    """Variables that the site has set; they stay as they are in every launch."""
    ddp_arguments: frozenset[str] | None = None
    """The names that DDP's constructor takes in the job's torch; None: not known."""
    cpus_per_rank: int = 1
    batch_size: int = 64
    """The user's own, of one rank."""
    num_workers: int = 0
    """The user's own."""
    data: Data = "images"
    no_place: Mapping[str, str] = field(default_factory=dict)
    """Parameters that cannot reach the job, and why."""


@dataclass(frozen=True)
class Selection:
    """What the user wants searched: --fix, --only, --exclude, --allow-guarded, --allow-unsafe."""

    fix: Mapping[str, Value] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    """Names of parameters or targets; empty: all."""
    exclude: tuple[str, ...] = ()
    allow_guarded: bool = False
    allow_unsafe: bool = False
