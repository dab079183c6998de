"""Who beside this user can change a file of settings."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def others_can_write(path: str | os.PathLike[str]) -> str | None:
    """A line that says how others than this user and root can change the file or put another in its
    place, and what to do; None where they cannot, or nothing can be seen of it.
    """
    file = Path(path)
    try:
        own, folder = file.stat(), file.resolve().parent
        around = folder.stat()
    except (OSError, RuntimeError):  # RuntimeError: a loop of links
        return None
    if own.st_uid not in (0, os.geteuid()):
        why, remedy = f"it belongs to {_name(own.st_uid)}", "look at it, and use a copy of your own"
    elif own.st_mode & _OTHERS_WRITE:
        whose = "everybody" if own.st_mode & stat.S_IWOTH else "its group"
        why = f"{whose} may write it (mode {stat.S_IMODE(own.st_mode):04o})"
        remedy = f"look at it, then chmod go-w {file}"
    elif around.st_mode & stat.S_IWOTH and not around.st_mode & stat.S_ISVTX:
        why = f"everybody may replace files in {folder} (mode {stat.S_IMODE(around.st_mode):04o})"
        remedy = "look at it, and keep it elsewhere"
    else:
        return None
    return f"{file}: others can change what it sets: {why}; {remedy}"


def _name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"
