"""`nccltune run` in a process of the job: the result's arguments for DDP and for the loader."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nccltune.worker.attach import APPLY, PYTHON_EXEC, USERS_PYTHON_EXEC
from nccltune.worker.attach.on_import import after_import

if TYPE_CHECKING:  # they import torch, which is left to the script
    from nccltune.worker.attach.ddp import DdpUse
    from nccltune.worker.attach.loaders import LoaderUse


@dataclass
class Applied:
    """What is passed in this process, and what came of it once the script has imported torch."""

    settings: Mapping[str, Any]
    ddp: DdpUse | None = None
    loader: LoaderUse | None = None

    def pass_on(self) -> None:
        if self.settings["ddp"]:
            from nccltune.worker.attach.ddp import inject_ddp

            self.ddp = inject_ddp(self.settings["ddp"])
        if self.settings["loader"]:
            from nccltune.worker.attach.loaders import inject_loader

            arguments, training = self.settings["loader"], self.settings["training"]
            self.loader = inject_loader(arguments, training, self.settings["match"])

    def unused(self) -> Iterator[str]:
        """What was not used, a line for each kind, when the script is over."""
        if self.ddp is not None:
            yield from _unused_by_ddp(self.ddp)
        if self.loader is not None and not any(each.passed for each in self.loader.records):
            made = ", ".join(f"{r.key} ({r.place})" for r in self.loader.records) or "none"
            yield (
                f"loader arguments were not used ({_words(self.loader.arguments)}): no DataLoader "
                f"was taken for the training loader; made were: {made}"
            )


def take_settings(environ: MutableMapping[str, str]) -> Applied:
    """Take what `nccltune run` has written for us out of the environment, which is the user's own
    again then, and see that the arguments are passed once the script has imported torch.
    """
    applied = Applied(json.loads(environ.pop(APPLY)))
    environ.pop(PYTHON_EXEC, None)
    if USERS_PYTHON_EXEC in environ:
        environ[PYTHON_EXEC] = environ.pop(USERS_PYTHON_EXEC)
    after_import("torch", applied.pass_on)
    return applied


def _unused_by_ddp(use: DdpUse) -> Iterator[str]:
    left = {name: value for name, value in use.arguments.items() if name not in use.passed}
    own = {name: use.kept[name] for name in left if name in use.kept}
    if own:
        wanted = {name: left[name] for name in own}
        yield f"DDP: {_words(own)} is the script's own and stays; the file has {_words(wanted)}"
    elif left:
        yield (
            f"DDP arguments were not used ({_words(left)}): the script made no "
            "DistributedDataParallel, or gives them itself, or this torch does not have them"
        )


def _words(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())
