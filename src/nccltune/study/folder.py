"""A study's folder: its paths, its definition, its lock."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from nccltune.errors import StudyError, UsageError
from nccltune.nccl.findings import printable
from nccltune.safe_yaml import read_document

_GENERATIONS = "generations"
_MOST_FOLDERS = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


_SECTIONS: dict[str, type | tuple[type, ...]] = {
    "created": str,
    "command": str,
    "workload": dict,
    "sampler": str,
    "seed": int,
    "machine": dict,
    "site": dict,
    "probe": (dict, type(None)),
    "space": dict,
}


@dataclass(frozen=True)
class StudyPaths:
    """Every path of a study."""

    folder: Path

    @classmethod
    def of(cls, studies_dir: Path, name: str) -> StudyPaths:
        """Raises UsageError when the name is not one plain folder name."""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"--study {name!r}: a study name is one folder name of letters, digits, '.', '_', "
                "'+' and '-', starting with a letter or digit; --studies-dir says where it lies"
            )
        return cls(studies_dir / name)

    @property
    def name(self) -> str:
        """A generation's has the study's before it."""
        folder = Path(os.path.abspath(self.folder))
        if folder.parent.name == _GENERATIONS:
            return f"{folder.parents[1].name}/{_GENERATIONS}/{folder.name}"
        return folder.name

    @property
    def definition(self) -> Path:
        return self.folder / "study.yaml"

    @property
    def trials(self) -> Path:
        return self.folder / "trials.jsonl"

    @property
    def measurements(self) -> Path:
        return self.folder / "measurements.jsonl"

    @property
    def journal(self) -> Path:
        return self.folder / "optuna.journal"

    @property
    def history(self) -> Path:
        return self.folder / "history.jsonl"

    def generation(self, number: int) -> StudyPaths:
        """The first is the study itself."""
        return self if number == 1 else StudyPaths(self.folder / _GENERATIONS / str(number))

    def generations(self) -> list[int]:
        """The numbers of those that were begun, in order."""
        found = (self.folder / _GENERATIONS).glob("*/study.yaml")
        later = sorted(int(f.parent.name) for f in found if f.parent.name.isdecimal())
        return [1, *(number for number in later if number > 1)]

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def tuner(self) -> Path:
        """The name of the tuner that works here on a study with others."""
        return self.folder / "tuner"

    @property
    def before(self) -> Path:
        """The name of the folder, with another machine's trials, that was set aside for this."""
        return self.folder / "before"

    @property
    def others_result(self) -> Path:
        """What another tuner on the study has confirmed."""
        return self.folder / "confirmed-elsewhere.json"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def worker(self) -> Path:
        return self.logs / "worker"

    @property
    def best_env(self) -> Path:
        return self.folder / "best.env"

    @property
    def best_yaml(self) -> Path:
        return self.folder / "best.yaml"

    @property
    def best_batch_yaml(self) -> Path:
        return self.folder / "best-batch.yaml"

    def part_log(self, number: int) -> Path:
        """What the tuner on another part of an allocation prints. Not in `logs`, which go where a
        study begins anew.
        """
        return self.folder / f"part-{number}.log"

    def launch_logs(self, launch: int) -> Path:
        return self.logs / f"launch-{launch:04d}"

    def relative(self, path: str | Path) -> str:
        """As records hold it: relative to the study."""
        return os.path.relpath(path, self.folder)


def write_text(path: Path, text: str) -> None:
    """Replace a file in one rename, on disk before it is named."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        # Whatever the locale; a name that is no text at all is written in escapes.
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            # Jobs take settings from here, so others shall not write it, whatever the umask.
            os.fchmod(file.fileno(), os.fstat(file.fileno()).st_mode & 0o755)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StudyError(f"cannot write {path}: {error.strerror}") from error


def read_definition(paths: StudyPaths) -> dict[str, Any]:
    """Raises UsageError when study.yaml is missing or not one of ours."""
    if not paths.definition.exists():
        raise UsageError(f"{paths.folder}: no study here (no study.yaml)")
    definition = read_document(paths.definition)
    if not isinstance(definition, dict) or definition.get("version") != 1:
        raise UsageError(f"{paths.definition}: not a study of version 1")
    for name, kind in _SECTIONS.items():
        if not isinstance(definition.get(name), kind):
            raise UsageError(f"{paths.definition}: {name}: missing or of the wrong kind")
    found: dict[str, Any] = definition
    return found


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def cut_back(path: Path) -> None:
    """Remove a last line without its newline (a write that was cut). Only under the lock."""
    with contextlib.suppress(FileNotFoundError):
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole == len(data):
            return
        with path.open("rb+") as file:
            if _is_record(data[whole:]):  # complete but for its end
                file.seek(0, os.SEEK_END)
                file.write(b"\n")
            else:
                file.truncate(whole)
            file.flush()
            os.fsync(file.fileno())


def check_writable(studies_dir: Path) -> None:
    """Raises UsageError when studies cannot be made there; makes nothing itself."""
    nearest = studies_dir.absolute()
    if os.pathsep in str(nearest):
        raise UsageError(
            f"--studies-dir {studies_dir}: PYTHONPATH, through which ranks get their files, cannot "
            f"hold a folder with {os.pathsep!r} in its path"
        )
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise UsageError(f"--studies-dir {studies_dir}: cannot be written: {nearest} is no folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(f"--studies-dir {studies_dir}: cannot be written: no right in {nearest}")


class Held(UsageError):
    """Another tuner works in the folder."""


@contextlib.contextmanager
def locked(paths: StudyPaths) -> Iterator[None]:
    """Make the folder if need be and hold its lock; the system releases it with the process.

    Raises: Held when another tuner holds it, UsageError when the folder cannot be written.
    """
    try:
        paths.folder.mkdir(parents=True, exist_ok=True)
        file = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(
            f"--studies-dir {paths.folder.parent}: cannot be written: {error.strerror}"
        ) from error
    held = False
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _held_by(paths, os.pread(file, 300, 0)) from None
        if not paths.lock.exists() or os.fstat(file).st_ino != paths.lock.stat().st_ino:
            raise _held_by(paths, b"another that just began or ended")
        held = True
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        os.ftruncate(file, 0)
        os.pwrite(file, f"{_owner()} since {since}\n".encode(), 0)
        for records in (paths.trials, paths.measurements, paths.journal, paths.history):
            cut_back(records)
        yield
        _remove_if_unused(paths)
    except BaseException:
        if held:
            _remove_if_unused(paths)
        raise
    finally:
        os.close(file)


@contextlib.contextmanager
def first_free(studies_dir: Path, name: str) -> Iterator[StudyPaths]:
    """The study's folder under its lock, or where other tuners work on the study NAME.2, NAME.3,
    ..., the first that none of them holds.

    Raises: UsageError when none can be written, or all are held.
    """
    for number in range(1, _MOST_FOLDERS + 1):
        paths = StudyPaths.of(studies_dir, name if number == 1 else f"{name}.{number}")
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(paths))
            except Held:
                continue
            yield paths
            return
    raise UsageError(f"{studies_dir / name}: {_MOST_FOLDERS} tuners work on this study already")


def _owner() -> str:
    """Who holds a lock, for whoever finds it held."""
    return f"process {os.getpid()} of user {os.geteuid()} on {os.uname().nodename}"


def has_records(paths: StudyPaths) -> bool:
    return paths.trials.exists() or paths.measurements.exists()


def forget(paths: StudyPaths) -> None:
    """Remove what a study without results has left, so that it can be begun anew in its folder.
    Only under the lock. study.yaml goes last: until then the study is one without results.

    Raises: StudyError where something cannot be removed.
    """
    records = (paths.trials, paths.measurements, *paths.folder.glob(f"{paths.journal.name}*"))
    results = (paths.best_env, paths.best_yaml, paths.best_batch_yaml)
    shutil.rmtree(paths.logs, ignore_errors=True)
    try:
        for file in (*records, *results, paths.definition):
            file.unlink(missing_ok=True)
    except OSError as error:
        raise StudyError(f"{error.filename}: cannot be removed: {error.strerror}") from error


def _held_by(paths: StudyPaths, holder: bytes) -> Held:
    who = holder.decode(errors="replace").strip() or "unknown"
    return Held(
        f"{paths.folder}: another nccltune works on this study ({who}); wait for it, or give "
        "another --study name"
    )


def _remove_if_unused(paths: StudyPaths) -> None:
    """A folder that holds nothing but its lock is one that was refused: leave no trace of it."""
    with contextlib.suppress(OSError):
        if [entry.name for entry in paths.folder.iterdir()] == [paths.lock.name]:
            paths.lock.unlink()
            paths.folder.rmdir()


def set_aside(paths: StudyPaths) -> Path:
    """Rename a study's folder so that a new one can start. Returns where it is now."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for attempt in range(100):
        suffix = f".{attempt}" if attempt else ""
        target = paths.folder.with_name(f"{paths.name}.{stamp}{suffix}")
        if not target.exists():
            paths.folder.rename(target)
            return target
    raise StudyError(f"{paths.folder}: cannot find a free name to move it to")


def find_study(study: str, studies_dir: Path) -> StudyPaths:
    """A study by its folder, or by its name below `studies_dir`.

    Raises: UsageError naming the studies that are there.
    """
    if (Path(study) / "study.yaml").is_file():
        return StudyPaths(Path(study))
    paths = StudyPaths(studies_dir / study)
    if os.sep in study or not paths.definition.is_file():
        known = ", ".join(map(printable, study_names(studies_dir))) or "none"
        raise UsageError(f"{study}: no such study in {studies_dir}; there are: {known}")
    return paths


def study_names(studies_dir: Path) -> list[str]:
    """Names of the studies below a folder, newest first."""
    found = [file for file in studies_dir.glob("*/study.yaml") if file.is_file()]
    return [f.parent.name for f in sorted(found, key=lambda f: f.stat().st_mtime, reverse=True)]
