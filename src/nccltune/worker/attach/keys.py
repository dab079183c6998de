"""Which file a path of the script's means, and whether it is the trial's."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from nccltune.worker.attach.journal import Journal
from nccltune.worker.attach.paths import (
    LOCK,
    MAYBE,
    NAME,
    caches,
    is_link,
    lexists,
    scratch,
    text,
    upwards,
)

MOST_LINKS = 40  # that lead to each other, as in Linux
_MOST_FOLDERS = 4096


class Keys:
    """A *key* says which file is meant: an absolute path, its folder without symbolic links.

    It is the trial's
    * by its name: an ending of checkpoints, or below a folder with such a name or one like
      `checkpoint-500`;
    * by a mark, which all ranks know: the trial wrote to something of the user's or wanted it
      gone, it was named in torch.save or as a checkpoint's folder, or something of the trial's was
      renamed or copied to it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = os.path.realpath(folder)
        self.own: set[str] = set()
        """Keys that this trial has made for real, where nothing was before."""
        self._journal = Journal(self.folder)
        self._hidden: set[str] = set()
        self._marks: set[str] = set()
        self._mark_names: set[str] = set()
        self._folders: dict[str, str] = {}
        self._depth = threading.local()
        self._began_in = os.path.join(os.getcwd(), "")
        self._caches = caches()
        self._free = (*self._caches, *scratch(self._began_in))

    def ours(self, path: Any) -> str | None:
        """The key of a path that is the trial's; None for all others."""
        if type(path) is not str:
            path = text(path)
            if path is None:
                return None
        self._hear()
        if (
            MAYBE.search(path) is None
            and "checkpoint" not in path
            and "ckpt" not in path
            and (not self._mark_names or self._mark_names.isdisjoint(path.split("/")))
        ):
            return None
        if self.is_below(path) or self.is_below(key := self.key(path)):
            return None
        # Named by the script, or where a link leads that is named so.
        names = (key,) if path == key else (key, os.path.abspath(path))
        if any(self.is_marked(each) for each in names):
            return key
        # A project may lie in a folder that has such a name itself.
        if not any(NAME.search(each.removeprefix(self._began_in)) for each in names):
            return None
        return None if key in self.own or self.is_cache(key) else key

    def key(self, path: str) -> str:
        folder, _, name = path.rpartition("/")
        found = self._folders.get(folder) if name not in ("", ".", "..") else None
        if found is None:
            folder, name = os.path.split(os.path.abspath(path))
            found = self._without_links(folder)
        return os.path.join(found, name)

    def _without_links(self, folder: str) -> str:
        found = self._folders.get(folder)
        if found is None:
            if len(self._folders) >= _MOST_FOLDERS:
                self._folders.clear()
            depth = getattr(self._depth, "now", 0)
            if depth > MOST_LINKS:  # they lead in a circle
                return folder
            self._depth.now = depth + 1
            try:
                found = self._folders[folder] = os.path.realpath(folder)
            finally:
                self._depth.now = depth
        return found

    def changed(self) -> None:
        """Folders or links were made or taken away: look again where paths lead."""
        self._folders.clear()

    def is_below(self, key: str) -> bool:
        """Whether it lies in the folder of the trial's saves already."""
        return key == self.folder or key.startswith(self.folder + os.sep)

    def place(self, key: str) -> str:
        """Where the trial's own file lies."""
        return self.folder + key

    def mark(self, key: str) -> None:
        """This path, and all below it, is the trial's from now on."""
        if key not in self._marks:
            self._take_note("mark", key)
            self._journal.write("mark", key)

    def is_marked(self, key: str) -> bool:
        return bool(self._marks) and any(each in self._marks for each in upwards(key))

    def hide(self, key: str) -> None:
        """From now on the script sees what it saved at and below this path itself, and no more."""
        self._take_note("hide", key)
        self._journal.write("hide", key)
        self.changed()

    def is_hidden(self, key: str) -> bool:
        self._hear()
        return bool(self._hidden) and any(each in self._hidden for each in upwards(key))

    def _hear(self) -> None:
        """What other ranks have done since the last look."""
        if news := self._journal.news():
            for kind, key in news:
                self._take_note(kind, key)
            self.changed()

    def _take_note(self, kind: str, key: str) -> None:
        if kind == "hide":
            self._hidden.add(key)
        elif kind == "mark":
            self._marks.add(key)
            self._mark_names.add(os.path.basename(key))
        else:
            self.own.add(key)

    def carry(self, old: str, new: str) -> None:
        """A folder is at another path, for real."""
        if old in self.own:
            self.made(new)
        for mark in [each for each in tuple(self._marks) if each.startswith(old + os.sep)]:
            self.mark(new + mark[len(old) :])

    def making(self, path: Any) -> None:
        """Take note of what this process makes for real, if nothing is there."""
        given = text(path)
        if given is None:
            return
        key = self.key(given)
        if is_link(key):  # one that leads nowhere yet
            key = os.path.realpath(key)
        if not lexists(key):
            self.made(key)

    def made(self, key: str) -> None:
        """This trial has made it, or is about to."""
        told = key in self.own or self.is_free(key) or self.is_own(os.path.dirname(key))
        self.own.add(key)
        if not told:
            self._journal.write("own", key)

    def made_from(self, source: Any, target: Any) -> None:
        """It was renamed, for real: a file is often written under another name first."""
        self.own.discard(self.key(os.fsdecode(source)))
        self.made(self.key(os.fsdecode(target)))

    def is_own(self, key: str) -> bool:
        """Whether this trial has made it, or a folder that it is in."""
        return any(each in self.own for each in upwards(key))

    def is_cache(self, key: str) -> bool:
        return key.startswith(self._caches)

    def is_free(self, key: str) -> bool:
        """Whether it may be written over whoever made it: what can be made again, what is there for
        the time being, devices, and locks, which other programs must see too.
        """
        return self.is_below(key) or key.startswith(self._free) or LOCK.search(key) is not None
