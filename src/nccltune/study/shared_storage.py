"""Where several tuners meet: a database, or a journal file on a filesystem that all of them see."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import traceback
import warnings
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from optuna.exceptions import (
    DuplicatedStudyError,
    OptunaError,
    StorageInternalError,
    UpdateFinishedTrialError,
)
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, get_storage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from sqlalchemy import create_engine
from sqlalchemy.exc import (
    IntegrityError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)

from nccltune.errors import StudyError, UsageError
from nccltune.study.folder import cut_back
from nccltune.study.quiet import optuna
from nccltune.study.urls import is_url, secrets_of, without_password

_CONNECT_SECONDS = 10
_PATIENCE_SECONDS = 60.0
_LOCK_SECONDS = 30  # less than a tuner may be silent
_AWAY = (StorageInternalError, OperationalError, InterfaceError, OSError)
# What Optuna raises for records of a journal whose fields are not what they should be.
_FIELDS = (LookupError, TypeError, AttributeError, AssertionError)
# Of every record, as Optuna and we write them: the kind of its operation comes first.
_BEGINNING = b'{"op_code":'
_CREATIONS = 8  # tuners that meet an empty database at the same time make its tables in turn
_DRIVERS = {"postgresql": ("psycopg", "psycopg2"), "mysql": ("MySQLdb", "pymysql")}
_INSTALL = {
    "postgresql": "pip install 'nccltune[postgresql]', or psycopg2-binary",
    "mysql": "pip install pymysql, and write mysql+pymysql://",
}


_Answer = TypeVar("_Answer")


class Shared:
    """An opened storage, and its name as messages may have it."""

    def __init__(self, storage: BaseStorage, where: str, secrets: frozenset[str]) -> None:
        self.storage = storage
        self.where = where
        self.patience = _PATIENCE_SECONDS
        self._secrets = secrets

    def ask(self, call: Callable[[], _Answer], patience: float | None = None) -> _Answer:
        """What the storage answers to `call`, which is made again for a minute, or `patience`
        seconds, while it cannot be reached: a server may be started anew.

        Raises: StudyError with what to do; what Optuna raises for trials that are finished and
            studies that are there.
        """
        until = time.monotonic() + (self.patience if patience is None else patience)
        while True:
            try:
                return call()
            except (UpdateFinishedTrialError, DuplicatedStudyError):
                raise
            except _AWAY as error:
                if time.monotonic() > until:
                    raise self._lost(error) from error
                time.sleep(0.5)
            except DamagedJournal as error:
                raise StudyError(_damaged(self.where, error)) from error
            except (OptunaError, SQLAlchemyError, ValueError) as error:
                raise self._lost(error) from error
            except _FIELDS as error:
                if not isinstance(self.storage, JournalStorage) or not _of_optuna(error):
                    raise
                raise StudyError(_damaged(self.where, None)) from error

    def _lost(self, error: Exception) -> StudyError:
        return StudyError(
            f"--storage {self.where}: {reason(error, self._secrets)}\n"
            "finished trials are kept; run the same command again once it can be reached"
        )


def open_storage(given: str) -> Shared:
    """A database by its URL, or a journal file by its path; made if it is not there.

    Raises: UsageError that says what to do, without the password of a URL.
    """
    where, secrets = without_password(given), secrets_of(given)
    check_storage(given)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            storage = _database(given) if is_url(given) else _journal(given)
    except UsageError:
        raise
    except DamagedJournal as error:
        raise UsageError(_damaged(where, error)) from None
    except _FIELDS as error:
        if is_url(given):
            raise
        raise UsageError(_damaged(where, None)) from error
    except (Exception, SystemExit) as error:  # whatever a driver raises
        raise _cannot_be_opened(given, error) from None
    return Shared(storage, where, secrets)


def check_storage(given: str) -> None:
    """What can be seen of a storage without opening or making it. Raises UsageError, as opening it
    does.
    """
    if not is_url(given):
        try:
            _check_journal(Path(given).absolute(), given)
        except OSError as error:
            raise _cannot_be_opened(given, error) from None
        return
    where, kind = without_password(given), _kind(given)
    try:
        engine = create_engine(_with_driver(given, kind))  # which connects to nothing
    except UsageError:
        raise
    except ImportError:
        raise _no_driver(given, kind) from None
    except NoSuchModuleError:
        raise UsageError(
            f"--storage {where}: no database of that kind is known; give postgresql://USER@HOST/"
            "DATABASE, or the path of a journal file that all tuners see"
        ) from None
    except Exception as error:
        raise _cannot_be_opened(given, error) from None
    if kind == "sqlite" and engine.url.database:
        _check_place(Path(engine.url.database).absolute(), given)


def _cannot_be_opened(given: str, error: BaseException) -> UsageError:
    what = "check the URL, and that the server is up" if is_url(given) else "give another path"
    told = reason(error, secrets_of(given))
    return UsageError(f"--storage {without_password(given)}: cannot be opened: {told}; {what}")


def _damaged(where: str, error: DamagedJournal | None) -> str:
    what = "a record in it cannot be read, or its study is gone" if error is None else str(error)
    return (
        f"--storage {where}: the journal is damaged: {what}. Put a whole copy of it back, or begin "
        "another study (--study) in a new file"
    )


def _of_optuna(error: BaseException) -> bool:
    """Whether it was raised in Optuna's own code, rather than by what we gave it to call."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    packages = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames]
    return next(name for name in reversed(packages) if name in ("optuna", "nccltune")) == "optuna"


def reason(error: BaseException, secrets: frozenset[str]) -> str:
    """What went wrong, in one line that holds no password."""
    inner = error.__cause__ if isinstance(error, StorageInternalError) else None
    origin = getattr(inner or error, "orig", None) or inner or error
    text = " ".join(str(origin).split()) or type(origin).__name__
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return without_password(text)[:400]


def _database(url: str) -> BaseStorage:
    kind = _kind(url)
    arguments: dict[str, Any] = {"connect_timeout": _CONNECT_SECONDS}
    if kind == "sqlite":
        arguments = {"timeout": 60}
    options = {"pool_pre_ping": True, "connect_args": arguments}
    address = _with_driver(url, kind)
    for attempt in range(_CREATIONS):
        try:
            # Behind a cache of finished trials, which never change again.
            return get_storage(RDBStorage(address, engine_kwargs=options))
        except (IntegrityError, ProgrammingError):
            if attempt == _CREATIONS - 1:
                raise
            time.sleep(0.2 * (attempt + 1))  # another tuner makes the same tables just now
    raise AssertionError


def _kind(url: str) -> str:
    return re.split(r"[+:]", url, maxsplit=1)[0]


def _with_driver(url: str, kind: str) -> str:
    """The URL with a driver that is installed; which one is the default depends on SQLAlchemy."""
    drivers = _DRIVERS.get(kind, ())
    if not drivers or not url.startswith(f"{kind}://"):
        return url
    there = next((name for name in drivers if find_spec(name) is not None), None)
    if there is None:
        raise _no_driver(url, kind)
    dialect = "mysqldb" if there == "MySQLdb" else there
    return url.replace(f"{kind}://", f"{kind}+{dialect}://", 1)


def _no_driver(url: str, kind: str) -> UsageError:
    what = _INSTALL.get(kind, "install one, or give postgresql://USER@HOST/DATABASE")
    return UsageError(
        f"--storage {without_password(url)}: no driver for {kind} is installed: {what}"
    )


def _journal(given: str) -> JournalStorage:
    return JournalStorage(Journal(Path(given).absolute()))


def _check_place(path: Path, given: str) -> None:
    """Raises UsageError where no file can be."""
    if path.is_dir():
        raise UsageError(f"--storage {given}: is a folder; give the path of a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"--storage {given}: there is no folder {path.parent}; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"--storage {given}: cannot be written here; give another path")


def _check_journal(path: Path, given: str) -> None:
    """Before anything is written: raises UsageError for a file that is no journal."""
    _check_place(path, given)
    if path.exists() and not path.is_file():
        raise UsageError(f"--storage {given}: is no regular file; give the path of a new file")
    try:
        with path.open("rb") as file:
            begins = file.read(len(_BEGINNING))
    except FileNotFoundError:
        return
    if begins not in (b"", _BEGINNING):
        raise UsageError(
            f"--storage {given}: is not a journal of trials, and nothing in it was changed; give "
            "the path of a new file, or of a journal that another tuner has begun"
        )


class DamagedJournal(ValueError):
    """A line that is no record, by its number."""


class Journal(JournalFileBackend):
    """Optuna's journal, which outlives tuners that are killed while they write: before anything is
    appended, a line that was cut off is removed, under the lock. A lock that a killed tuner has
    left is taken over by Optuna after half a minute.
    """

    def __init__(self, path: Path) -> None:
        # A file of its own as lock: links cannot be dated where mounts have other names.
        self._held = JournalFileOpenLock(str(path), grace_period=_LOCK_SECONDS)
        super().__init__(str(path), self._held)
        self._path = path
        self._append(b"")  # so that a cut line is gone, and a file without rights told, at once

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """The records from that number on. Raises DamagedJournal at the first that is none."""
        number, logs = log_number_from, super().read_logs(log_number_from)
        try:
            for log in logs:
                if not isinstance(log, dict) or "op_code" not in log:
                    raise ValueError
                yield log
                number += 1
        except ValueError:
            raise DamagedJournal(f"line {number + 1} is no record") from None

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = [json.dumps(log, separators=(",", ":")) for log in logs]
        self._append("".join(f"{line}\n" for line in lines).encode())

    def _append(self, data: bytes) -> None:
        self._held.acquire()
        try:
            if _is_cut(self._path):
                cut_back(self._path)
            with self._path.open("ab", buffering=0) as file:
                before = file.seek(0, os.SEEK_END)
                try:
                    if file.write(data) != len(data):
                        raise OSError("no space left for the journal")
                    os.fsync(file.fileno())
                except OSError:
                    with contextlib.suppress(OSError):
                        file.truncate(before)
                    raise
        finally:
            with contextlib.suppress(RuntimeError):  # it was taken from us: we were too slow
                self._held.release()


def _is_cut(path: Path) -> bool:
    """Whether the last line lacks its end."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
