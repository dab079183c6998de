"""Ranks that a tuner could not end, found by a tag in their environment: it says whose they are."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nccltune.errors import StudyError
from nccltune.worker.owners import OWNER
from nccltune.worker.owners import TAG as TAG
from nccltune.worker.supervisor import TRACKER, TRACKER_SECONDS, command_of

_SECONDS = 10.0
_PREFIX = "nccltune-"
_SHORT, _LONGEST = "/tmp", 50
_LONGEST_TAG = 1000
_launches = itertools.count()


def new_tag() -> str:
    """For one launch of this process: `OWNER/NUMBER`."""
    return f"{_owner()}/{next(_launches)}"


@functools.cache
def _owner() -> str:
    """`USER.BOOT.NAMESPACE.PID.START`: a process id alone comes again, after a while, after a
    reboot, and in every container.
    """
    return f"{_place()}.{os.getpid()}.{_start_time(os.getpid())}"


def _place() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{os.getuid()}.{boot}.{os.stat('/proc/self/ns/pid').st_ino}"


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on (the name before it can hold anything)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _start_time(pid: int) -> str | None:
    """Clock ticks from boot to the start of a living process."""
    fields = _stat(pid)
    return fields[19] if fields is not None and fields[0] != "Z" else None


def is_orphaned(tag: str) -> bool:
    """Whether the tag is of a tuner of this user, on this boot and in this process namespace, that
    lives no more. What cannot be told is somebody's.
    """
    owner = tag.rpartition("/")[0]
    place, _, process = owner.rpartition(".")[0].rpartition(".")
    return (
        place == _place()
        and process.isdigit()
        and _start_time(int(process)) != owner.rpartition(".")[2]
    )


def _tagged() -> Iterator[tuple[int, str]]:
    """(process id, tag) of everything that was started with one and whose environment we may
    read, which only its user may; never ourselves.
    """
    mark = f"{TAG}=".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            for variable in (entry / "environ").read_bytes().split(b"\0"):
                if variable.startswith(mark):
                    yield int(entry.name), variable[len(mark) :].decode(errors="replace")


def tagged_processes(tag: str) -> list[int]:
    """Processes that were started under this tag."""
    return [pid for pid, found in _tagged() if found == tag]


def own_processes() -> list[int]:
    """What this tuner has started and that is still here, also where it descends from another
    process: ranks of a job step do.
    """
    owner = f"{_owner()}/"
    return [pid for pid, found in _tagged() if found.startswith(owner)]


def end_tagged(tag: str) -> int:
    """End what one launch has left. Returns how many processes were met.

    Raises: StudyError naming those that cannot be ended.
    """
    return _end(lambda found: found == tag)


def end_leftovers(*places: Path) -> int:
    """End what tuners have left that live no more, whatever their study was: it holds GPUs and
    disturbs every measurement. Their temporary folders go too, those in `places` (the cache, the
    studies) among them. Returns how many processes were met.

    Raises: StudyError naming those that cannot be ended.
    """
    met = _end(is_orphaned)
    for folder in _temporary_folders(places):
        if _is_left(folder):
            shutil.rmtree(folder, ignore_errors=True)
    return met


def _temporary_folders(places: Sequence[Path]) -> Iterator[Path]:
    for place in {tempfile.gettempdir(), _SHORT}:
        yield from Path(place).glob(f"{_PREFIX}*")
    for own in places:
        yield from own.glob(".*-*")
        yield from (own / "images").glob(".*-*")


def _is_left(folder: Path) -> bool:
    """Whether it is a folder of this user's whose tuner lives no more. A link is none, nor what
    others have put there.
    """
    owner = folder / OWNER
    with contextlib.suppress(OSError, ValueError):
        found = (folder.lstat(), owner.lstat())
        if stat.S_ISDIR(found[0].st_mode) and stat.S_ISREG(found[1].st_mode):
            ours = all(each.st_uid == os.getuid() for each in found)
            return ours and found[1].st_size < _LONGEST_TAG and is_orphaned(owner.read_text())
    return False


@contextlib.contextmanager
def temporary_folder(parent: Path | None = None, prefix: str = _PREFIX) -> Iterator[Path]:
    """A folder of our own that is gone at the end; after a kill the next run removes it."""
    folder = own_folder(parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def logs_folder() -> Iterator[Path]:
    """The same for logs of ranks. After a StudyError, whose message names a log, it stays."""
    folder, kept = own_folder(), False
    try:
        yield folder
    except StudyError:
        keep(folder)
        kept = any(folder.iterdir())  # without a log it is of no use
        raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


def own_folder(parent: Path | None = None, prefix: str = _PREFIX, *, short: bool = False) -> Path:
    """A new temporary folder that says whose it is; in `parent`, which is the cache or the user's
    own place for such folders. `short`: sockets will be made in it, whose paths have 107 characters
    at most.
    """
    if parent is None and short and len(tempfile.gettempdir()) > _LONGEST:
        parent = Path(_SHORT)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    (folder / OWNER).write_text(new_tag())
    return folder


def keep(folder: Path) -> None:
    """A folder of our own is no temporary one any more."""
    (folder / OWNER).unlink(missing_ok=True)


def _end(wanted: Callable[[str], bool]) -> int:
    """Kill them all, however they fork meanwhile, and see them gone (a process that gives its GPU
    memory back takes a while to go).
    """
    met: set[int] = set()
    began = time.monotonic()
    ours = _ancestors()  # a shell can have inherited the tag of a tuner that is long gone
    while living := [pid for pid, tag in _tagged() if wanted(tag) and is_running(pid)]:
        living = [pid for pid in living if pid not in ours]
        if not living:
            break
        # They remove named semaphores that the others left, and end by themselves after them.
        trackers = [pid for pid in living if TRACKER in command_of(pid)]
        spent = time.monotonic() - began
        if len(trackers) < len(living) or spent < TRACKER_SECONDS:
            living = [pid for pid in living if pid not in trackers]
        if spent > _SECONDS:
            listed = ", ".join(map(str, living))
            raise StudyError(f"processes of a search cannot be ended: {listed}; look at them")
        met.update(living)
        for pid in living:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return len(met)


def _ancestors() -> set[int]:
    """Our own process and those above it."""
    found, pid = set[int](), os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        fields = _stat(pid)
        pid = int(fields[1]) if fields is not None else 0
    return found


def is_running(pid: int) -> bool:
    """Whether it is there and no zombie."""
    return _start_time(pid) is not None
