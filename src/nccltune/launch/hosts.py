"""Which hosts `--hosts` names, how they reach each other, and which of them this machine is."""

from __future__ import annotations

import ipaddress
import re
import shlex
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nccltune.errors import UsageError
from nccltune.launch.cluster import Node
from nccltune.launch.ssh import SshHosts
from nccltune.worker.interfaces import interface_of

# [USER@]HOST: what ssh and no shell could take for anything else.
_HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*@)?[A-Za-z0-9_][A-Za-z0-9_.-]*")
_LARGEST_FILE = 1 << 20
_SECONDS = 30.0


@dataclass(frozen=True)
class Hosts:
    """As the user named them. `slots`: ranks of each, where the file says."""

    names: tuple[str, ...]
    slots: int | None = None


def read_hosts(text: str) -> Hosts:
    """`text` is a list with commas, or a file with a host on each line, `slots=N` and comments.

    Raises: UsageError for what cannot be a host, for one that comes twice, for unequal slots.
    """
    file = Path(text)
    if "," not in text and ("/" in text or file.is_file()):
        return _read_file(file)
    names = [name.strip() for name in text.split(",") if name.strip()]
    return Hosts(_checked(names, "--hosts"))


def _read_file(file: Path) -> Hosts:
    try:
        with file.open(encoding="utf-8") as opened:
            lines = opened.read(_LARGEST_FILE).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not text"
        raise UsageError(f"--hosts {file}: cannot be read: {reason}") from error
    names, slots = list[str](), list[int | None]()
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        given = [word.partition("=")[2] for word in words[1:] if word.startswith("slots=")]
        if len(words) - 1 != len(given) or len(given) > 1 or not all(map(_is_count, given)):
            raise UsageError(f"--hosts {file}, line {number}: write it as HOST or HOST slots=8")
        names.append(words[0])
        slots.append(int(given[0]) if given else None)
    if len(set(slots)) > 1:
        raise UsageError(f"--hosts {file}: all hosts need the same slots=, the ranks of a node")
    return Hosts(_checked(names, f"--hosts {file}"), slots[0] if slots else None)


def _is_count(text: str) -> bool:
    return text.isdecimal() and 0 < int(text) < 10_000


def _checked(names: Sequence[str], where: str) -> tuple[str, ...]:
    for name in names:
        if _HOST.fullmatch(name) is None:
            raise UsageError(
                f"{where}: {name!r} is no host; give HOST or USER@HOST, and ports and keys in "
                "~/.ssh/config"
            )
        if names.count(name) > 1:
            raise UsageError(f"{where}: {name} is there twice")
    if not names:
        raise UsageError(f"{where}: names no host")
    return tuple(names)


def find_hosts(hosts: Hosts, ssh: str, environ: Mapping[str, str]) -> SshHosts:
    """The hosts with their addresses. Raises UsageError where they could not work together, or this
    machine is none of them.
    """
    try:
        words = tuple(shlex.split(ssh))
    except ValueError as error:
        raise UsageError(f"--ssh {ssh}: {error}") from error
    if not words:
        raise UsageError("--ssh: give the command, as in --ssh 'ssh -F FILE'")
    _check_gpus(environ.get("CUDA_VISIBLE_DEVICES", ""), len(hosts.names))
    nodes = tuple(_node(name, words, environ) for name in hosts.names)
    _check_addresses(nodes)
    here = next((at for at, node in enumerate(nodes) if _is_here(node.address)), None)
    if here is None:
        listed = ", ".join(f"{node.name} ({node.address})" for node in nodes)
        raise UsageError(
            f"--hosts: this machine is none of {listed}; log in to one of them and run the same "
            "command there"
        )
    return SshHosts(nodes, here, words, dict(environ))


def _check_gpus(visible: str, nodes: int) -> None:
    """Raises UsageError for GPUs that only this machine has; numbers mean the same on each."""
    named = [word for word in visible.split(",") if word.strip().startswith(("GPU-", "MIG-"))]
    if named and nodes > 1:
        raise UsageError(
            f"CUDA_VISIBLE_DEVICES: {named[0].strip()} is on one machine alone; give GPUs by their "
            "numbers, as in CUDA_VISIBLE_DEVICES=0,1, which then are those of every node"
        )


def _node(name: str, ssh: Sequence[str], environ: Mapping[str, str]) -> Node:
    """With the IPv4 address of the host, by the name that ssh's configuration gives it."""
    host = _configured(name, ssh, environ)
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(
            f"--hosts: {host} has no address here ({error.strerror}); give the address itself"
        ) from error
    return Node(name, str(found[0][4][0]), host)


def _configured(name: str, ssh: Sequence[str], environ: Mapping[str, str]) -> str:
    command = (*ssh, "-G", name)
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--ssh: {ssh[0]} does not work: {error}") from error
    words = " ".join(done.stderr.decode(errors="replace").split())[:300]
    if done.returncode:
        raise UsageError(f"--ssh: `{shlex.join(command)}` failed: {words}")
    for line in done.stdout.decode(errors="replace").splitlines():
        key, _, value = line.partition(" ")
        if key == "hostname":
            return value.strip()
    raise UsageError(f"--ssh: {ssh[0]} is not OpenSSH: it does not know -G")


def _check_addresses(nodes: Sequence[Node]) -> None:
    known: dict[str, str] = {}
    for node in nodes:
        if node.address in known:
            raise UsageError(
                f"--hosts: {known[node.address]} and {node.name} are the same ({node.address})"
            )
        known[node.address] = node.name
    looping = [node for node in nodes if ipaddress.ip_address(node.address).is_loopback]
    if 0 < len(looping) < len(nodes):
        node = looping[0]
        raise UsageError(
            f"--hosts: {node.name} is {node.address} here, which the other hosts cannot reach; "
            "give its address in the network instead (/etc/hosts has it so)"
        )


def _is_here(address: str) -> bool:
    """Not by binding it, which a machine may allow for every address (ip_nonlocal_bind)."""
    return interface_of(address) is not None
