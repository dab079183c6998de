"""A study's records, which survive being killed at any point."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from nccltune.errors import StudyError
from nccltune.study.folder import StudyPaths
from nccltune.study.records import Measurement, Trial, noise_speeds


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

    def add_extra(self, measurement: Measurement) -> None:
        """Record a measurement that belongs to no trial of its own: noise, confirmation."""
        assert measurement.purpose != "search"
        self._append(self.paths.measurements, measurement.to_dict())
        self.measurements.append(measurement)

    def noise(self) -> list[float]:
        """Samples/s of the baseline's launches in the search: trial 0 and its repetitions."""
        return noise_speeds(self.measurements)

    def next_launch(self, later: int = 0) -> int:
        """The number of the launch that comes next, or `later` ones after it."""
        return max((m.launch for m in self.measurements), default=-1) + 1 + later

    def next_id(self, later: int = 0) -> str:
        return f"m{len(self.measurements) + later:04d}"

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


def has_results(paths: StudyPaths) -> bool:
    """Whether a trial of the study is complete. Raises StudyError for damaged records."""
    return any(trial.state == "complete" for trial in Store(paths, repair=False).trials)


_DAMAGED = "restore the file, or start anew with --new (the old folder is kept)"

_Record = TypeVar("_Record")


def _records(parse: Callable[[Mapping[str, Any]], _Record], path: Path) -> list[_Record]:
    found = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            found.append(parse(line))
        except (AttributeError, TypeError, KeyError, ValueError):
            raise StudyError(f"{path}: line {number} is not a record of ours; {_DAMAGED}") from None
    return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file; empty where there is none. A cut last line is not one.

    Raises: StudyError for a damaged line that is not the last.
    """
    if not path.exists():
        return []
    if not path.is_file():
        raise StudyError(f"{path}: is no file; {_DAMAGED}")
    lines = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise StudyError(f"{path}: line {number} is damaged; {_DAMAGED}") from None
        records.append(record)
    return records
