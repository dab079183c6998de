"""In a trial, what the script saves as a checkpoint goes below the trial's folder, and so does all
that it writes to files that were there before.

Forty trials that are cut short must not leave forty beginnings in place of a user's checkpoints.
The script itself notices nothing: it finds, renames, copies, lists and deletes what it saved under
the names that it used, and so do the other ranks. What it wants to overwrite, append to, delete,
rename or replace of the user's own stays as it is, covered by the trial's or hidden from it.

Replaced in this process are open, io.FileIO, the functions of os and shutil that take paths,
torch.save and torch.load, torch.package, storages mapped from files, torch.distributed.checkpoint
and safetensors. New files without the name of a checkpoint are written where they are, and so are
caches, temporary files and locks; files above 64 MiB are changed in place, or appended to, where
they have no such name. Not reached are remote storage, other programs, processes that are spawned,
and libraries that open files in C: SQLite, HDF5, OpenCV.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nccltune.worker.attach.files import Function
from nccltune.worker.attach.on_import import after_import
from nccltune.worker.attach.overlay import Overlay
from nccltune.worker.attach.replacing import replace_functions


@dataclass(frozen=True)
class Saves:
    """What the script has saved in this process so far."""

    _overlay: Overlay

    @property
    def redirected(self) -> int:
        """Files, and checkpoints that are folders, written below the trial's folder instead."""
        return len(self._overlay.saved)

    @property
    def first(self) -> str | None:
        """The first of their paths, as the script gave it."""
        return next(iter(self._overlay.saved.values()), None)

    @property
    def spared(self) -> int:
        """Files and folders of the user's own that the script wanted to delete or to move."""
        return len(self._overlay.spared)


def redirect_saves(folder: Path) -> Saves:
    """From now on this process saves checkpoints below `folder`, which all ranks of a trial share
    and no two trials; it is made. For good: to be called once in a process. Torch and safetensors
    are seen to when the script imports them.
    """
    overlay = Overlay(folder)
    replace_functions(overlay)
    process = os.getpid()
    atexit.register(lambda: overlay.remove_empty() if os.getpid() == process else None)
    after_import("torch", lambda: _replace_torch(overlay))
    after_import("torch.package", lambda: _replace_package(overlay))
    package = "torch.distributed.checkpoint"
    after_import(f"{package}.filesystem", lambda: _replace_writer(overlay))
    after_import(f"{package}.state_dict_saver", lambda: _replace_async_save(overlay))
    after_import("safetensors", lambda: _replace_safetensors(overlay))
    return Saves(overlay)


def _replace_torch(overlay: Overlay) -> None:
    import torch

    save, load = _saving(overlay, "f", 1), _loading(overlay, "f", 0)
    for name, make in {"save": save, "load": load}.items():
        function = make(getattr(torch, name))
        for module in (torch, torch.serialization):
            setattr(module, name, function)
    # These write with C++ where they get a path.
    for owner, make in (
        (torch.jit, save),
        (getattr(torch.jit, "RecursiveScriptModule", None), save),
        (torch.export, save),
        (torch.jit, load),
        (torch.export, load),
    ):
        name = "save" if make is save else "load"
        if hasattr(owner, name):
            setattr(owner, name, make(getattr(owner, name)))

    storage = torch.UntypedStorage
    storage.from_file = staticmethod(_mapping(overlay, storage.from_file))  # type: ignore[method-assign]
    torch.from_file = _mapping(overlay, torch.from_file)  # type: ignore[assignment]


def _mapping(overlay: Overlay, original: Function) -> Function:
    """A storage whose file is shared writes to it."""

    @functools.wraps(original)
    def from_file(filename: Any, shared: Any = None, *args: Any, **kwargs: Any) -> Any:
        if shared:
            if overlay.ours(filename) or overlay.guard(filename, copied=True):
                filename = overlay.claim(filename, keep=True)
            else:
                overlay.making(filename)
        else:
            filename = overlay.loading(filename)
        return original(filename, shared, *args, **kwargs)

    return from_file


def _replace_package(overlay: Overlay) -> None:
    """These write and read with C++ where they get a path."""
    from torch.package.package_exporter import PackageExporter
    from torch.package.package_importer import PackageImporter

    for owner, make in (
        (PackageExporter, _saving(overlay, "f", 1)),
        (PackageImporter, _loading(overlay, "file_or_buffer", 1)),
    ):
        owner.__init__ = make(owner.__init__)  # type: ignore[method-assign]


def _replace_writer(overlay: Overlay) -> None:
    """torch.distributed.checkpoint's writers know where they write; a reader finds it by name."""
    from torch.distributed.checkpoint import filesystem

    # The class that FileSystemWriter and those for other file systems have in common.
    writer: Any = next(c for c in filesystem.FileSystemWriter.__mro__ if "reset" in vars(c))
    writer.__init__ = _with_path("path", 1, overlay.claim_folder)(writer.__init__)
    writer.reset = _with_path("checkpoint_id", 1, overlay.claim_folder)(writer.reset)
    original = writer.prepare_local_plan

    @functools.wraps(original)
    def prepare_local_plan(self: Any, *args: Any, **kwargs: Any) -> Any:
        overlay.save_folder(self.path)
        return original(self, *args, **kwargs)

    writer.prepare_local_plan = prepare_local_plan


def _replace_async_save(overlay: Overlay) -> None:
    """It may save in another process, that is told where."""
    from torch.distributed.checkpoint import state_dict_saver as saver

    modules: list[Any] = [saver, sys.modules.get("torch.distributed.checkpoint")]
    original = saver.async_save
    function = _with_path("checkpoint_id", 1, overlay.save_folder)(original)
    for module in modules:
        if getattr(module, "async_save", None) is original:
            module.async_save = function


def _replace_safetensors(overlay: Overlay) -> None:
    """Its files are written and mapped by Rust. Its other modules take these functions from it."""
    package = sys.modules["safetensors"]
    makers = {
        "serialize_file": _saving(overlay, "filename", 1),
        "safe_open": _loading(overlay, "filename", 0),
    }
    modules = [module for name, module in sys.modules.items() if name.startswith("safetensors.")]
    for name, make in makers.items():
        original = getattr(package, name)
        function = make(original)
        for module in (package, *modules):
            if getattr(module, name, None) is original:
                setattr(module, name, function)


def _saving(overlay: Overlay, name: str, position: int) -> Callable[[Function], Function]:
    return _with_path(name, position, overlay.claim)


def _loading(overlay: Overlay, name: str, position: int) -> Callable[[Function], Function]:
    return _with_path(name, position, overlay.loading)


def _with_path(
    name: str, position: int, place: Callable[[Any], Any]
) -> Callable[[Function], Function]:
    """Makes of a function one whose argument, given by name or by position, is another path."""

    def make(original: Function) -> Function:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if name in kwargs:
                kwargs[name] = place(kwargs[name])
            elif len(args) > position:
                args = (*args[:position], place(args[position]), *args[position + 1 :])
            return original(*args, **kwargs)

        return call

    return make
