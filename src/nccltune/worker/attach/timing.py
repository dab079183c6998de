"""The part of a trial that needs torch: arguments passed, steps timed, the result told."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nccltune.worker.attach.counting import SampleCount
from nccltune.worker.attach.ddp import inject_ddp
from nccltune.worker.attach.loaders import inject_loader
from nccltune.worker.attach.optimizers import OnStep, count_steps
from nccltune.worker.attach.saves import Saves
from nccltune.worker.attach.spawning import refuse_spawned_ranks
from nccltune.worker.attach.store import StoreRanks
from nccltune.worker.channel import Channel
from nccltune.worker.check import check_collectives, check_parameters, check_types
from nccltune.worker.job import bucket_bytes
from nccltune.worker.measure import figures
from nccltune.worker.memory import forget_peak_memory, held_memory, peak_memory
from nccltune.worker.spec import Settings
from nccltune.worker.status import Status, WrongResult
from nccltune.worker.timer import Clock, Queue, WindowTimer

if TYPE_CHECKING:
    from nccltune.worker.attach.trial import Place

_EARLY = ("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "NUMEXPR_", "ATEN_")
_LOGGED = (
    *("bucket_cap_bytes", "bucket_sizes", "rebuilt_bucket_sizes", "has_rebuilt_buckets"),
    *("broadcast_buffers", "find_unused_parameters", "gradient_as_bucket_view", "static_graph"),
    *("unused_parameter_size", "iteration", "world_size", "backend_name", "comm_hook"),
)
_TYPES = (torch.float32, torch.bfloat16)
_SEVERAL = 1.5  # times forward in a step
_TOGETHER_SECONDS = 60.0  # between the first steps of two ranks, whose gradients were reduced
_LOOKED_AT = 12  # steps, in a launch that only looks at the script
_LOOKED_SECONDS = 60.0
_FEWEST = 3

Plan = Generator[str, None, dict[str, Any]]


@dataclass(frozen=True)
class Asked:
    """What the tuner wants to know. `training`, `match`: see `inject_loader`; `asks`: see
    `worker.spec.Request`. Without `settings` the script is only looked at.
    """

    ddp: Mapping[str, Any]
    loader: Mapping[str, Any]
    training: list[str] | None
    match: str | None
    optimizer: int | None
    samples_per_step: int | None
    check_parameters: bool
    settings: Settings | None
    asks: bool

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Asked:
        settings = message.get("settings")
        script = message["script"]
        return cls(
            ddp=message["ddp"],
            loader=message["loader"],
            training=script["training"],
            match=script["match"],
            optimizer=script["optimizer"],
            samples_per_step=script["samples_per_step"],
            check_parameters=script["check_parameters"],
            settings=None if settings is None else Settings(**settings),
            asks=message.get("asks", False),
        )


class Timing:
    """Every rank has one; they ask for the same steps, since they see the same figures."""

    def __init__(
        self,
        status: Status,
        saves: Saves | None,
        place: Place,
        environment: Mapping[str, str],
    ) -> None:
        """`environment`: before the script began."""
        self._status, self._saves, self._environment = status, saves, environment
        self._ranks = StoreRanks(place.folder)
        self._ranks.gather([])  # from here on every rank is up
        self._channel = Channel.connect(place.address) if self._ranks.rank == 0 else None
        self.announce("hello", token=place.token, torch=torch.__version__)
        receive = None if self._channel is None else self._channel.receive()
        self._asked = Asked.from_message(self._ranks.share(receive))
        self.phase = "build"
        self._clock = Clock(self.announce)
        self._clock.start("build")
        self._plan = self._look() if self._asked.settings is None else self._measure()
        self._samples = SampleCount(self._asked.samples_per_step)

    def announce(self, kind: str, **fields: Any) -> None:
        if kind == "phase":
            self.phase = fields["phase"]
            self._status.at(self.phase)
        if self._channel is not None:
            self._channel.send(kind, **fields)

    def watch(self, on_step: OnStep) -> None:
        """From now on the script is seen, and given what is asked for."""
        asked = self._asked
        self._ddp = inject_ddp(asked.ddp, count=True)
        training = asked.training or []
        self._loaders = inject_loader(asked.loader, training, asked.match, count=True)
        looks = asked.settings is None
        self._optimizers = count_steps(on_step, None if looks else asked.optimizer or 0)
        self._samples.watch(self._ddp, self._loaders)
        refuse_spawned_ranks()

    def step(self, samples: int | None) -> bool:
        """A step is done. Whether that was the last one that is wanted; then the result is told."""
        self._samples.step(samples)
        try:
            next(self._plan)
        except StopIteration as ended:
            self._ranks.gather([])  # all have it before any of them ends
            self.announce("result", result=ended.value)
            return True
        return False

    def hint(self) -> str:
        """What may help a script that has taken no step."""
        if self._optimizers.steps:
            counts = " ".join(f"{n}: {steps}" for n, steps in enumerate(self._optimizers.steps))
            return f" of the one that counts (steps by optimizer: {counts}); see --optimizer"
        return (
            "; steps of torch.optim optimizers are counted, and calls of nccltune.step() where a "
            "script has others"
        )

    # What is timed, as a timer sees it.

    @property
    def feed(self) -> Queue:
        return self._samples

    @property
    def device(self) -> torch.device:
        model = self._model()
        for parameter in () if model is None else model.parameters():
            return parameter.device
        return torch.device("cuda" if torch.cuda.is_initialized() else "cpu")

    def synchronize(self) -> None:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            device = self.device  # which need not be the current one
            torch.cuda.synchronize(device if device.type == "cuda" else None)

    def counted(self, steps: int) -> tuple[int, int]:
        return self._samples.counted(steps)

    def rhythm(self) -> tuple[int, int]:
        return self._samples.rhythm()

    def bucket_bytes(self) -> list[int]:
        model = self._model()
        return [] if model is None else bucket_bytes(model)

    @property
    def model(self) -> torch.nn.Module:
        model = self._model()
        assert model is not None
        return model

    def _model(self) -> DistributedDataParallel | None:
        """The largest module in DDP; None without one."""
        return max(self._ddp.modules(), key=_size, default=None)

    # The two plans: generators that go on at each step.

    def _measure(self) -> Plan:
        settings = self._asked.settings
        assert settings is not None
        self._clock.start("first_step")
        yield "first_step"  # DDP rebuilds its buckets after the first
        self.synchronize()
        self._samples.settle(self._ranks)
        self._clock.start("check")
        checked = self._check_collectives()
        forget_peak_memory(self.device)
        asked = self._is_hopeless if self._asked.asks else None
        timer = WindowTimer(
            settings, self._ranks, self, self._clock, self.announce, is_hopeless=asked
        )
        steady = yield from timer.warming()
        cut = yield from timer.measuring()
        self._clock.start("verify")
        if self._asked.check_parameters and self._model() is not None:
            check_parameters(_Reduced(self.model), self._ranks)
        self._clock.stop()
        figures_ = figures(timer, steady, cut)
        return self._result({**figures_, "collectives_checked": checked})

    def _is_hopeless(self, rates: list[float]) -> bool:
        self.announce("ask", rates=rates)
        told = None if self._channel is None else self._channel.receive()
        return bool(self._ranks.share(told)["type"] != "turn")

    def _look(self) -> Plan:
        """Some steps of the script as it is, of whichever optimizer; what it has is seen meanwhile.
        All ranks go by the time of rank 0.
        """
        self._clock.start("first_step")
        began = time.monotonic()
        for steps in range(1, _LOOKED_AT + 1):
            self._samples.note_samples()
            self._ranks.patience = _TOGETHER_SECONDS if steps == 1 else None
            spent = self._ranks.gather([time.monotonic() - began])[0][0]
            if steps == _LOOKED_AT or (steps >= _FEWEST and spent > _LOOKED_SECONDS):
                break
            yield "first_step"
        self.synchronize()
        equal = True
        if self._model() is not None:
            try:
                check_parameters(_Reduced(self.model), self._ranks)
            except WrongResult:
                equal = False
        self._clock.stop()
        return self._result({"parameters_equal": equal})

    def _check_collectives(self) -> int:
        """On the process group that DDP uses, between two steps, where all ranks are now."""
        model = self._model()
        if not (dist.is_available() and dist.is_initialized()) or self._ranks.world_size < 2:
            return 0
        if model is not None:
            group = model.process_group
            return check_collectives(self, group, _GroupRanks(group))
        everyone = dist.group.WORLD
        return check_types(_TYPES, (), self.device, everyone, _GroupRanks(everyone))

    def _result(self, found: Mapping[str, Any]) -> dict[str, Any]:
        memory = self._ranks.gather([float(v) for v in peak_memory(self.device)])
        held = self._ranks.gather([float(held_memory(self.device))])
        model = self._model()
        return {
            **found,
            "parameters": 0 if model is None else _size(model),
            "bucket_bytes": self.bucket_bytes(),
            "peak_memory_bytes": [int(row[0]) for row in memory],
            "reserved_memory_bytes": [int(row[1]) for row in memory],
            "held_memory_bytes": [int(row[0]) for row in held],
            "loss": None,
            "first_loss": None,
            "seconds": {phase: round(spent, 4) for phase, spent in self._clock.seconds.items()},
            "script": self._facts(model),
        }

    def _facts(self, model: Any) -> dict[str, Any]:
        """What is seen of the script; of rank 0, but for samples."""
        ddp, optimizers, loaders = self._ddp, self._optimizers, self._loaders
        counted = optimizers.busiest() if self._asked.optimizer is None else self._asked.optimizer
        known = counted < len(optimizers.steps)
        steps = optimizers.told or (optimizers.steps[counted] if known else 0)
        alone = len(optimizers.steps) < 2
        samples = self._ranks.gather([self._samples.per_step(steps, alone=alone)])
        feeding = loaders.feeding()
        several = not alone or len(ddp.modules()) > 1  # more goes forward than a step's batches
        initialized = dist.is_available() and dist.is_initialized()
        return {
            "world_size": self._ranks.world_size,
            "device": self.device.type,
            "backend": dist.get_backend() if initialized else None,
            "ddp_modules": len(ddp.modules()),
            "ddp_passed": ddp.passed,
            "ddp_kept": ddp.kept,
            "ddp_logging": _logging(model),
            "accumulates": not ddp.synchronised
            or (not several and ddp.forwards > _SEVERAL * max(1, steps)),
            "fsdp": _uses_fsdp(),
            "early_variables": _set_early(self._environment),
            "loaders": [r.facts() for r in loaders.records[:20]],
            "training": [record.key for record in feeding],
            "optimizers": optimizers.steps,
            "optimizer": counted,
            "told": optimizers.told,
            "samples_per_step": [row[0] for row in samples],
            "saves": 0 if self._saves is None else self._saves.redirected,
        }


class _GroupRanks:
    """Ranks of a process group, which may be some of all."""

    def __init__(self, group: Any) -> None:
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)


class _Reduced:
    """A module in DDP as `check_parameters` sees it: without what DDP is told to leave alone."""

    def __init__(self, model: Any) -> None:
        self._ignored = set(getattr(model, "parameters_to_ignore", ()) or ())
        self._model = model.module

    def named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        found = self._model.named_parameters()
        return [(n, p) for n, p in found if n not in self._ignored and p.requires_grad]


def _size(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _logging(model: Any) -> dict[str, Any]:
    """Of DDP's own logging data what says how it was made; others name the host."""
    try:
        found = model._get_ddp_logging_data()
    except (AttributeError, RuntimeError):
        return {}
    return {name: found[name] for name in _LOGGED if name in found}


def _set_early(before: Mapping[str, str]) -> list[str]:
    """What the script has set of what libraries read when they are loaded, so that it must set it
    before it imports torch.
    """
    changed = (n for n, value in os.environ.items() if before.get(n) != value)
    return sorted(name for name in changed if name.startswith(_EARLY))


def _uses_fsdp() -> bool:
    """Whether a module of this process is sharded by FSDP, either version."""
    import gc

    names = ("FSDPModule", "FullyShardedDataParallel")
    kinds = {type(found) for found in gc.get_objects()}  # isinstance would wake lazy proxies
    return any(
        base.__name__ in names and base.__module__.startswith("torch.distributed")
        for kind in kinds
        if issubclass(kind, torch.nn.Module)
        for base in kind.__mro__
    )
