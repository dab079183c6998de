"""A real Slurm on this machine: one controller and two nodes, all of them processes of ours."""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

NODES = ("n0", "n1")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc", "scontrol", "scancel")
_SYSTEM = "/usr/sbin:/sbin"  # where Debian has the daemons
_SECONDS = 60.0


def missing_programs() -> list[str]:
    path = f"{os.environ.get('PATH', '')}:{_SYSTEM}"
    return [name for name in _PROGRAMS if shutil.which(name, path=path) is None]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]


class Cluster:
    """Daemons of a cluster `n0`, `n1`. `environment` is what Slurm's commands need to find it."""

    def __init__(self, folder: Path, *, no_answer_seconds: int = 300) -> None:
        """`no_answer_seconds`: after which a node whose daemon is silent counts as down."""
        self._folder = folder
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        conf = folder / "slurm.conf"
        self._socket = folder / "munge.socket"
        prolog = folder / "prolog"
        prolog.write_text(f"#!/bin/sh\ncat {folder}/prolog-$SLURMD_NODENAME 2>/dev/null || :\n")
        prolog.chmod(0o755)
        conf.write_text(self._configuration(no_answer_seconds))
        self.environment: Mapping[str, str] = {
            "SLURM_CONF": str(conf),
            "PATH": f"{os.environ.get('PATH', '')}:{_SYSTEM}",
        }

    def _configuration(self, no_answer_seconds: int) -> str:
        host, user = socket.gethostname().partition(".")[0], getpass.getuser()
        control, *ports = _free_ports(3)
        folder = self._folder
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir()
        cores = os.cpu_count() or 1
        lines = [
            "ClusterName=nccltune",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={control}",
            "AuthType=auth/munge",
            f"AuthInfo=socket={self._socket}",
            "CredType=cred/munge",
            f"SlurmUser={user}",
            f"SlurmdUser={user}",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool-%n",
            f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/slurmd-%n.pid",
            f"SlurmctldLogFile={folder}/slurmctld.log",
            f"SlurmdLogFile={folder}/slurmd-%n.log",
            f"SlurmdTimeout={no_answer_seconds}",
            "MessageTimeout=4",  # so that a dead node is soon known to be one
            f"TaskProlog={folder}/prolog",
            "ProctrackType=proctrack/pgid",
            "TaskPlugin=task/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "ReturnToService=2",
            "MpiDefault=none",
            "SlurmdParameters=config_overrides",
            *(
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
                f"CPUs={cores} RealMemory=1000"
                for node, port in zip(NODES, ports, strict=True)
            ),
            f"PartitionName=main Nodes={','.join(NODES)} Default=YES State=UP",
        ]
        return "\n".join(lines) + "\n"

    def start(self) -> None:
        self._start_munge()
        self._start("slurmctld", "slurmctld", "-D", "-i")
        for node in NODES:
            self.start_node(node)
        self._await_idle()

    def _start_munge(self) -> None:
        folder = self._folder
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        # The folder is a temporary one, which munge would not trust by itself.
        self._start(
            *("munge", "munged", "--foreground", "--force", f"--key-file={key}"),
            *(f"--socket={self._socket}", f"--pid-file={folder}/munge.pid"),
            *(f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"),
        )
        until = time.monotonic() + _SECONDS
        while not self._socket.exists():
            self._see(until, "munge")

    @contextlib.contextmanager
    def setting(self, node: str, name: str, value: str) -> Iterator[None]:
        """A variable that this node sets in every task, as its administrator can."""
        file = self._folder / f"prolog-{node}"
        file.write_text(f"export {name}={value}\n")
        try:
            yield
        finally:
            file.unlink()

    def start_node(self, node: str) -> None:
        self._start(node, "slurmd", "-D", "-N", node)

    def kill_node(self, node: str) -> None:
        """Its daemon is gone at once; the steps that it has started run on."""
        self._daemons[node].kill()
        self._daemons.pop(node).wait()

    def _start(self, name: str, *command: str) -> None:
        with (self._folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                command,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def run(self, *command: str, seconds: float = _SECONDS) -> str:
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        return done.stdout + done.stderr

    def _await_idle(self) -> None:
        until = time.monotonic() + _SECONDS
        while self.run("sinfo", "-h", "-N", "-o", "%N %t").split() != ["n0", "idle", "n1", "idle"]:
            self._see(until, "slurmctld")

    def recover(self) -> None:
        """End every job, and have both nodes idle again."""
        ours = f"--user={getpass.getuser()}"
        self.run("scancel", "--full", "--signal=KILL", ours)
        self.run("scancel", ours)
        for node in NODES:
            if node not in self._daemons:
                self.start_node(node)
        until = time.monotonic() + _SECONDS
        while self.run("squeue", "-h"):
            self._see(until, "slurmctld")
        self._await_idle()

    def _see(self, until: float, name: str) -> None:
        if self._daemons[name].poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"Slurm does not come up: {self.words()}")
        time.sleep(0.05)

    def words(self) -> str:
        """What its daemons wrote last."""
        found = []
        for file in sorted([*self._folder.glob("*.log"), *self._folder.glob("*.out")]):
            lines = file.read_text(errors="replace").splitlines()[-8:]
            found += [f"{file.name}: {line}" for line in lines]
        return "\n".join(found)

    def stop(self) -> None:
        for daemon in reversed(self._daemons.values()):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons.values():
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster that is up; at the end nothing of it is left."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # paths of sockets are short
    running = Cluster(folder)
    try:
        running.start()
        yield running
        running.recover()
    finally:
        running.stop()
        shutil.rmtree(folder, ignore_errors=True)
