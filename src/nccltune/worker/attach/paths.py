"""Paths as a script gives them, names of checkpoints, and the file functions as they really are."""

from __future__ import annotations

import getpass
import io
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from nccltune.worker.status import LOG_DIR

# As they were before anything was put in their place.
REAL = SimpleNamespace(
    open=io.open,
    os_open=os.open,
    lstat=os.lstat,
    stat=os.stat,
    chmod=os.chmod,
    scandir=os.scandir,
    listdir=os.listdir,
    mkdir=os.mkdir,
    rmdir=os.rmdir,
    unlink=os.unlink,
    rename=os.rename,
    replace=os.replace,
    link=os.link,
    symlink=os.symlink,
    readlink=os.readlink,
)

_ENDING = (
    r"\.(?:pt|pth|th|ptl|pt2|ckpt|safetensors|bin|distcp|metadata|pkl|pickle|onnx|gguf)"
    r"(?![A-Za-z0-9])"
)
_NO_CHECKPOINT = (
    r"(?![^/]*\.(?:log|csv|tsv|txt|md|html|png|out|err|lock|trace\.json(?:\.gz)?)(?:/|$))"
)

MAYBE = re.compile(_ENDING)
"""Cheap: finds every path that NAME finds, apart from those with `checkpoint` or `ckpt` in them."""

NAME = re.compile(rf"{_ENDING}{_NO_CHECKPOINT}|(?:checkpoint|ckpt)[-_]?\d+(?=/|$)")
"""Finds `x.pt`, `x.pth.tar`, `x.pt.tmp`, `x.bin.index.json`, and folders like `checkpoint-500` with
what is in them; not `x.pt.log`, and no locks.
"""

POINTERS = frozenset(
    {
        "latest",
        "last_checkpoint",
        "latest_checkpoint",
        "latest_checkpointed_iteration.txt",
        "checkpoint",
    }
)
"""Names of files that say which checkpoint is the newest: nothing after a trial may follow them."""

LOCK = re.compile(r"(?:^|[/._-])(?:lock|lck)$|/__pycache__/", re.IGNORECASE)
"""Finds files whose only use is that other programs see the very same one."""

_CACHES = (
    "TORCH_HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TRITON_HOME",
    "TRITON_CACHE_DIR",
    "NUMBA_CACHE_DIR",
    "MPLCONFIGDIR",
)
_PIN = "/./"  # leads where "/" does, and no one else writes it


def text(path: Any) -> str | None:
    """The path as a string; None for a file descriptor, an open file and the like."""
    if isinstance(path, str):
        return path
    if isinstance(path, (bytes, os.PathLike)):
        return os.fsdecode(path)
    return None


def mode(path: str, *, follow: bool = False) -> int:
    """What is there, for the functions of stat; 0 for nothing."""
    try:
        return int((REAL.stat if follow else REAL.lstat)(path).st_mode)
    except (OSError, ValueError):
        return 0


def lexists(path: str) -> bool:
    return mode(path) != 0


def is_link(path: str) -> bool:
    return stat.S_ISLNK(mode(path))


def is_folder(path: str, *, follow: bool = True) -> bool:
    return stat.S_ISDIR(mode(path, follow=follow))


def pinned(place: str) -> str | None:
    """The user's file that a link made by `pin` stands for; None for all else."""
    if is_link(place) and (said := REAL.readlink(place)).startswith(_PIN):
        return str(said[len(_PIN) - 1 :])
    return None


def pin(key: str, place: str) -> None:
    """Let the user's file be seen at another path too: a link that the script takes for a file."""
    REAL.symlink(_PIN[:-1] + key, place)


def failure(number: int, *paths: Any) -> OSError:
    """What the operating system says: FileNotFoundError for ENOENT and so on."""
    first, second = (*paths, None)[:2]
    return OSError(number, os.strerror(number), first, None, second)


def caches() -> tuple[str, ...]:
    """Folders for what can be made again, where files named like checkpoints are no one's work; the
    trial's logs too.
    """
    folders = [os.environ[name] for name in (*_CACHES, LOG_DIR) if os.environ.get(name)]
    folders.append(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    folders += ["~/.cache", "~/.triton"]
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())  # as torch._inductor does
        folders.append(os.path.join(tempfile.gettempdir(), f"torchinductor_{user}"))
    except (KeyError, OSError):  # a user without a name
        pass
    return tuple(os.path.realpath(os.path.expanduser(folder)) + os.sep for folder in folders)


def scratch(work: str) -> tuple[str, ...]:
    """Folders for what is there for the time being, and those that are no folders of files; without
    those in which the folder `work` lies, where all the user's files are then.
    """
    folders = ("/dev", "/proc", "/sys", "/tmp", tempfile.gettempdir())
    found = [os.path.join(os.path.realpath(folder), "") for folder in folders]
    below = os.path.join(os.path.realpath(work), "")
    return tuple(folder for folder in found if not below.startswith(folder))


def at(path: Any, dir_fd: int | None) -> Any:
    """The path by itself where it was given beside an open folder; None if that is not known."""
    given = text(path)
    if dir_fd is None or given is None or os.path.isabs(given):
        return path
    try:
        joined = os.path.join(REAL.readlink(f"/proc/self/fd/{dir_fd}"), given)
    except OSError:
        return None
    return os.fsencode(joined) if isinstance(path, bytes) else joined


def upwards(key: str) -> Iterator[str]:
    """The path and the folders that it is in, without the root."""
    while len(key) > 1:
        yield key
        key = os.path.dirname(key)


def copy_file(source: str, target: str) -> None:
    with REAL.open(source, "rb") as old, REAL.open(target, "wb") as new:
        shutil.copyfileobj(old, new, 1 << 20)
    REAL.chmod(target, stat.S_IMODE(REAL.stat(source).st_mode))
