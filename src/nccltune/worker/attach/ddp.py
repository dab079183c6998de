"""DistributedDataParallel in the script's process: what is passed to it, and how it is used."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from nccltune.worker.attach.guarding import Guarded, unguarded
from nccltune.worker.attach.process import ours
from nccltune.worker.attach.samples import samples_in

_JOBS_OWN = (
    *("self", "module", "args", "kwargs", "device_ids", "output_device", "dim", "process_group"),
    *("device_mesh", "init_sync"),
)
"""What belongs to the job or the launch."""
_SIMPLE = (bool, int, float, str, type(None))


@dataclass
class DdpUse:
    """What is seen of DDP in this process. `passed` and `kept` are of the first module: arguments
    that we gave it, and plain ones that the script gave itself.
    """

    arguments: Mapping[str, Any]
    passed: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    forwards: int = 0
    samples: int = 0
    """Of the batches that went forward with gradients, in all modules of this process."""
    synchronised: bool = True
    """False once `no_sync` was used."""
    evaluations: int = 0
    """How often a module was switched to evaluation."""
    _modules: list[weakref.ref[DistributedDataParallel]] = field(default_factory=list)
    _forward: Any = None
    """The method that was there before its calls were counted."""
    _counted: Any = None
    """The one that counts them."""

    def modules(self) -> list[DistributedDataParallel]:
        """Those that are alive, in the order in which they were made."""
        found = (reference() for reference in self._modules)
        return [module for module in found if module is not None]

    def note_module(self, module: DistributedDataParallel, given: Mapping[str, Any]) -> None:
        if not self._modules:
            self.kept = {
                name: v
                for name, v in given.items()
                if isinstance(v, _SIMPLE) and name not in _JOBS_OWN
            }
        self._modules.append(weakref.ref(module))

    def note_forward(self, *args: Any, **kwargs: Any) -> None:
        if torch.is_grad_enabled():
            self.forwards += 1
            self.samples += samples_in(args) or samples_in(kwargs)

    def note_mode(self, mode: bool = True) -> None:
        self.evaluations += not mode

    def note_no_sync(self) -> None:
        self.synchronised = False

    def stop_counting(self) -> None:
        """Batches that go forward are not looked at any more, which costs each step something."""
        # Where another library has put its own in the place of ours, it needs ours.
        if self._forward is not None and DistributedDataParallel.forward is self._counted:
            DistributedDataParallel.forward = self._forward  # type: ignore[method-assign]
        self._forward = None


def inject_ddp(
    arguments: Mapping[str, Any], *, count: bool = False, guard: Guarded = unguarded
) -> DdpUse:
    """From now on every DistributedDataParallel of this process gets these arguments, but for those
    that the script sets itself and those that this torch does not know. `count`: what goes forward
    is counted, by what `guard` makes of our functions. To be called once.

    The class is changed and no module: a hook on one would be saved with it.
    """
    use = DdpUse(dict(arguments))
    original: Any = DistributedDataParallel.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        if not ours():
            original(self, *args, **kwargs)
            return
        given = _given(signature, self, args, kwargs)
        added = {
            name: value
            for name, value in use.arguments.items()
            if name not in given and name in signature.parameters
        }
        original(self, *args, **kwargs, **added)
        if not use.passed and not use._modules:
            use.passed = added
        use.note_module(self, given)

    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]
    if not count:
        return use
    use._forward = DistributedDataParallel.forward
    _watch(DistributedDataParallel, "forward", guard(use.note_forward))
    _watch(DistributedDataParallel, "train", guard(use.note_mode))
    _watch(DistributedDataParallel, "no_sync", guard(use.note_no_sync))
    use._counted = DistributedDataParallel.forward
    return use


def _given(
    signature: inspect.Signature, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments that the script sets itself."""
    try:
        bound = signature.bind_partial(module, *args, **kwargs)
    except TypeError:  # the constructor itself says what is wrong with them
        return dict(kwargs)
    return dict(bound.arguments) | dict(bound.arguments.get("kwargs", {}))


def _watch(owner: type, name: str, note: Callable[..., None]) -> None:
    """Call `note` with the arguments of a method before each call of it."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling() and ours():
            note(*args, **kwargs)
        return original(self, *args, **kwargs)

    setattr(owner, name, call)
