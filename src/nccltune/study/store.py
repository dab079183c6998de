"""A study's folder: its paths, its lock, and records that survive being killed at any point."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import yaml

from nccltune.errors import StudyError, UsageError
from nccltune.study.records import Measurement, Trial

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


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
        return Path(os.path.abspath(self.folder)).name

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
    def lock(self) -> Path:
        return self.folder / "lock"

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

    def launch_logs(self, launch: int) -> Path:
        return self.logs / f"launch-{launch:04d}"

    def relative(self, path: str | Path) -> str:
        """As records hold it: relative to the study."""
        return os.path.relpath(path, self.folder)


def write_text(path: Path, text: str) -> None:
    """Replace a file in one rename, on disk before it is named."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w") as file:
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
    try:
        definition = yaml.safe_load(paths.definition.read_text())
    except FileNotFoundError:
        raise UsageError(f"{paths.folder}: no study here (no study.yaml)") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{paths.definition}: cannot be read: {error}") from error
    if not isinstance(definition, dict) or definition.get("version") != 1:
        raise UsageError(f"{paths.definition}: not a study of version 1")
    for name, kind in _SECTIONS.items():
        if not isinstance(definition.get(name), kind):
            raise UsageError(f"{paths.definition}: {name}: missing or of the wrong kind")
    return definition


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
    "tag": str,
}


class Store:
    """An opened study: records in memory and on disk. Hold it open while the study runs."""

    def __init__(self, paths: StudyPaths, *, repair: bool = True) -> None:
        """`repair` finishes what a kill cut off; only under the lock."""
        self.paths = paths
        self.measurements = _records(Measurement.from_dict, paths.measurements)
        self.trials = _records(Trial.from_dict, paths.trials)
        missing = {i for t in self.trials for i in t.measurements} - {
            m.id for m in self.measurements
        }
        if missing:
            raise StudyError(
                f"{paths.measurements}: lacks {', '.join(sorted(missing))}, which {paths.trials} "
                f"refers to; {_DAMAGED}"
            )
        self._finish_cut_trials(write=repair)

    def _finish_cut_trials(self, *, write: bool) -> None:
        """A measurement whose trial line is missing: killed between the two writes."""
        known = {trial.number for trial in self.trials}
        for measurement in self.measurements:
            if measurement.purpose == "search" and measurement.trial not in known:
                trial = Trial.of(measurement)
                if write:
                    self._append(self.paths.trials, trial.to_dict())
                self.trials.append(trial)

    def add(self, measurement: Measurement) -> Trial:
        """Record a measurement of the search and its trial. Both are on disk when this returns."""
        trial = Trial.of(measurement)
        self._append(self.paths.measurements, measurement.to_dict())
        self.measurements.append(measurement)
        self._append(self.paths.trials, trial.to_dict())
        self.trials.append(trial)
        return trial

    def next_launch(self) -> int:
        return max((m.launch for m in self.measurements), default=-1) + 1

    def next_id(self) -> str:
        return f"m{len(self.measurements):04d}"

    def peak_memory(self, trial: Trial) -> int | None:
        """Bytes, of the rank that used most; None when the trial gave no result."""
        result = self.measurement(trial).result
        return None if result is None else max(result["peak_memory_bytes"])

    def measurement(self, trial: Trial) -> Measurement:
        """The (last) measurement of a trial."""
        return next(m for m in reversed(self.measurements) if m.id in trial.measurements)

    @staticmethod
    def _append(path: Path, record: Mapping[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        before = os.fstat(file).st_size
        try:
            written = os.write(file, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(file, before)
            raise StudyError(
                f"cannot write {path}: {error.strerror}; free some space and run the same command "
                "again: finished trials are kept"
            ) from error
        finally:
            os.close(file)


_DAMAGED = "restore the file, or start anew with --new (the old folder is kept)"

_Record = TypeVar("_Record")


def _records(parse: Callable[[Mapping[str, Any]], _Record], path: Path) -> list[_Record]:
    found = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            found.append(parse(line))
        except (TypeError, KeyError):
            raise StudyError(f"{path}: line {number} is not a record of ours; {_DAMAGED}") from None
    return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file; empty where there is none. A cut last line is not one.

    Raises: StudyError for a damaged line that is not the last.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    records = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
        except ValueError:
            raise StudyError(f"{path}: line {number} is damaged; {_DAMAGED}") from None
        records.append(record)
    return records


def cut_back(path: Path) -> None:
    """Remove a last line without its newline (a write that was cut). Only under the lock."""
    with contextlib.suppress(FileNotFoundError):
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with path.open("rb+") as file:
                file.truncate(whole)
                os.fsync(file.fileno())


@contextlib.contextmanager
def locked(paths: StudyPaths) -> Iterator[None]:
    """Make the folder if need be and hold its lock; the system releases it with the process.

    Raises: UsageError when another tuner holds it or the folder cannot be written.
    """
    try:
        paths.folder.mkdir(parents=True, exist_ok=True)
        file = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(
            f"--studies-dir {paths.folder.parent}: cannot be written: {error.strerror}"
        ) from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(file, 100, 0).decode(errors="replace").strip()
            raise UsageError(
                f"{paths.folder}: another nccltune works on this study ({holder or 'unknown'}); "
                "wait for it, or give another --study name"
            ) from None
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} since {since}\n".encode(), 0)
        for records in (paths.trials, paths.measurements, paths.journal):
            cut_back(records)
        yield
    finally:
        os.close(file)


def set_aside(paths: StudyPaths) -> Path | None:
    """Rename an existing study folder so that a new one can start; None where there is none."""
    if not paths.definition.exists():
        return None
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
        known = ", ".join(study_names(studies_dir)) or "none"
        raise UsageError(f"{study}: no such study in {studies_dir}; there are: {known}")
    return paths


def study_names(studies_dir: Path) -> list[str]:
    """Names of the studies below a folder, newest first."""
    found = [file for file in studies_dir.glob("*/study.yaml") if file.is_file()]
    return [f.parent.name for f in sorted(found, key=lambda f: f.stat().st_mtime, reverse=True)]
