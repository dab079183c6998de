"""Real OpenSSH servers for the tests, one for each node, with keys and settings of their own."""

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SYSTEM = "/usr/sbin:/sbin"
_SECONDS = 30.0


def missing_programs(*more: str) -> list[str]:
    path = f"{os.environ.get('PATH', '')}:{_SYSTEM}"
    wanted = ("ssh", "ssh-keygen", "sshd", *more)
    return [name for name in wanted if shutil.which(name, path=path) is None]


@dataclass
class Server:
    """The sshd of a node, at `address`; `within` is a command that everything of it runs under."""

    folder: Path
    address: str
    port: int
    within: Sequence[str] = ()
    daemon: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:{_SYSTEM}")
        assert sshd is not None
        config = self.folder / f"sshd-{self.address}.conf"
        config.write_text(
            f"ListenAddress {self.address}:{self.port}\n"
            f"HostKey {self.folder}/host\n"
            f"AuthorizedKeysFile {self.folder}/user.pub\n"
            "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nPermitRootLogin yes\nMaxStartups 100\n"
        )
        with (self.folder / f"sshd-{self.address}.log").open("ab") as log:
            self.daemon = subprocess.Popen(
                [*self.within, sshd, "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + _SECONDS
        while not self._answers():
            assert self.daemon.poll() is None and time.monotonic() < until, self.words()
            time.sleep(0.02)

    def _answers(self) -> bool:
        probe = f"import socket; socket.create_connection(('{self.address}', {self.port}))"
        if self.within:
            command = [*self.within, "python3", "-ISc", probe]
            return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0
        with contextlib.suppress(OSError):
            socket.create_connection((self.address, self.port)).close()
            return True
        return False

    def sessions(self) -> list[int]:
        """The processes of the connections that are open, nearest to the daemon first."""
        assert self.daemon is not None
        return _sshd_below(self.daemon.pid)

    def words(self) -> str:
        return (self.folder / f"sshd-{self.address}.log").read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        """The node answers no more, and its connections are cut."""
        if self.daemon is not None:
            for pid in [*self.sessions(), self.daemon.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.daemon.wait()
            self.daemon = None


def _sshd_below(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    below = [int(child) for child in children.read_text().split()] if children.exists() else []
    ours = []
    for child in below:
        with contextlib.suppress(OSError):
            if (Path("/proc") / str(child) / "comm").read_text().startswith("sshd"):
                ours += [child, *_sshd_below(child)]
    return ours


class Network:
    """Servers, and the settings with which ssh reaches them."""

    def __init__(self, folder: Path, servers: Sequence[Server]) -> None:
        self.folder, self.servers = folder, list(servers)
        for name in ("host", "user", "stranger"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(command, check=True)
        self.known, self.config = folder / "known_hosts", folder / "config"
        self.trust()
        self.write_config()

    @property
    def ssh(self) -> str:
        return f"ssh -F {self.config}"

    def trust(self, *unknown: str) -> None:
        """Know the key of every host but these."""
        kind, key = (self.folder / "host.pub").read_text().split()[:2]
        self.known.write_text(
            "".join(
                f"[{each.address}]:{each.port} {kind} {key}\n"
                for each in self.servers
                if each.address not in unknown
            )
        )

    def write_config(self, key: str = "user") -> None:
        lines = [f"Host {each.address}\n  Port {each.port}\n" for each in self.servers]
        self.config.write_text(
            "".join(lines)
            + f"Host *\n  User {getpass.getuser()}\n  IdentityFile {self.folder}/{key}\n"
            "  IdentitiesOnly yes\n  IdentityAgent none\n"
            f"  UserKnownHostsFile {self.known}\n  GlobalKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking yes\n"
        )

    def start(self) -> None:
        for each in self.servers:
            if each.daemon is None:
                each.start()

    def recover(self) -> None:
        """As at the start."""
        self.trust()
        self.write_config()
        self.start()

    def stop(self) -> None:
        for each in self.servers:
            each.kill()


def free_port(address: str) -> int:
    with socket.socket() as held:
        held.bind((address, 0))
        port: int = held.getsockname()[1]
    return port


@contextlib.contextmanager
def loopback() -> Iterator[Network]:
    """Two nodes on this machine that differ by their address; at the end nothing is left."""
    with _folder() as folder:
        addresses = ("127.0.0.1", "127.0.0.2")
        servers = [Server(folder, each, free_port(each)) for each in addresses]
        with _running(Network(folder, servers)) as network:
            yield network


@contextlib.contextmanager
def over_a_link(megabits: int) -> Iterator[Network]:
    """Two nodes in network namespaces of their own, with a link of that speed between them; only
    root can make them. At the end nothing is left.
    """
    name = secrets.token_hex(3)
    spaces = [f"nccltune-{name}{end}" for end in "ab"]
    links = [f"nt{name}{end}" for end in "ab"]
    addresses = [f"10.77.0.{number}" for number in (1, 2)]
    with _folder() as folder, contextlib.ExitStack() as stack:
        for space in spaces:
            _ip("netns", "add", space)
            stack.callback(_ip, "netns", "del", space)
        _ip("link", "add", links[0], "netns", spaces[0], "type", "veth", "peer", "name", links[1],
            "netns", spaces[1])  # fmt: skip
        for space, link, address in zip(spaces, links, addresses, strict=True):
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", link)
            for each in ("lo", link):
                _ip("-n", space, "link", "set", each, "up")
            shape = ("root", "tbf", "rate", f"{megabits}mbit", "burst", "64kb", "latency", "100ms")
            _ip("netns", "exec", space, "tc", "qdisc", "add", "dev", link, *shape)
        within = [("ip", "netns", "exec", space) for space in spaces]
        servers = [
            Server(folder, address, 2222, way)
            for address, way in zip(addresses, within, strict=True)
        ]
        yield stack.enter_context(_running(Network(folder, servers)))


def _ip(*words: str) -> None:
    path = f"{os.environ.get('PATH', '')}:{_SYSTEM}"
    done = subprocess.run(["ip", *words], env={"PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stderr)


def why_no_namespaces() -> str | None:
    """What is missing for `over_a_link`."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    if missing := missing_programs("ip", "tc"):
        return f"no {', '.join(missing)} here: apt-get install openssh-server iproute2"
    probe = f"nccltune-{secrets.token_hex(3)}"
    try:
        _ip("netns", "add", probe)
        _ip("netns", "del", probe)
    except AssertionError as error:
        return f"no network namespaces here: {error}"
    return None


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """For keys and settings, and sshd's own where root runs it."""
    folder = Path(tempfile.mkdtemp(prefix="sshd-", dir="/tmp"))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _running(network: Network) -> Iterator[Network]:
    try:
        network.start()
        yield network
    finally:
        network.stop()
