"""Two layers of files: what is the trial's lies over the user's, which stays as it is.

As with a union mount, but for the ranks of one trial, for checkpoints, and for what was there
before and is written to. What belongs at the absolute path P for the script lies at `folder` + P
and covers what is at P for real. What the script deletes of the user's own is hidden from it, and
from the other ranks, and stays where it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from pathlib import Path
from typing import Any

from nccltune.worker.attach.journal import NAMES
from nccltune.worker.attach.keys import MOST_LINKS, Keys
from nccltune.worker.attach.paths import (
    NAME,
    POINTERS,
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

MOST_COPIED = 64 << 20
"""Bytes of a file of the user's that is copied so that the trial can change or append to it. Larger
ones are data sets, most of which are mapped so without being changed; they are opened as they are.
"""

_COPIES = ".copies"


class Overlay(Keys):
    """What the script saves in this process, below `folder`, and what is hidden from it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.saved: dict[str, str] = {}
        """key -> the path as the script gave it, in the order of the first save to each."""
        self.spared: set[str] = set()
        """Keys of the user's that the script wanted to delete or to move."""
        self._asked: dict[str, str] = {}

    # What is the user's

    def is_users(self, key: str) -> bool:
        """Whether something is there for real that the script may see."""
        return lexists(key) and not self.is_hidden(key)

    def is_there(self, key: str) -> bool:
        """Whether the script sees anything there, be it a link that leads nowhere."""
        return lexists(self.place(key)) or self.is_users(key)

    def spare(self, key: str) -> None:
        """Leave the user's own alone where the script wants it gone."""
        self.spared.add(key)
        if is_folder(key, follow=False):
            self._remove_own(key)
        self.hide(key)
        self.mark(key)

    def _remove_own(self, folder: str) -> None:
        """What the trial itself has made in a folder of the user's."""
        below = [each for each in tuple(self.own) if each.startswith(folder + os.sep)]
        for each in sorted(below, reverse=True):  # a folder after what is in it
            with contextlib.suppress(OSError):
                (REAL.rmdir if is_folder(each, follow=False) else REAL.unlink)(each)

    def remove_empty(self) -> None:
        """Folders that the trial has made for checkpoints, which lie elsewhere: a script may look
        for the newest such folder when it resumes.
        """
        for key in sorted(self.own, reverse=True):
            if is_folder(self.place(key)):
                with contextlib.suppress(OSError):  # not empty, mostly
                    REAL.rmdir(key)

    def is_protected(self, key: str) -> bool:
        """Whether what is there for real is not the trial's own and no one else's to delete. Among
        what is there for the time being that is so for checkpoints.
        """
        if self.is_own(key):
            return False
        if self.ours(key) is not None:
            return True
        if self.is_cache(key):
            return False
        return self._holds_checkpoints(key) if self.is_free(key) else lexists(key)

    def _holds_checkpoints(self, folder: str) -> bool:
        try:
            with REAL.scandir(folder) as found:
                entries = [each for each in found if not self.is_own(each.path)]
        except OSError:
            return False
        return any(
            NAME.search(each.name)
            or (each.is_dir(follow_symlinks=False) and self._holds_checkpoints(each.path))
            for each in entries
        )

    def guard(self, path: Any, *, follow: bool = True, copied: bool = False) -> str | None:
        """The key of a path that the script is about to write to or wants gone, where something of
        the user's is: it is the trial's from now on. None where that needs no care.

        `follow`: a link stands for what it leads to. `copied`: what it holds is to be kept, for
        which large files are not copied.
        """
        given = text(path)
        if given is None:
            return None
        key = self.key(given)
        if self.is_at_risk(key, follow=follow, copied=copied):
            self.mark(key)
            return key
        return None

    def is_at_risk(self, key: str, *, follow: bool = True, copied: bool = False) -> bool:
        """Whether something of the user's is there that would be harmed, as `guard` says it."""
        end = key
        try:
            found = REAL.lstat(key)
            if follow and stat.S_ISLNK(found.st_mode):
                end = os.path.realpath(key)
                found = REAL.lstat(end)
        except FileNotFoundError:
            new = os.path.basename(key) in POINTERS and end == key
            return new and key not in self.own and not self.is_free(key)
        except (OSError, ValueError):
            return False
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISLNK(found.st_mode):
            return False
        if copied and found.st_size > MOST_COPIED:
            return False
        return not self.is_own(end) and not self.is_free(end)

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
        every = map(os.path.split, tuple(self._hidden))
        gone = {name for folder, name in every if folder == key}
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
        return sorted(seen - NAMES - {_COPIES})

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
                    self._copy(source, place)
            elif is_link(place):
                end = self._end_of(place)
                self.mark(end.removeprefix(self.folder))
                return self.writing(end, end.removeprefix(self.folder), keep=keep)
        elif self.is_missing(key, path) or (users and not stat.S_ISREG(users)):
            return self.real(path, key)
        else:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if users and keep:
                self._copy(key, place)
        self.saved.setdefault(key, str(text(path)))
        return place

    def _copy(self, source: str, place: str) -> None:
        """Whole or not at all: other ranks may want the same. The first copy counts."""
        folder = os.path.join(self.folder, _COPIES)
        os.makedirs(folder, exist_ok=True)
        copy = os.path.join(folder, f"{os.getpid()}-{threading.get_ident()}")
        copy_file(source, copy)
        try:
            REAL.link(copy, place)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            copy_file(source, place)
        finally:
            REAL.unlink(copy)

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

    def claim(self, path: Any, *, keep: bool = False) -> Any:
        """The same for an explicit save, which makes the path the trial's."""
        given = text(path)
        if given is None:
            return path
        key = self.ours(given) or self.key(given)
        if self.is_below(key) or key in self.own:
            return path
        place = self.writing(given, key, keep=keep)
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
