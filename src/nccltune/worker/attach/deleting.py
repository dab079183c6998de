"""Python's functions that delete: what goes in their place, so that the user's is only hidden."""

from __future__ import annotations

import errno
from typing import Any

from nccltune.worker.attach.files import Function
from nccltune.worker.attach.overlay import Overlay
from nccltune.worker.attach.paths import REAL, at, failure, is_folder, lexists, text


def make_remove(overlay: Overlay, original: Function) -> Function:
    def remove(path: Any, *, dir_fd: int | None = None) -> Any:
        named = at(path, dir_fd)
        key = overlay.ours(named) or overlay.guard(named, follow=False)
        if key is None:
            return original(path, dir_fd=dir_fd)
        place, users = overlay.place(key), overlay.is_users(key)
        if lexists(place):
            original(place)
        elif not users and lexists(key):
            raise failure(errno.ENOENT, path)
        elif not users or is_folder(key, follow=False):
            return original(overlay.real(named, key))  # for the error
        if users and overlay.is_own(key):
            original(overlay.real(named, key))
        elif users:
            overlay.spare(key)
        overlay.changed()

    return remove


def make_rmdir(overlay: Overlay, original: Function) -> Function:
    def rmdir(path: Any, *, dir_fd: int | None = None) -> Any:
        given = text(at(path, dir_fd))
        if given is None or overlay.is_below(key := overlay.key(given)):
            return original(path, dir_fd=dir_fd)
        names, users = overlay.names(given), overlay.is_users(key)
        protected = users and is_folder(key, follow=False) and overlay.is_protected(key)
        if names is None and not (protected and not REAL.listdir(key)):
            return original(overlay.real(given, key))
        if names:
            raise failure(errno.ENOTEMPTY, path)
        if is_folder(overlay.place(key), follow=False):
            original(overlay.place(key))
        if users and (protected or REAL.listdir(key)):
            overlay.spare(key)
        elif users:
            original(overlay.real(given, key))
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
