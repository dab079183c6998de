"""Which file a path of the script's means, and whether it is the trial's."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from nccltune.worker.attach.paths import MAYBE, NAME, caches, lexists, text, upwards

MOST_LINKS = 40  # that lead to each other, as in Linux
_MOST_FOLDERS = 4096


class Keys:
    """A *key* says which file is meant: an absolute path, its folder without symbolic links.

    It is the trial's
    * by its name, which every rank sees alike: an ending of checkpoints, or below a folder with
      such a name or one like `checkpoint-500`;
    * by a mark, which this process alone knows: it was named in torch.save or as a checkpoint's
      folder, or something of the trial's was renamed or copied to it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = os.path.realpath(folder)
        self.own: set[str] = set()
        """Keys that this process has made for real, where nothing was before."""
        self._marks: set[str] = set()
        self._mark_names: set[str] = set()
        self._folders: dict[str, str] = {}
        self._depth = threading.local()
        self._began_in = os.path.join(os.getcwd(), "")
        self._caches = caches()

    def ours(self, path: Any) -> str | None:
        """The key of a path that is the trial's; None for all others."""
        if type(path) is not str:
            path = text(path)
            if path is None:
                return None
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
        self._marks.add(key)
        self._mark_names.add(os.path.basename(key))

    def is_marked(self, key: str) -> bool:
        return bool(self._marks) and any(each in self._marks for each in upwards(key))

    def carry(self, old: str, new: str) -> None:
        """A folder is at another path, for real."""
        if old in self.own:
            self.own.add(new)
        for mark in [each for each in self._marks if each.startswith(old + os.sep)]:
            self.mark(new + mark[len(old) :])

    def making(self, path: Any) -> None:
        """Take note of what this process makes for real, if nothing is there."""
        given = text(path)
        if given is not None and not lexists(key := self.key(given)):
            self.own.add(key)

    def made_from(self, source: Any, target: Any) -> None:
        """It was renamed, for real: a file is often written under another name first."""
        if self.own and (old := self.key(os.fsdecode(source))) in self.own:
            self.own.remove(old)
            self.own.add(self.key(os.fsdecode(target)))

    def is_own(self, key: str) -> bool:
        """Whether this process has made it, or a folder that it is in."""
        return any(each in self.own for each in upwards(key))

    def is_cache(self, key: str) -> bool:
        return key.startswith(self._caches)
