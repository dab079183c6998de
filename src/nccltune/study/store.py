"""A study's records, which survive being killed at any point."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from nccltune.errors import StudyError
from nccltune.study.folder import StudyPaths
from nccltune.study.records import Measurement, Trial, noise_speeds


class Store:
    """An opened study: records in memory and on disk. Hold it open while the study runs."""

    def __init__(self, paths: StudyPaths, *, repair: bool = True) -> None:
        """`repair` finishes what a kill cut off; only under the lock."""
        self.paths = paths
        with no_collecting():
            self.measurements = _measurements(paths.measurements)
            self.trials = _trials(paths.trials)
        self._by_id = {m.id: m for m in self.measurements}
        missing = {i for t in self.trials for i in t.measurements} - self._by_id.keys()
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
        self._keep(measurement)
        self._append(self.paths.trials, trial.to_dict())
        self.trials.append(trial)
        return trial

    def add_extra(self, measurement: Measurement) -> None:
        """Record a measurement that belongs to no trial of its own: noise, confirmation."""
        assert measurement.purpose != "search"
        self._keep(measurement)

    def _keep(self, measurement: Measurement) -> None:
        self._append(self.paths.measurements, measurement.to_dict())
        self.measurements.append(measurement)
        self._by_id[measurement.id] = measurement

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
        return self._by_id[trial.measurements[-1]]

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


@contextlib.contextmanager
def no_collecting() -> Iterator[None]:
    """Without the garbage collector, which walks all records again and again, and finds nothing."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


_NOT_OURS = (AttributeError, TypeError, KeyError, ValueError)


def _trials(path: Path) -> list[Trial]:
    found = []
    for number, _, record in _lines(path):
        try:
            found.append(Trial.from_dict(record))
        except _NOT_OURS:
            raise _not_ours(path, number) from None
    return found


def _measurements(path: Path) -> list[Measurement]:
    found = []
    for number, offset, record in _lines(path):
        try:
            measurement = Measurement.from_dict(record)
            if measurement.purpose == "search" and measurement.trial != 0:
                _set_windows_aside(record["result"], path, offset)
            found.append(measurement)
        except _NOT_OURS:
            raise _not_ours(path, number) from None
    return found


def _set_windows_aside(result: dict[str, Any] | None, path: Path, offset: int) -> None:
    """Of the search's candidates: they are most of all that is on record, and hardly looked at."""
    if result is not None and isinstance(result.get("windows"), list):
        result["windows"] = _Windows(path, offset)


def _not_ours(path: Path, number: int) -> StudyError:
    return StudyError(f"{path}: line {number} is not a record of ours; {_DAMAGED}")


class _Windows(Sequence[Mapping[str, Any]]):
    """The windows of a measurement, read from its line when somebody looks at them."""

    def __init__(self, path: Path, offset: int) -> None:
        self._path, self._offset = path, offset

    def _read(self) -> list[Mapping[str, Any]]:
        """Raises: StudyError when the line is no longer there."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                found: list[Mapping[str, Any]] = json.loads(file.readline())["result"]["windows"]
                return found
        except (OSError, *_NOT_OURS) as error:
            raise StudyError(f"{self._path}: was changed meanwhile; {_DAMAGED}") from error

    @overload
    def __getitem__(self, place: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, place: int | slice) -> Any:
        return self._read()[place]

    def __len__(self) -> int:
        return len(self._read())

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._read())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._read() == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __deepcopy__(self, _memo: object) -> list[Mapping[str, Any]]:
        """Plain values, for `to_dict`."""
        return self._read()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file; empty where there is none. A cut last line is not one.

    Raises: StudyError for a damaged line that is not the last.
    """
    return [record for _, _, record in _lines(path)]


def _lines(path: Path) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Number, offset in bytes and record of each line. Raises StudyError, see `read_lines`."""
    if not path.exists():
        return
    if not path.is_file():
        raise StudyError(f"{path}: is no file; {_DAMAGED}")
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                raise StudyError(f"{path}: line {number} is damaged; {_DAMAGED}") from None
            yield number, offset, record
            offset += len(line)
