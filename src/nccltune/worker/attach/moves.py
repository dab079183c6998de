"""Renames, links and copies: what goes in the place of Python's functions, and what they do where
one side is the trial's or the user's own.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from nccltune.worker.attach.files import Function
from nccltune.worker.attach.overlay import Overlay
from nccltune.worker.attach.paths import (
    REAL,
    at,
    copy_file,
    failure,
    is_folder,
    is_link,
    lexists,
    pin,
    text,
)


def make_rename(overlay: Overlay, original: Function) -> Function:
    def rename(
        src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> Any:
        source, target = at(src, src_dir_fd), at(dst, dst_dir_fd)
        known = text(source) is not None and text(target) is not None
        if known and _concerns(overlay, source, target):
            _rename(overlay, source, target)
            return
        original(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if known:
            overlay.made_from(source, target)

    return rename


def make_link(overlay: Overlay, original: Function) -> Function:
    """A hard link to the user's own would be written through."""

    def link(
        src: Any,
        dst: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> Any:
        source, target = at(src, src_dir_fd), at(dst, dst_dir_fd)
        if text(source) is not None and text(target) is not None:
            ours = overlay.ours(source) is not None or overlay.ours(target) is not None
            if ours or overlay.is_at_risk(overlay.key(os.fsdecode(source))):
                return _link(overlay, source, target)
            overlay.making(target)
        return original(
            src,
            dst,
            src_dir_fd=src_dir_fd,
            dst_dir_fd=dst_dir_fd,
            follow_symlinks=follow_symlinks,
        )

    return link


def make_symlink(overlay: Overlay, original: Function) -> Function:
    def symlink(
        src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None
    ) -> Any:
        source, target = text(src), at(dst, dir_fd)
        if source is not None and text(target) is not None:
            if overlay.ours(_pointed(source, target)) or overlay.ours(target):
                return _symlink(overlay, source, target)
            overlay.making(target)
        overlay.changed()
        return original(src, dst, target_is_directory, dir_fd=dir_fd)

    return symlink


def make_copy(overlay: Overlay, original: Function) -> Function:
    """A copy of a checkpoint is one, whatever its name."""

    def copy(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        target = text(dst)
        if target is not None and overlay.ours(src) is not None and overlay.ours(dst) is None:
            key = overlay.key(target)
            if not overlay.is_below(key) and not overlay.is_own(key):
                overlay.mark(key)
        return original(src, dst, *args, **kwargs)

    return copy


def _concerns(overlay: Overlay, source: Any, target: Any) -> bool:
    """Whether a rename is more than the operating system's business."""
    if overlay.ours(source) is not None:
        return True
    key = overlay.key(os.fsdecode(source))
    if is_folder(key, follow=False) and not overlay.is_below(key):
        if is_folder(overlay.place(key)) or overlay.is_protected(key):
            return True
        new = overlay.key(os.fsdecode(target))
        if overlay.ours(target) is not None or overlay.is_hidden(new):
            return True
        return is_folder(new, follow=False) and overlay.names(new) is not None
    guarded = overlay.guard(source, follow=False) is not None
    guarded |= overlay.guard(target, follow=False) is not None
    return guarded or overlay.ours(target) is not None


def _rename(overlay: Overlay, source: Any, target: Any) -> None:
    """What the script sees at one path it sees at the other from now on. What the trial made is
    moved; the user's own stays, and links to it stand at the new place.
    """
    old, new = overlay.key(os.fsdecode(source)), overlay.key(os.fsdecode(target))
    # A script may know where its files lie, from a checkpoint's writer.
    old, new = old.removeprefix(overlay.folder), new.removeprefix(overlay.folder)
    covered, users = lexists(overlay.place(old)), overlay.is_users(old)
    if not (covered or users) or not overlay.has_folder(os.path.dirname(new)):
        raise failure(errno.ENOENT, source, target)
    if old == new:
        return
    if new.startswith(old + os.sep):
        raise failure(errno.EINVAL, source, target)
    _check(overlay, source, old, target, new)
    named = overlay.ours(target) is not None
    plain = users and not named and overlay.ours(source) is None
    if plain and not overlay.is_protected(old) and not (is_folder(new) and REAL.listdir(new)):
        # A folder some of whose files lie in ours.
        REAL.rename(old, new)
        if covered:
            _take(overlay.place(old), overlay.place(new))
        overlay.carry(old, new)
    else:
        _move(overlay, old, new)
        if not named:
            overlay.mark(new)
    if covered or overlay.is_own(old):
        overlay.renamed(old, new, os.fsdecode(target))
    overlay.changed()


def _move(overlay: Overlay, old: str, new: str) -> None:
    """To a place below our folder."""
    users, place = overlay.is_users(old), overlay.place(new)
    if lexists(overlay.place(old)):
        _take(overlay.place(old), place)
    elif lexists(place) and not is_folder(place, follow=False):
        REAL.unlink(place)
    if users:
        own = overlay.is_own(old)
        _link_all(overlay, old, new)
        if not own:
            overlay.spare(old)


def _check(overlay: Overlay, source: Any, old: str, target: Any, new: str) -> None:
    """What the operating system does not let be replaced."""
    folder = overlay.has_folder(old, follow=False)
    if overlay.has_folder(new, follow=False):
        names = overlay.names(new)
        if not folder:
            raise failure(errno.EISDIR, source, target)
        if REAL.listdir(new) if names is None else names:
            raise failure(errno.ENOTEMPTY, source, target)
    elif folder and overlay.is_there(new):
        raise failure(errno.ENOTDIR, source, target)


def _take(source: str, target: str, *, replace: bool = True) -> None:
    """Move what is at `source` for real, from another file system too, into what is there."""
    if is_folder(source, follow=False) and is_folder(target, follow=False):
        for name in REAL.listdir(source):
            _take(os.path.join(source, name), os.path.join(target, name), replace=replace)
        REAL.rmdir(source)
        return
    if lexists(target) and not replace:
        REAL.unlink(source)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        REAL.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _take_across(source, target)


def _take_across(source: str, target: str) -> None:
    if is_folder(source, follow=False):
        REAL.mkdir(target)
        _take(source, target)
        return
    if lexists(target):
        REAL.unlink(target)
    if is_link(source):
        REAL.symlink(REAL.readlink(source), target)
    else:
        copy_file(source, target)
    REAL.unlink(source)


def _link_all(overlay: Overlay, old: str, new: str) -> None:
    """Links to the user's files, where nothing of the trial's stands already: no copies of what may
    be large. What this trial made is moved.
    """
    place = overlay.place(new)
    if overlay.is_own(old):
        _take(old, place, replace=False)
    elif is_folder(old, follow=False):
        os.makedirs(place, exist_ok=True)
        for name in REAL.listdir(old):
            below = os.path.join(old, name)
            if not overlay.is_hidden(below):
                _link_all(overlay, below, os.path.join(new, name))
    elif not lexists(place):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if is_link(old):
            REAL.symlink(_leading(overlay, REAL.readlink(old), new), place)
        else:
            pin(old, place)


def _link(overlay: Overlay, source: Any, target: Any) -> None:
    """A hard link to what the trial saved; what is the user's own is never written through it."""
    old = overlay.key(os.fsdecode(source))
    place = _new_place(overlay, source, target)
    if lexists(overlay.place(old)):
        REAL.link(overlay.place(old), place)
    elif overlay.is_users(old):
        pin(old, place)
    else:
        raise failure(errno.ENOENT, source, target)


def _symlink(overlay: Overlay, source: str, target: Any) -> None:
    """A link below our folder, that leads to what the script sees at its end."""
    place = _new_place(overlay, source, target)
    REAL.symlink(_leading(overlay, source, target), place)
    overlay.changed()


def _leading(overlay: Overlay, source: str, target: Any) -> str:
    """What a link below our folder is to say, that says `source` for the script."""
    end = overlay.key(_pointed(source, target))
    if overlay.is_users(end) and not lexists(overlay.place(end)):
        return end
    return overlay.place(end) if os.path.isabs(source) and not overlay.is_below(end) else source


def _pointed(source: str, target: Any) -> str:
    """The path that a symbolic link at `target` with this text leads to."""
    return os.path.join(os.path.dirname(os.path.abspath(os.fsdecode(target))), source)


def _new_place(overlay: Overlay, source: Any, target: Any) -> str:
    """The place of something that is to be made at `target`, the trial's from now on."""
    new = overlay.key(os.fsdecode(target))
    place = overlay.place(new)
    if overlay.is_there(new):
        raise failure(errno.EEXIST, source, target)
    if not overlay.has_folder(os.path.dirname(new)):
        raise failure(errno.ENOENT, source, target)
    if overlay.ours(target) is None:
        overlay.mark(new)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    return place
