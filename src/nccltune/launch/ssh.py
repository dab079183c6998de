"""Hosts that the system's OpenSSH reaches: a process on each, and nothing installed there.

What a node needs (the worker's files, the environment, the tuner's token) goes to its Python on
stdin (`nccltune.worker.arrive`), so that no command line shows it; what ranks write there comes
back over the agent's connection. On the tuner's own node the same is done without ssh.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nccltune.errors import UsageError
from nccltune.launch.cluster import Cluster, Command, Node, Task, last_words
from nccltune.launch.diagnosis import read_end
from nccltune.launch.leftovers import TAG, own_folder
from nccltune.launch.plan import LaunchPlan
from nccltune.launch.supervised import Supervised
from nccltune.nccl.site import MULTICAST_OFF, protects_multicast
from nccltune.worker.agreement import MAY_DIFFER
from nccltune.worker.log_sender import LOGS
from nccltune.worker.look import NETWORK
from nccltune.worker.node import ADDRESS, ADDRESS_HERE, FOLDER
from nccltune.worker.status import KEPT, NODE, NODE_NAME

FOLDERS = re.compile(r"/tmp/nccltune-[0-9a-f]{32}-\d+")
"""The private folders of agents, by path."""

_THERE = "{nccltune_folder}"
_FILES = "worker"
_ARRIVE = f"{_FILES}/nccltune/worker/arrive.py"
_READ = "import sys; i = sys.stdin.buffer; exec(i.read(int(i.readline())))"
# The first value that ssh finds counts: the user's own words (--ssh) come before these, and
# ~/.ssh/config after them. Host keys are checked as it says, and never less.
# Options that an older ssh does not know are left out (`ssh -G` was asked without this before, so
# a slip in ~/.ssh/config has been told).
_OPTIONS = (
    "IgnoreUnknown=*",
    *("BatchMode=yes", "ConnectTimeout=15", "ServerAliveInterval=10", "ServerAliveCountMax=3"),
    *("RequestTTY=no", "RemoteCommand=none", "ControlMaster=no", "ClearAllForwardings=yes"),
    *("ControlPath=none", "StdinNull=no", "SessionType=default", "ForkAfterAuthentication=no"),
)
# Of the login, the machine, or another scheduler: what is there counts.
_STAY = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "SHELL", "SHLVL", "PWD", "OLDPWD", "_", "MAIL", "TERM"),
        *("HOSTNAME", "HOST", "TMPDIR", "TMP", "TEMP", "DISPLAY", "XAUTHORITY", "COLORTERM"),
        "NCCL_HOSTID",  # nodes with the same one would be one machine for NCCL
    }
)
_STAY_TOO = (
    *("SSH_", "XDG_", "DBUS_", "BASH_FUNC_", "SLURM", "SRUN_", "SBATCH_", "PMI", "OMPI_"),
    *("KUBERNETES_", "TERM_", "WAYLAND_", "GPG_", "KRB5"),
)
_QUOTABLE = frozenset("'\\!\n\r")


@dataclass(frozen=True)
class SshHosts(Cluster):
    """Hosts in the order given. `ssh` is the command, `environ` what it is run with."""

    kind = "ssh"
    shares_files = False

    ssh: tuple[str, ...] = ("ssh",)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    def start(self, command: Command, log: Path) -> Task:
        return _Connections(self, command, log)

    def shown(self, command: Command) -> LaunchPlan:
        carriers = tuple(self.argv(at, command.python) for at in range(len(self.nodes)))
        return LaunchPlan(command.words, command.env, carriers)

    def argv(self, at: int, python: str) -> tuple[str, ...]:
        """What has that node's Python run what comes on stdin. Raises UsageError for a path that
        not every shell would be given right.
        """
        if at == self.here:
            return (python, "-I", "-S", "-c", _READ)
        if _QUOTABLE & set(python):
            raise UsageError(
                f"--python {python}: its path has characters that shells do not agree on"
            )
        options = [word for option in _OPTIONS for word in ("-o", option)]
        # in single quotes, as every shell has them, csh and fish too
        there = f"exec '{python}' -I -S -c '{_READ}'"
        return (*self.ssh, *options, self.nodes[at].name, there)

    def worker_there(self, worker_path: Path) -> Path:
        return Path(_THERE, _FILES)

    def logs_there(self, folder: Path, number: int) -> Path:
        return Path(_THERE, LOGS, str(number), folder.name)


class _Connections(Task):
    """One process on this machine for each node: ssh, or on our own node what ssh would start."""

    def __init__(self, hosts: SshHosts, command: Command, log: Path) -> None:
        self._hosts, self._log, self._python = hosts, log, command.python
        self._folder = own_folder()
        self._said: list[str] | None = None
        name = secrets.token_hex(16)
        self._places = [f"/tmp/nccltune-{name}-{at}" for at in range(len(hosts.nodes))]
        self._parts: list[Supervised] = []
        try:
            self._start(command)
        except BaseException:
            self.end()
            raise

    def _start(self, command: Command) -> None:
        """Nothing is started where the words of one would be refused."""
        hosts, files = self._hosts, _files(command.worker_path)
        argvs = [hosts.argv(at, command.python) for at in range(len(hosts.nodes))]
        tag = {TAG: command.env[TAG]}
        secret = self._folder / "in"  # has tokens: gone with the first part that is ended
        secret.mkdir()
        for at, argv in enumerate(argvs):
            given = secret / str(at)
            given.write_bytes(_given(self._told(at, command, files)))
            env = command.env if at == hosts.here else {**hosts.environ, **tag}
            out = self._folder / f"{at}.log"
            # an agent here can be ended before it has removed its own
            gone = [secret, *([Path(self._places[at])] if at == hosts.here else [])]
            self._parts.append(Supervised(argv, env, out, remove=gone, stdin=given))

    def _told(self, at: int, command: Command, files: Mapping[str, str]) -> dict[str, Any]:
        """For `arrive` on that node."""
        node = self._hosts.nodes[at]
        own = {
            NODE: str(at),
            NODE_NAME: node.name,
            ADDRESS_HERE: node.address,
            FOLDER: self._places[at],
        }
        return {
            "folder": self._places[at],
            "files": files,
            "environment": {
                name: self.there(at, value)
                for name, value in {**travelling(command.env), **own}.items()
            },
            **held_there(command.env, self._hosts.environ),
            "owner": command.env[TAG],
            "address": command.env[ADDRESS],
            "network": NETWORK,
            "cwd": os.getcwd(),
            "argv": [self.there(at, word) for word in command.words],
        }

    def there(self, at: int, text: str) -> str:
        return text.replace(_THERE, self._places[at])

    def ended(self, at: int) -> bool:
        return self._parts[at].poll() is not None

    def code(self) -> int | None:
        codes = [part.poll() for part in self._parts]
        if None in codes:
            return None
        return next((code for code in codes if code), 0)

    def output(self) -> str:
        return "".join(self._outputs())

    def _outputs(self) -> list[str]:
        """By node."""
        if self._said is not None:
            return self._said
        return [read_end(self._folder / f"{at}.log") for at in range(len(self._parts))]

    def last_words(self, places: Sequence[int]) -> str:
        nodes, said = self._hosts.nodes, self._outputs()
        told = [
            f"{nodes[at].name}: {words}{_advice(words, nodes[at], self._python)}"
            for at in places
            if (words := last_words(said[at]))
        ]
        return "; ".join(told) or "ssh printed nothing"

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        return all(part.wait(max(0.0, deadline - time.monotonic())) for part in self._parts)

    def cancel(self) -> None:
        """There is nobody to ask: what is left is looked for."""

    def end(self) -> None:
        for part in self._parts:
            part.ask_to_end()
        for part in self._parts:
            part.end()
        if self._said is None:
            self._said = self._outputs()
            with self._log.open("a") as log:
                log.write(self.output())
            shutil.rmtree(self._folder, ignore_errors=True)


def _files(worker_path: Path) -> dict[str, str]:
    """The worker's files as a node gets them: text by path."""
    return {
        f"{_FILES}/{file.relative_to(worker_path)}": file.read_text(encoding="utf-8")
        for file in sorted(worker_path.glob("nccltune/**/*.py"))
    }


def _given(told: Mapping[str, Any]) -> bytes:
    """What a node's Python reads: the length of the program that reads the rest, then both."""
    program = told["files"][_ARRIVE].encode()
    return b"%d\n%s%s\n" % (len(program), program, json.dumps(told).encode())


def travelling(environ: Mapping[str, str]) -> dict[str, str]:
    """What nodes get of the tuner's environment: all, but for what belongs to the machine."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _STAY and not name.startswith(_STAY_TOO)
    }


def held_there(environ: Mapping[str, str], tuners: Mapping[str, str]) -> dict[str, Any]:
    """What stays as a node's login has set it, for `arrive`: names of its own network and files,
    where a launch with `environ` has them as the tuner and a trial has none; and what keeps NVLink
    multicast off, unless `environ` has it so: off on either side is off.
    """
    kept = [n for n in MULTICAST_OFF if not protects_multicast(n, environ.get(n, ""))]
    own = [n for n in (*MAY_DIFFER, "GLOO_SOCKET_IFNAME") if environ.get(n) == tuners.get(n)]
    return {"held": sorted({*kept, *own}), "kept": sorted(kept), "kept_as": KEPT}


def _advice(words: str, node: Node, python: str) -> str:
    """What to do about what ssh said."""
    ssh = f"ssh {shlex.quote(node.name)} true"
    if "Host key verification failed" in words:
        return (
            f" (its host key is not known here, or has changed: `{ssh}` shows it; accept it first)"
        )
    if "Permission denied" in words:
        return f" (`{ssh}` has to work without a question: a key for it, in a file or ssh-agent)"
    if python in words and ("not found" in words or "No such file" in words):
        return " (every node needs the job's Python under the same path: --python)"
    if "cannot reach the tuner" in words:
        return " (nodes have to reach each other by TCP, at any port)"
    return ""
