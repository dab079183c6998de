"""From what ranks leave behind (error records, status, logs, exit codes) to one typed failure."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nccltune.launch.protocol import Failure, FailureKind

# What a rank reports when another one is gone: true, but not the cause.
_CONSEQUENCE = re.compile(
    r"connection (was )?(closed|reset)|broken pipe|socket (closed|timeout)|remote process exited|"
    r"connection refused|tuner closed the connection|failed to (recv|send)",
    re.IGNORECASE,
)
_PHASES = (
    "start",
    "import",
    "rendezvous",
    "idle",
    "build",
    "first_step",
    "check",
    "warmup",
    "measure",
    "verify",
    "probe",
)
_PARTS = ("", "data", "forward", "backward")
_TAIL_LINES = 12


@dataclass(frozen=True)
class Position:
    """Where a rank was last seen."""

    rank: int
    phase: str
    step: int
    part: str

    @property
    def progress(self) -> tuple[int, int, int]:
        phase = _PHASES.index(self.phase) if self.phase in _PHASES else len(_PHASES)
        return phase, self.step, _PARTS.index(self.part) if self.part in _PARTS else 0

    def __str__(self) -> str:
        where = f"rank {self.rank} in {self.phase.replace('_', ' ')}"
        return f"{where}, step {self.step} ({self.part})" if self.part else where


def positions(folder: Path) -> list[Position]:
    """The last status of every rank that got far enough to write one, by rank."""
    found = []
    for file in folder.glob("rank*.status"):
        fields = file.read_text(errors="replace").strip().split("|")
        if len(fields) == 3 and fields[1].isdigit():
            rank = int(file.stem.removeprefix("rank"))
            found.append(Position(rank, fields[0], int(fields[1]), fields[2].strip()))
    return sorted(found, key=lambda position: position.rank)


def error_records(folder: Path) -> list[dict[str, Any]]:
    """What failing ranks recorded, causes before consequences, then by time."""
    records = []
    for file in folder.glob("rank*.error.json"):
        try:
            records.append(json.loads(file.read_text()))
        except (OSError, ValueError):
            continue
    return sorted(records, key=lambda r: (bool(_CONSEQUENCE.search(r["message"])), r["time"]))


def silent(folder: Path, phase: str, seconds: float) -> Failure:
    """No news within the limit: the rank that is furthest behind is the one to look at."""
    where = positions(folder)
    message = f"no news for {seconds:.0f} s in phase {phase.replace('_', ' ')}"
    if where:
        message += ": " + "; ".join(str(position) for position in where[:8])
    suspect = min(where, key=lambda p: p.progress).rank if where else None
    return _failure("timeout", message, suspect, folder)


def ended(
    folder: Path,
    lost: Sequence[int],
    codes: Mapping[int, int],
    exit_code: int | None,
    killed: Collection[int] = (),
    trouble: str | None = None,
) -> Failure:
    """The group ended by itself. `lost` are the ranks whose process was gone when that was noticed,
    `codes` the exit codes by rank as far as known (negative for signals), `killed` the ranks that
    we ended ourselves then; `exit_code` is that of the launch, `trouble` what the launch itself
    knows of why no rank came up.
    """
    if trouble is not None:
        return _failure("crashed", trouble, None, folder)
    records = error_records(folder)
    if records and not _CONSEQUENCE.search(records[0]["message"]):
        first = records[0]
        message = str(first["message"]) + _nccl_reason(folder, first["kind"])
        return _failure(first["kind"], message, first["rank"], folder)
    # Ranks that recorded a consequence are not the cause, nor those that were ended since.
    innocent = {record["rank"] for record in records} | set(killed)
    named = [r for r, code in codes.items() if r not in innocent and code != -signal.SIGTERM]
    vanished = named or [rank for rank in lost if rank not in innocent]
    if vanished:
        rank = vanished[0]
        return _failure("crashed", f"rank {rank} {how_ended(codes.get(rank))}", rank, folder)
    if records:
        return _failure(records[0]["kind"], records[0]["message"], records[0]["rank"], folder)
    code = "" if exit_code is None else f" with exit code {exit_code}"
    when = "" if positions(folder) else " before any rank was up"
    return _failure("crashed", f"the launch ended{code}{when}", None, folder)


def how_ended(code: int | None) -> str:
    """An exit code, negative for a signal, in words; None where it is not known."""
    if code is None:
        return "was killed or ended without a word"
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        hint = " (the kernel does that too when host memory runs out)" if code == -9 else ""
        return f"was ended by {name}{hint}"
    return f"ended by itself with exit code {code}"


def _nccl_reason(folder: Path, kind: str) -> str:
    """NCCL's own warning, which it writes to its log and not to the exception."""
    if kind != "nccl_error":
        return ""
    for file in sorted(folder.glob("nccl.*.log")):
        warnings = [
            line.partition("NCCL WARN")[2].strip()
            for line in read_end(file).splitlines()
            if "NCCL WARN" in line
        ]
        if warnings:
            return f" [NCCL: {warnings[0][:200]}]"
    return ""


def _failure(kind: FailureKind, message: str, rank: int | None, folder: Path) -> Failure:
    log = folder / ("launcher.log" if rank is None else f"rank{rank}.log")
    if not log.exists():
        log = folder / "launcher.log"
    lines = [line for line in read_end(log).splitlines() if line.strip()]
    return Failure(
        kind=kind,
        message=" ".join(message.split())[:600],
        rank=rank,
        log=str(log),
        tail=tuple(line[:300] for line in lines[-_TAIL_LINES:]),
    )


def read_end(file: Path, most: int = 1 << 20) -> str:
    """The end of a file as text; empty where it is missing."""
    try:
        with file.open("rb") as opened:
            opened.seek(0, 2)
            opened.seek(max(0, opened.tell() - most))
            return opened.read().decode(errors="replace")
    except OSError:
        return ""
