"""Python's functions that read and write: what goes in their place, for paths of which some are the
trial's. Writing to what was there before makes it the trial's.

Each maker takes the overlay and the original, and returns what is to be called in its stead. Paths
that are not the trial's pass through, with what was given beside them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from nccltune.worker.attach.entries import Entries
from nccltune.worker.attach.overlay import Overlay
from nccltune.worker.attach.paths import REAL, at, failure, is_folder, lexists, text

Function = Callable[..., Any]

# Reading


def make_read(overlay: Overlay, original: Function, *, link: bool = False) -> Function:
    """With `link` a symbolic link is read itself."""

    def read(path: Any, *args: Any, **kwargs: Any) -> Any:
        named = at(path, kwargs["dir_fd"]) if "dir_fd" in kwargs else path
        key = overlay.ours(named)
        if key is not None:
            path = overlay.view(named, key, follow=not link and kwargs.get("follow_symlinks", True))
            kwargs.pop("dir_fd", None)
        return original(path, *args, **kwargs)

    return read


def make_access(overlay: Overlay, original: Function) -> Function:
    read = make_read(overlay, original)

    def access(path: Any, mode: int, **kwargs: Any) -> Any:
        try:
            return read(path, mode, **kwargs)
        except FileNotFoundError:
            return False

    return access


def make_link_read(overlay: Overlay, original: Function) -> Function:
    return make_read(overlay, original, link=True)


def make_readlink(overlay: Overlay, original: Function) -> Function:
    read = make_link_read(overlay, original)

    def readlink(path: Any, **kwargs: Any) -> Any:
        found = read(path, **kwargs)
        folder = os.fsencode(overlay.folder) if isinstance(found, bytes) else overlay.folder
        return found.removeprefix(folder)

    return readlink


def make_listdir(overlay: Overlay, original: Function) -> Function:
    def listdir(path: Any = None) -> Any:
        names = None if isinstance(path, (bytes, int)) else overlay.names(text(path) or ".")
        return original(path) if names is None else names

    return listdir


def make_scandir(overlay: Overlay, original: Function) -> Function:
    def scandir(path: Any = None) -> Any:
        names = None if isinstance(path, (bytes, int)) else overlay.names(text(path) or ".")
        return original(path) if names is None else Entries(text(path) or ".", names)

    return scandir


# Writing


def make_attribute(overlay: Overlay, original: Function) -> Function:
    """Changes of what is known of a file; of the user's own none is made."""

    def change(path: Any, *args: Any, **kwargs: Any) -> Any:
        named = at(path, kwargs.get("dir_fd"))
        key = overlay.ours(named)
        if key is None:
            return original(path, *args, **kwargs)
        seen = overlay.view(named, key, follow=kwargs.get("follow_symlinks", True))
        if lexists(seen) and not overlay.is_below(str(text(seen))):
            return None
        kwargs.pop("dir_fd", None)
        return original(seen, *args, **kwargs)

    return change


def make_truncate(overlay: Overlay, original: Function) -> Function:
    def truncate(path: Any, length: int) -> Any:
        key = overlay.ours(path) or overlay.guard(path)
        if key is not None:
            seen = overlay.is_seen(path, key)
            path = overlay.writing(path, key, keep=True) if seen else overlay.view(path, key)
        return original(path, length)

    return truncate


def make_open(overlay: Overlay, original: Function) -> Function:
    def open(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        opener = opening(overlay, file, mode, opener)
        return original(file, mode, buffering, encoding, errors, newline, closefd, opener)

    return open


def opening(overlay: Overlay, file: Any, mode: str, opener: Any) -> Any:
    """The opener for a file that the script opens so; the one that it gave where all is well."""
    key = overlay.ours(file)
    if key is None and ("w" in mode or "a" in mode or "+" in mode):
        key = overlay.guard(file, copied="w" not in mode)
    if key is not None:
        return _opener(overlay, file, key, mode, opener)
    if "w" in mode or "a" in mode or "x" in mode:
        overlay.making(file)
    return opener


def _opener(overlay: Overlay, file: Any, key: str, mode: str, opener: Any) -> Any:
    """Opens the trial's file in place of the one that is named; the open file keeps its name."""
    place = file
    if "r" in mode and ("+" not in mode or not overlay.is_seen(file, key)):
        place = overlay.view(file, key)
    elif "r" in mode or "a" in mode:
        place = overlay.writing(file, key, keep=True)
    elif "w" in mode or not overlay.is_there(key):  # with "x" nothing may be there
        place = overlay.writing(file, key, keep=False)
    elif lexists(overlay.place(key)):
        place = overlay.place(key)
    if place is file:
        return opener
    if opener is not None:
        return lambda _, flags: opener(place, flags)
    return lambda _, flags: REAL.os_open(place, flags, 0o666)


def make_os_open(overlay: Overlay, original: Function) -> Function:
    def open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> Any:
        named = at(path, dir_fd)
        key = overlay.ours(named)
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC)
        if key is None and writes and not flags & os.O_EXCL:
            key = overlay.guard(named, copied=not flags & os.O_TRUNC)
        if key is None:
            if flags & os.O_CREAT:
                overlay.making(named)
            return original(path, flags, mode, dir_fd=dir_fd)
        path = named
        if flags & os.O_CREAT and flags & os.O_EXCL:
            if overlay.is_there(key):
                raise failure(errno.EEXIST, path)
            # Nothing of the user's can be at a name that must be new, as with temporary files.
            if is_folder(os.path.dirname(key)) and not overlay.is_hidden(key):
                descriptor = original(overlay.real(path, key), flags, mode)
                overlay.made(key)
                return descriptor
        if writes and (flags & os.O_CREAT or overlay.is_seen(path, key)):
            place = overlay.writing(path, key, keep=not flags & os.O_TRUNC)
            if not flags & os.O_CREAT:  # what the script sees is not there yet
                flags, mode = flags | os.O_CREAT, 0o666
        else:
            place = overlay.view(path, key)
        return original(place, flags, mode)

    return open


def make_mkdir(overlay: Overlay, original: Function) -> Function:
    def mkdir(path: Any, *args: Any, **kwargs: Any) -> Any:
        named = at(path, kwargs.get("dir_fd"))
        key = overlay.ours(named)
        if key is None or overlay.is_missing(key, path):
            original(path if key is None else overlay.real(named, key), *args, **kwargs)
            given = text(named)
            if given is not None and not overlay.is_below(given):
                overlay.made(overlay.key(given))
            return
        kwargs.pop("dir_fd", None)
        if overlay.is_there(key):
            raise failure(errno.EEXIST, path)
        os.makedirs(os.path.dirname(overlay.place(key)), exist_ok=True)
        original(overlay.place(key), *args, **kwargs)
        overlay.changed()

    return mkdir
