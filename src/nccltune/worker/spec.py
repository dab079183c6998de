"""What a worker group is asked to measure, parsed once from the tuner's JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PROTOCOL_VERSION = 1


@dataclass(frozen=True)
class Workload:
    """The job that is timed; the same in every trial of a study.

    `model` is a torchvision classification model or `package.module:factory`; `data` is `images`,
    `synthetic`, `folder` or `package.module:factory`; `image_size` is in pixels.
    """

    model: str
    data: str
    folder: str | None
    image_size: int
    precision: str
    channels_last: bool
    cudnn_benchmark: bool
    device: str
    backend: str
    seed: int


@dataclass(frozen=True)
class Settings:
    """How long to measure. Times are seconds, spreads and margins are fractions."""

    window_seconds: float = 0.3
    warmup_window_seconds: float = 0.15
    window_steps: int = 5
    windows: int = 4
    max_measure_seconds: float = 8.0
    steady_windows: int = 3
    steady_variation: float = 0.02
    max_warmup_windows: int = 12
    max_warmup_seconds: float = 12.0
    cut_below: float | None = None
    """Samples/s of the incumbent: a measurement that is surely slower is ended early."""
    cut_margin: float = 0.02


@dataclass(frozen=True)
class Request:
    """One configuration to measure. `communicator_env` is set in the ranks before the new process
    group is made, `communicator_config` holds fields of `ProcessGroupNCCL.Options().config`.
    """

    id: str
    workload: Workload
    settings: Settings
    ddp: dict[str, Any]
    loader: dict[str, Any]
    batch_size: int
    data_seed: int = 0
    """The order of the data. A search gives each measurement another one, or the first would read
    files from the disk and all later ones from memory.
    """
    communicator_env: dict[str, str] = field(default_factory=dict)
    communicator_config: dict[str, int] = field(default_factory=dict)
    turns: bool = False
    """Whether each window waits for its turn, since another group uses the devices in between."""
    asks: bool = False
    """Whether the tuner is asked after windows if this is hopeless, in place of `cut_below`."""

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Request:
        return cls(
            id=message["id"],
            workload=Workload(**message["workload"]),
            settings=Settings(**message["settings"]),
            ddp=message["ddp"],
            loader=message["loader"],
            batch_size=message["batch_size"],
            data_seed=message["data_seed"],
            communicator_env=message["communicator_env"],
            communicator_config=message["communicator_config"],
            turns=message["turns"],
            asks=message["asks"],
        )
