"""Python's functions for files, for paths of which some are the trial's: what goes in their place.

Each maker takes the overlay and the original, and returns what is to be called in its stead. Paths
that are not the trial's pass through, with what was given beside them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from nccltune.worker.attach import moves
from nccltune.worker.attach.entries import Entries
from nccltune.worker.attach.overlay import Overlay
from nccltune.worker.attach.paths import BESIDE, REAL, failure, is_folder, lexists, text

Function = Callable[..., Any]

# Reading


def make_read(overlay: Overlay, original: Function, *, link: bool = False) -> Function:
    """With `link` a symbolic link is read itself."""

    def read(path: Any, *args: Any, **kwargs: Any) -> Any:
        key = overlay.ours(path)
        if key is not None and kwargs.get("dir_fd") is None:
            path = overlay.view(path, key, follow=not link and kwargs.get("follow_symlinks", True))
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
        key = overlay.ours(path)
        if key is None or kwargs.get("dir_fd") is not None:
            return original(path, *args, **kwargs)
        seen = overlay.view(path, key, follow=kwargs.get("follow_symlinks", True))
        if lexists(seen) and not overlay.is_below(str(text(seen))):
            return None
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
        key = overlay.ours(file)
        if key is None and ("w" in mode or "+" in mode) and str(text(file)).endswith(BESIDE):
            key = overlay.guard(file)
        if key is None and mode[:1] in "wax":
            overlay.making(file)
        if key is not None:
            opener = _opener(overlay, file, key, mode, opener)
        return original(file, mode, buffering, encoding, errors, newline, closefd, opener)

    return open


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
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        key = overlay.ours(path) if dir_fd is None else None
        if key is None and dir_fd is None and writes and not flags & os.O_APPEND:
            key = overlay.guard(path)
        if key is None:
            if flags & os.O_CREAT and dir_fd is None:
                overlay.making(path)
            return original(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_CREAT and flags & os.O_EXCL:
            if overlay.is_there(key):
                raise failure(errno.EEXIST, path)
            # Nothing of the user's can be at a name that must be new, as with temporary files.
            if is_folder(os.path.dirname(key)) and not overlay.is_hidden(key):
                descriptor = original(overlay.real(path, key), flags, mode)
                overlay.own.add(key)
                return descriptor
        if writes and (flags & os.O_CREAT or overlay.is_seen(path, key)):
            place = overlay.writing(path, key, keep=not flags & os.O_TRUNC)
        else:
            place = overlay.view(path, key)
        return original(place, flags, mode)

    return open


def make_mkdir(overlay: Overlay, original: Function) -> Function:
    def mkdir(path: Any, *args: Any, **kwargs: Any) -> Any:
        given = text(path) if kwargs.get("dir_fd") is None else None
        key = overlay.ours(given)
        if key is None or overlay.is_missing(key, path):
            original(path if key is None else overlay.real(path, key), *args, **kwargs)
            if given is not None and not overlay.is_below(given):
                overlay.own.add(overlay.key(given))
            return
        if overlay.is_there(key):
            raise failure(errno.EEXIST, path)
        os.makedirs(os.path.dirname(overlay.place(key)), exist_ok=True)
        original(overlay.place(key), *args, **kwargs)
        overlay.changed()

    return mkdir


# Deleting


def make_remove(overlay: Overlay, original: Function) -> Function:
    def remove(path: Any, *, dir_fd: int | None = None) -> Any:
        key = None
        if dir_fd is None:
            key = overlay.ours(path) or overlay.guard(path)
        if key is None:
            return original(path, dir_fd=dir_fd)
        place, users = overlay.place(key), overlay.is_users(key)
        if lexists(place):
            original(place)
        elif not users and lexists(key):
            raise failure(errno.ENOENT, path)
        elif not users or is_folder(key, follow=False):
            return original(overlay.real(path, key))  # for the error
        if users and key in overlay.own:
            original(overlay.real(path, key))
        elif users:
            overlay.spare(key)
        overlay.changed()

    return remove


def make_rmdir(overlay: Overlay, original: Function) -> Function:
    def rmdir(path: Any, *, dir_fd: int | None = None) -> Any:
        given = text(path) if dir_fd is None else None
        if given is None:
            return original(path, dir_fd=dir_fd)
        names, key = overlay.names(given), overlay.key(given)
        users, named = overlay.is_users(key), overlay.ours(given) is not None
        if names is None and not (named and users and not REAL.listdir(key)):
            return original(overlay.real(path, key))
        if names:
            raise failure(errno.ENOTEMPTY, path)
        if is_folder(overlay.place(key), follow=False):
            original(overlay.place(key))
        if users and (named or REAL.listdir(key)):
            overlay.spare(key)
        elif users:
            original(overlay.real(path, key))
        overlay.changed()

    return rmdir


def make_rmtree(overlay: Overlay, original: Function) -> Function:
    def rmtree(path: Any, *args: Any, **kwargs: Any) -> Any:
        given = text(path) if kwargs.get("dir_fd") is None else None
        if given is None or overlay.is_below(key := overlay.key(given)):
            return original(path, *args, **kwargs)
        place, users = overlay.place(key), overlay.is_users(key)
        covered = is_folder(place, follow=False)
        spared = users and overlay.is_protected(key) and is_folder(key, follow=False)
        if covered:
            original(place, *args, **kwargs)
        if spared:
            overlay.spare(key)
        elif users or not covered:
            # Once hidden from the script, it is not there for it.
            real = overlay.real(path, key) if users or not lexists(key) else place
            original(real, *args, **kwargs)
        overlay.changed()

    return rmtree


# From one path to another


def make_rename(overlay: Overlay, original: Function) -> Function:
    def rename(
        src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> Any:
        at = src_dir_fd is not None or dst_dir_fd is not None
        if at or not moves.concerns(overlay, src, dst):
            original(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            return None if at else overlay.made_from(src, dst)
        moves.rename(overlay, src, dst)

    return rename


def make_link(overlay: Overlay, original: Function) -> Function:
    def link(src: Any, dst: Any, **kwargs: Any) -> Any:
        at = kwargs.get("src_dir_fd") is not None or kwargs.get("dst_dir_fd") is not None
        if at or (overlay.ours(src) is None and overlay.ours(dst) is None):
            return original(src, dst, **kwargs)
        moves.link(overlay, src, dst)

    return link


def make_symlink(overlay: Overlay, original: Function) -> Function:
    def symlink(
        src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None
    ) -> Any:
        source = text(src)
        if source is not None and text(dst) is not None and dir_fd is None:
            if overlay.ours(moves.pointed(source, dst)) or overlay.ours(dst):
                return moves.symlink(overlay, source, dst)
        overlay.changed()
        return original(src, dst, target_is_directory, dir_fd=dir_fd)

    return symlink


def make_copy(overlay: Overlay, original: Function) -> Function:
    """A copy of a checkpoint is one, whatever its name."""

    def copy(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        target = text(dst)
        if target is not None and overlay.ours(src) is not None and overlay.ours(dst) is None:
            key = overlay.key(target)
            if not overlay.is_below(key) and key not in overlay.own:
                overlay.mark(key)
        return original(src, dst, *args, **kwargs)

    return copy
