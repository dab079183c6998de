"""What a node is, and what is left on it: `python -m nccltune.worker.look` as the one task of a
step there, standard library only. The tuner asks before it starts ranks, and after a launch that
did not end everywhere.
"""

from __future__ import annotations

import contextlib
import glob
import os
import platform
import shutil
import signal
import socket
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from nccltune.worker.channel import Channel
from nccltune.worker.node import FOLDER, greet, node_number
from nccltune.worker.owners import OWNER, TAG, TUNER

_SECONDS = 10.0
_REFUSED_SECONDS = 2.0
_VERSIONS = ("torch", "torchvision", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
_WITHIN_HOST = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "cilium", "kube")
_GPUS = "/proc/driver/nvidia/gpus/*/information"
NETWORK = "NCCLTUNE_NETWORK"
_SAME = ("SLURM_JOB_ID", NETWORK)  # or a tuner's address may mean another machine here
_FOLDERS = "/tmp/nccltune-*"
_LONGEST_MARK = 1000


def main() -> None:
    try:
        _answer(greet(node_number(os.environ)))
    finally:
        shutil.rmtree(os.environ.get(FOLDER, ""), ignore_errors=True)


def _answer(channel: Channel) -> None:
    wanted = channel.receive()
    ended, left = end_left(wanted["tags"])
    remove_left(wanted["tags"])
    missing = [path for path in wanted["paths"] if not os.path.exists(path)]
    channel.send("seen", facts=facts(), missing=missing, ended=ended, left=left)


def facts() -> dict[str, Any]:
    """What results depend on, without names and addresses."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)),
        "gpus": sorted(_field(text, "Model") for text in _read_all(_GPUS)),
        "usable_gpus": _usable_gpus(os.environ),
        "driver": _driver(),
        "nics": sorted(_nics()),
        "interfaces": sorted(_interfaces()),
        "python": platform.python_version(),
        **{name: version for name in _VERSIONS if (version := _version(name)) is not None},
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _read_all(pattern: str) -> list[str]:
    return [_read(path) for path in sorted(glob.glob(pattern))]


def _field(text: str, name: str) -> str:
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _cpu() -> str:
    return _field(_read("/proc/cpuinfo"), "model name") or platform.machine()


def _usable_gpus(environ: Mapping[str, str]) -> int | None:
    """How many of them this job has here; None where Slurm does not give out GPUs."""
    seen, given = environ.get("CUDA_VISIBLE_DEVICES"), environ.get("SLURM_GPUS_ON_NODE", "")
    if seen is not None:
        return sum(part.strip() not in ("", "-1", "NoDevFiles") for part in seen.split(","))
    return int(given) if given.isdecimal() else None


def _driver() -> str | None:
    words = _read("/proc/driver/nvidia/version").partition("\n")[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), None)


def _nics() -> Iterator[str]:
    """Kind and speed of each network card and RDMA port that has a device of its own."""
    for device in glob.glob("/sys/class/net/*/device"):
        speed = _read(str(Path(device).parent / "speed")).strip()
        known = speed.isdecimal()  # -1 where the driver does not tell
        yield f"network card {f'{speed} Mb/s' if known else 'speed unknown'}"
    for rate in glob.glob("/sys/class/infiniband/*/ports/*/rate"):
        layer = _read(str(Path(rate).parent / "link_layer")).strip()
        yield f"{layer or 'RDMA'} {_read(rate).strip()}"


def _interfaces() -> Iterator[str]:
    """Names of those that may reach other hosts."""
    for folder in glob.glob("/sys/class/net/*"):
        name = os.path.basename(folder)
        if not name.startswith(_WITHIN_HOST) and _read(f"{folder}/operstate").strip() != "down":
            yield name


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def end_left(tags: Sequence[str]) -> tuple[int, list[int]]:
    """End what has one of these tags, and what tuners of this job have left that live no more.
    Returns how many processes were met, and which cannot be ended.
    """
    met: set[int] = set()
    deadline = time.monotonic() + _SECONDS
    while living := [pid for pid, found in _tagged() if _is_left(found, tags)]:
        met.update(living)
        if time.monotonic() > deadline:
            return len(met), living
        for pid in living:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return len(met), []


def remove_left(tags: Sequence[str]) -> None:
    """Remove the folders of agents that were killed: of these tags, and of dead tuners whose
    network this is.
    """
    for folder in map(Path, glob.glob(_FOLDERS)):
        with contextlib.suppress(OSError, ValueError):
            marks = (folder / OWNER, folder / TUNER)
            kinds = [stat.S_ISDIR(folder.lstat().st_mode)]
            kinds += [stat.S_ISREG(mark.lstat().st_mode) for mark in marks]
            ours = all(path.lstat().st_uid == os.getuid() for path in (folder, *marks))
            if not (ours and all(kinds)) or any(m.stat().st_size > _LONGEST_MARK for m in marks):
                continue
            tag, address = (mark.read_text() for mark in marks)
            address, _, network = address.partition(" ")
            if tag in tags or (network == os.environ.get(NETWORK) and _is_refused(address)):
                shutil.rmtree(folder, ignore_errors=True)


def _tagged() -> Iterator[tuple[int, dict[str, str]]]:
    """Living processes with a tag and their environment, but for us and those above us."""
    above, pid = set[int](), os.getpid()
    while pid > 0 and pid not in above:
        above.add(pid)
        pid = int((_stat(pid) or ["", "0"])[1])
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in above:
            continue
        with contextlib.suppress(OSError):
            raw = Path(f"/proc/{entry}/environ").read_bytes()
            if f"{TAG}=".encode() not in raw or (_stat(int(entry)) or "Z")[0] == "Z":
                continue
            words = raw.decode(errors="surrogateescape").split("\0")
            yield int(entry), dict(w.split("=", 1) for w in words if "=" in w)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on."""
    text = _read(f"/proc/{pid}/stat")
    return text.rpartition(")")[2].split() or None


def _is_left(found: dict[str, str], tags: Sequence[str]) -> bool:
    """Of these tags; or of this job or network, by a tuner where nobody listens any more."""
    if found[TAG] in tags:
        return True
    address = found.get("NCCLTUNE_ADDRESS")
    ours = any(name in os.environ and found.get(name) == os.environ[name] for name in _SAME)
    return ours and address is not None and _is_refused(address)


def _is_refused(address: str) -> bool:
    """Whether that machine answers that nobody listens there. Silence tells nothing."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_REFUSED_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False
    return False


if __name__ == "__main__":
    main()
