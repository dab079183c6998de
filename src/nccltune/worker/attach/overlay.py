"""Two layers of files: the trial's checkpoints lie over the user's, which stay as they are.

As with a union mount, but for one process and for checkpoints alone. What belongs at the absolute
path P for the script lies at `folder` + P and covers what is at P for real. What the script deletes
of the user's own is hidden from it, and from the other ranks, and stays where it is.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from nccltune.worker.attach.keys import MOST_LINKS, Keys
from nccltune.worker.attach.paths import (
    BESIDE,
    NAME,
    REAL,
    copy_file,
    failure,
    is_folder,
    is_link,
    lexists,
    mode,
    pinned,
    text,
    upwards,
)

_HIDDEN = ".hidden-from-script"


class Overlay(Keys):
    """What the script saves in this process, below `folder`, and what is hidden from it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        os.makedirs(self.folder, exist_ok=True)
        self.saved: dict[str, str] = {}
        """key -> the path as the script gave it, in the order of the first save to each."""
        self.spared: set[str] = set()
        """Keys of the user's that the script wanted to delete or to move."""
        self._asked: dict[str, str] = {}
        self._hidden: set[str] = set()
        self._hidden_file = os.path.join(self.folder, _HIDDEN)
        self._hidden_read = 0

    # What of the user's is hidden

    def hide(self, key: str) -> None:
        """From now on the script sees what it saved at and below this path itself, and no more."""
        self._hidden.add(key)
        descriptor = REAL.os_open(self._hidden_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        with REAL.open(descriptor, "ab", buffering=0) as file:
            file.write(json.dumps(key).encode() + b"\n")
        self.changed()

    def is_hidden(self, key: str) -> bool:
        self._read_hidden()
        return bool(self._hidden) and any(each in self._hidden for each in upwards(key))

    def _read_hidden(self) -> None:
        """What other ranks have hidden since the last look."""
        try:
            size = REAL.stat(self._hidden_file).st_size
        except FileNotFoundError:
            return
        start = self._hidden_read
        if size > start:
            with REAL.open(self._hidden_file, "rb") as file:
                file.seek(start)
                lines, end, _ = file.read().rpartition(b"\n")
            self._hidden.update(json.loads(line) for line in lines.splitlines())
            self._hidden_read = start + len(lines + end)
            self.changed()

    def is_users(self, key: str) -> bool:
        """Whether something is there for real that the script may see."""
        return lexists(key) and not self.is_hidden(key)

    def is_there(self, key: str) -> bool:
        """Whether the script sees anything there, be it a link that leads nowhere."""
        return lexists(self.place(key)) or self.is_users(key)

    def spare(self, key: str) -> None:
        """Leave the user's own alone where the script wants it gone."""
        self.spared.add(key)
        self.hide(key)
        self.mark(key)

    def is_protected(self, key: str) -> bool:
        """Whether what is there for real is a checkpoint, a link to one or a folder with some, that
        this process has not made.
        """
        if self.is_own(key):
            return False
        if self.ours(key) is not None:
            return True
        if self.is_cache(key):
            return False
        if is_link(key):
            target = os.path.realpath(key)
            return self.ours(target) is not None or self._holds_checkpoints(target)
        spared = any(each.startswith(key + os.sep) for each in self.spared)
        return spared or self._holds_checkpoints(key)

    def _holds_checkpoints(self, folder: str) -> bool:
        if not is_folder(folder):
            return False
        try:
            with REAL.scandir(folder) as found:
                entries = list(found)
        except OSError:
            return False
        folders = [each for each in entries if each.is_dir(follow_symlinks=False)]
        return any(NAME.search(each.name) and each.path not in self.own for each in entries) or any(
            self._holds_checkpoints(each.path) for each in folders if each.path not in self.own
        )

    def guard(self, path: Any) -> str | None:
        """The key of a path that has no name of checkpoints, but belongs to one of the user's: a
        link that leads to it, or what describes the weights beside it. It is the trial's then.
        """
        given = text(path)
        if given is None:
            return None
        key = self.key(given)
        if self.is_below(key) or key in self.own or self.is_cache(key):
            return None
        try:
            found = REAL.lstat(key)
        except (OSError, ValueError):
            return None
        if stat.S_ISLNK(found.st_mode):
            guarded = self.is_protected(key)
        else:
            guarded = key.endswith(BESIDE) and _has_checkpoints(os.path.dirname(key))
        if not guarded:
            return None
        self.mark(key)
        return key

    # Reading

    def view(self, path: Any, key: str, *, follow: bool = True) -> Any:
        """What to read for this path: the trial's own file, or the path as it was given.
        FileNotFoundError if the user's is hidden.
        """
        place = self.place(key)
        if kind := mode(place):
            if stat.S_ISLNK(kind):
                place = self._end_of(place) if follow else place
                place = pinned(place) or place
            return os.fsencode(place) if isinstance(path, bytes) else place
        if self.is_hidden(key):
            raise failure(errno.ENOENT, path)
        return self.real(path, key)

    def real(self, path: Any, key: str) -> Any:
        """What names for real what the script means: its path, unless a link of ours is in it."""
        same = path == key or os.path.abspath(os.fsdecode(path)) == key
        return path if same else key

    def is_seen(self, path: Any, key: str) -> bool:
        """Whether the script sees a file or folder there, as os.path.exists says it."""
        try:
            REAL.stat(self.view(path, key))
        except OSError:
            return False
        return True

    def _end_of(self, place: str) -> str:
        """Where a link of ours leads for the script: to a place of ours or a path of the user's."""
        for _ in range(MOST_LINKS):
            if not is_link(place) or pinned(place) is not None:
                return place
            end = os.path.normpath(os.path.join(os.path.dirname(place), REAL.readlink(place)))
            key = self.key(end.removeprefix(self.folder))
            place = self.place(key)
            if self.is_users(key) and not lexists(place):
                return key
        raise failure(errno.ELOOP, place)

    def has_folder(self, key: str, *, follow: bool = True) -> bool:
        """Whether the script sees a folder there."""
        if lexists(self.place(key)):
            return is_folder(self.place(key), follow=follow)
        return is_folder(key, follow=follow) and not self.is_hidden(key)

    def names(self, path: str) -> list[str] | None:
        """What the script sees in a folder; None where that is what is there for real."""
        key = self._without_links(os.path.abspath(path))
        if self.is_below(key):
            return None
        place = self.place(key)
        ours, hidden = is_folder(place), self.is_hidden(key)
        gone = {os.path.basename(each) for each in self._hidden if os.path.dirname(each) == key}
        if not ours and not hidden and not gone:
            given = self.ours(path)  # a link of ours may lead to a folder of the user's
            if given is None or not lexists(self.place(given)):
                return None
            return sorted(REAL.listdir(self.view(path, given)))
        if not ours and hidden:
            raise failure(errno.ENOENT, path)
        seen = set(REAL.listdir(place)) if ours else set()
        if not hidden and is_folder(key):
            seen |= set(REAL.listdir(key)) - gone
        return sorted(seen - {_HIDDEN})

    # Writing

    def writing(self, path: Any, key: str, *, keep: bool) -> Any:
        """Where a file is to be written that the script opens at this path; `keep` copies what it
        holds. The path itself where it cannot be written or is no file.
        """
        place, users = self.place(key), self.is_users(key) and mode(key, follow=True)
        if lexists(place):
            if (source := pinned(place)) is not None:
                REAL.unlink(place)
                if keep:
                    copy_file(source, place)
            elif is_link(place):
                end = self._end_of(place)
                self.mark(end.removeprefix(self.folder))
                return self.writing(end, end.removeprefix(self.folder), keep=keep)
        elif self.is_missing(key, path) or (users and not stat.S_ISREG(users)):
            return self.real(path, key)
        else:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if users and keep:
                copy_file(key, place)
        self.saved.setdefault(key, str(text(path)))
        return place

    def is_missing(self, key: str, path: Any) -> bool:
        """Whether there is no folder to make it in. FileNotFoundError if that is so for the script
        alone.
        """
        folder = os.path.dirname(key)
        if self.has_folder(folder):
            return False
        if is_folder(folder):
            raise failure(errno.ENOENT, path)
        return True

    def renamed(self, old: str, new: str, given: str) -> None:
        """What was saved at one path, or below it, is known by the other from now on."""
        saved: dict[str, str] = {}
        for key, asked in self.saved.items():
            if key == old or key.startswith(old + os.sep):
                key, asked = new + key[len(old) :], given + key[len(old) :]
            saved[key] = asked
        if not any(new in upwards(key) for key in saved):
            saved[new] = given
        self.saved = saved

    def claim(self, path: Any) -> Any:
        """The same for an explicit save, which makes the path the trial's."""
        given = text(path)
        if given is None:
            return path
        key = self.ours(given) or self.key(given)
        if self.is_below(key) or key in self.own:
            return path
        place = self.writing(given, key, keep=False)
        if self.is_below(place):
            self.mark(key)
        return place

    def claim_folder(self, path: Any) -> Any:
        """The same for a checkpoint that is a folder, before it is made. URLs stay as they are."""
        given = text(path)
        if given is None or "://" in given or self.is_below(key := self.key(given)):
            return path
        self.mark(key)
        self._asked[key] = given
        place = self.place(key)
        return Path(place) if isinstance(path, Path) else place

    def save_folder(self, path: Any) -> Any:
        """It is written now. The folders that it is in are made, as its writer would."""
        place = self.claim_folder(path)
        key = str(text(place)).removeprefix(self.folder)
        if key in self._asked:
            self.saved.setdefault(key, self._asked[key])
            with contextlib.suppress(OSError):
                os.makedirs(os.path.dirname(key), exist_ok=True)
        return place

    def loading(self, path: Any) -> Any:
        """What an explicit load of this path is to read, also what another rank has saved."""
        given = text(path)
        if given is None:
            return path
        key = self.ours(given) or self.key(given)
        return path if self.is_below(key) else self.view(path, key)


def _has_checkpoints(folder: str) -> bool:
    try:
        return any(NAME.search(name) for name in REAL.listdir(folder))
    except OSError:
        return False
