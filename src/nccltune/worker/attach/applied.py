"""`nccltune run` in a process of the job: the result's arguments for DDP and for the loader, and
what is watched.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nccltune.worker.attach import APPLY, PYTHON_EXEC, USERS_PYTHON_EXEC
from nccltune.worker.attach.guarding import Guard, Guarded, unguarded
from nccltune.worker.attach.on_import import after_import
from nccltune.worker.attach.process import is_first
from nccltune.worker.attach.script import script_name

if TYPE_CHECKING:  # they import torch, which is left to the script
    from nccltune.worker.attach.ddp import DdpUse
    from nccltune.worker.attach.loaders import LoaderUse
    from nccltune.worker.attach.watching import Watch

Tell = Callable[[str], None]


@dataclass
class Applied:
    """What is passed in this process, and what came of it once the script has imported torch.
    `watched` is what rank 0 watches; None where nothing is.
    """

    settings: Mapping[str, Any]
    watched: Mapping[str, Any] | None
    script: str
    tell: Tell
    ddp: DdpUse | None = None
    loader: LoaderUse | None = None
    watch: Watch | None = None

    def pass_on(self) -> None:
        if self.watched is not None:
            Guard(self.tell)(self._prepare_watch)()
        watches = self.watch is not None
        guard: Guarded = unguarded if self.watch is None else self.watch.guard
        if self.settings["ddp"] or watches:
            from nccltune.worker.attach.ddp import inject_ddp

            self.ddp = inject_ddp(self.settings["ddp"], count=watches, guard=guard)
        if self.settings["loader"] or watches:
            from nccltune.worker.attach.loaders import inject_loader

            arguments, training = self.settings["loader"], self.settings["training"]
            match = self.settings["match"]
            self.loader = inject_loader(
                arguments, training, match, count=watches, waits=False, guard=guard
            )
        if self.watch is not None:
            guard(self.watch.begin)(self.ddp, self.loader)

    def _prepare_watch(self) -> None:
        from nccltune.worker.attach.watching import Watch, Watched

        assert self.watched is not None
        self.watch = Watch(Watched.from_dict(self.watched), self.script, self.tell)

    def left(self) -> Iterator[str]:
        """What is to be said when the script is over: what was not used, a line for each kind."""
        if self.watch is not None:
            yield from self.watch.left()
        elif self.watched is not None and "torch" not in sys.modules:
            yield "--watch: nothing was seen of the training: this process has not imported torch"
        if self.ddp is not None:
            yield from _unused_by_ddp(self.ddp)
        wanted = self.loader is not None and self.loader.arguments
        if self.loader is not None and wanted and not any(r.passed for r in self.loader.records):
            yield (
                f"loader arguments were not used ({_words(self.loader.arguments)}): "
                f"{_unused_by_loaders(self.loader)}"
            )


def take_settings(
    environ: MutableMapping[str, str], arguments: Sequence[str], tell: Tell
) -> Applied:
    """Take what `nccltune run` has written for us out of the environment, which is the user's own
    again then, and see that the arguments are passed once the script has imported torch.
    `arguments`: what Python was given. `tell` says a line on stderr.
    """
    settings = json.loads(environ.pop(APPLY))
    watched = settings.get("watch") if is_first(environ) else None
    applied = Applied(settings, watched, script_name(arguments), tell)
    environ.pop(PYTHON_EXEC, None)
    if USERS_PYTHON_EXEC in environ:
        environ[PYTHON_EXEC] = environ.pop(USERS_PYTHON_EXEC)
    after_import("torch", applied.pass_on)
    return applied


def _unused_by_loaders(use: LoaderUse) -> str:
    made = ", ".join(f"{r.key} ({r.place})" for r in use.records) or "none"
    if use.match is not None and not use.feeding():
        return f"--loader-match {use.match} matches no DataLoader; made were: {made}"
    hint = "; --loader-match names one" if use.records else ""
    return f"no DataLoader was taken for the training loader; made were: {made}{hint}"


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
