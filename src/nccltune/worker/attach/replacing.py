"""Puts what files.py makes in the place of Python's own functions, in this process."""

from __future__ import annotations

import builtins
import functools
import io
import os
import shutil
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from nccltune.worker.attach import deleting, files, moves
from nccltune.worker.attach.files import Function
from nccltune.worker.attach.overlay import Overlay

_READ = ("stat", "statvfs", "listxattr", "getxattr", "chdir")
_ATTRIBUTES = ("chmod", "chown", "lchown", "utime", "setxattr", "removexattr")
# These keep functions of os and open in places of their own: default arguments, class attributes.
_KEEPERS = (
    "pathlib",
    "pathlib._local",
    "pathlib._os",
    "glob",
    "tempfile",
    "shutil",
    "tarfile",
    "bz2",
)


def replace_functions(overlay: Overlay) -> None:
    """Put ours in the place of Python's, in this process, for good."""
    makers: dict[tuple[Any, str], Callable[[Overlay, Function], Function]] = {
        (os, "lstat"): files.make_link_read,
        (os, "access"): files.make_access,
        (os, "readlink"): files.make_readlink,
        (os, "listdir"): files.make_listdir,
        (os, "scandir"): files.make_scandir,
        (os, "truncate"): files.make_truncate,
        (os, "open"): files.make_os_open,
        (os, "mkdir"): files.make_mkdir,
        (os, "rmdir"): deleting.make_rmdir,
        (os, "remove"): deleting.make_remove,
        (os, "unlink"): deleting.make_remove,
        (os, "rename"): moves.make_rename,
        (os, "replace"): moves.make_rename,
        (os, "link"): moves.make_link,
        (os, "symlink"): moves.make_symlink,
        (io, "open"): files.make_open,
        (shutil, "rmtree"): deleting.make_rmtree,
        (shutil, "copyfile"): moves.make_copy,
        (shutil, "copytree"): moves.make_copy,
    }
    makers |= {(os, name): files.make_read for name in _READ}
    makers |= {(os, name): files.make_attribute for name in _ATTRIBUTES}
    ours: dict[Any, Function] = {}
    for (owner, name), make in makers.items():
        original = getattr(owner, name, None)
        if original is not None:
            ours[original] = function = functools.wraps(original)(make(overlay, original))
            function.__module__ = owner.__name__  # where pickle finds it
            setattr(owner, name, function)
    builtins.open = io.open
    _replace_file_io(overlay)
    for supported in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        supported.update(ours[each] for each in list(supported) if each in ours)  # type: ignore[arg-type]
    for module in _KEEPERS:
        if module in sys.modules:
            _replace_kept(sys.modules[module], ours)


def _replace_file_io(overlay: Overlay) -> None:
    """The class itself stays that of every file that open returns."""
    original = io.FileIO

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            if cls is FileIO:
                return isinstance(instance, original)
            return super().__instancecheck__(instance)

        def __subclasscheck__(cls, other: type) -> bool:
            if cls is FileIO:
                return issubclass(other, original)
            return super().__subclasscheck__(other)

    class FileIO(original, metaclass=Meta):  # type: ignore[misc, valid-type]
        def __init__(
            self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None
        ) -> None:
            opener = files.opening(overlay, file, mode, opener)
            super().__init__(file, mode, closefd, opener)

    FileIO.__doc__, FileIO.__module__, FileIO.__qualname__ = original.__doc__, "io", "FileIO"
    io.FileIO = FileIO  # type: ignore[misc]


def _replace_kept(module: Any, ours: dict[Any, Function]) -> None:
    classes = [each for each in vars(module).values() if isinstance(each, type)]
    for owner in [module, *(each for each in classes if each.__module__ == module.__name__)]:
        for name, value in list(vars(owner).items()):
            function = value.__func__ if isinstance(value, staticmethod) else value
            if isinstance(function, FunctionType) and function.__defaults__:
                kept = function.__defaults__
                function.__defaults__ = tuple(_ours(each, ours) for each in kept)
            new = _ours(function, ours)
            if new is not function:
                setattr(owner, name, staticmethod(new) if isinstance(owner, type) else new)


def _ours(value: Any, ours: dict[Any, Function]) -> Any:
    try:
        return ours.get(value, value)
    except TypeError:  # unhashable
        return value
