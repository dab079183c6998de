"""Two layers of files: the trial's checkpoints lie over the user's, which stay as they are.

As with a union mount, but for one process and for checkpoints alone. What belongs at the absolute
path P for the script lies at `folder` + P and covers what is at P for real. What the script deletes
of the user's own is hidden from it, and from the other ranks, and stays where it is.

A path is the trial's
* by its name, which every rank sees alike: an ending of checkpoints, or below a folder with such a
  name or one like `checkpoint-500`;
* by a mark, which this process alone knows: it was named in torch.save or as a checkpoint's folder,
  or something of the trial's was renamed or copied to it.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

from nccltune.worker.attach.paths import (
    BESIDE,
    MAYBE,
    NAME,
    REAL,
    caches,
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
_MOST_FOLDERS = 4096
_MOST_LINKS = 40  # as in Linux


class Overlay:
    """What the script saves in this process, below `folder`, and what is hidden from it.

    A *key* is the path that says which file is meant: absolute, its folder without symbolic links.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = os.path.realpath(folder)
        os.makedirs(self.folder, exist_ok=True)
        self.saved: dict[str, str] = {}
        """key -> the path as the script gave it, in the order of the first save to each."""
        self._asked: dict[str, str] = {}
        self.spared: set[str] = set()
        """Keys of the user's that the script wanted to delete or to move."""
        self.own: set[str] = set()
        """Keys that this process has made for real, where nothing was before."""
        self._marks: set[str] = set()
        self._mark_names: set[str] = set()
        self._hidden: set[str] = set()
        self._hidden_file = os.path.join(self.folder, _HIDDEN)
        self._hidden_read = 0
        self._folders: dict[str, str] = {}
        self._depth = threading.local()
        self._began_in = os.path.join(os.getcwd(), "")
        self._caches = caches()

    # Which paths

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
        return None if key in self.own or key.startswith(self._caches) else key

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
            if depth > _MOST_LINKS:  # they lead in a circle
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
        if size > self._hidden_read:
            with REAL.open(self._hidden_file, "rb") as file:
                file.seek(self._hidden_read)
                lines = file.read().rpartition(b"\n")[0]
            self._hidden_read += len(lines) + 1
            self._hidden.update(json.loads(line) for line in lines.splitlines())
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
        if key.startswith(self._caches):
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
        if self.is_below(key) or key in self.own or key.startswith(self._caches):
            return None
        try:
            found = REAL.lstat(key)
        except (OSError, ValueError):
            return None
        if stat.S_ISLNK(found.st_mode):
            guarded = self.is_protected(key)
        else:
            names = REAL.listdir(os.path.dirname(key)) if key.endswith(BESIDE) else ()
            guarded = any(NAME.search(name) for name in names)
        if not guarded:
            return None
        self.mark(key)
        return key

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
        for _ in range(_MOST_LINKS):
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
        place, users = self.place(key), self.is_users(key) and os.path.exists(key)
        if lexists(place):
            if (source := pinned(place)) is not None:
                REAL.unlink(place)
                if keep:
                    copy_file(source, place)
            elif is_link(place):
                end = self._end_of(place)
                return self.writing(end, end.removeprefix(self.folder), keep=keep)
        elif self.is_missing(key, path) or (users and not stat.S_ISREG(REAL.stat(key).st_mode)):
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
        """It is written now."""
        place = self.claim_folder(path)
        key = str(text(place)).removeprefix(self.folder)
        if key in self._asked:
            self.saved.setdefault(key, self._asked[key])
        return place

    def loading(self, path: Any) -> Any:
        """What an explicit load of this path is to read, also what another rank has saved."""
        given = text(path)
        if given is None:
            return path
        key = self.ours(given) or self.key(given)
        return path if self.is_below(key) else self.view(path, key)
