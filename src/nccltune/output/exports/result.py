"""What every format starts from: the settings, and what a file says of where they come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal

from nccltune.nccl.findings import shown
from nccltune.output.best import Best
from nccltune.output.words import settings

Target = Literal["env", "ddp", "loader"]
VARIABLES: frozenset[Target] = frozenset({"env"})
ALL: frozenset[Target] = frozenset({"env", "ddp", "loader"})

_LONGEST = 1000  # characters, of at most 4 bytes: NCCL takes 4095 bytes for a line of its file
_MOST_RANKS = 4096


@dataclass(frozen=True)
class Result:
    """A best.yaml that was read and checked. `file` is its absolute path; `env` holds the variables
    that may be set, `remarks` what was said while they were chosen.
    """

    file: str
    best: Best
    env: Mapping[str, str]
    remarks: tuple[str, ...] = ()

    @property
    def ddp(self) -> Mapping[str, Any]:
        return self.best.ddp

    @property
    def loader(self) -> Mapping[str, Any]:
        return self.best.loader

    @property
    def is_empty(self) -> bool:
        """Whether the defaults are kept."""
        return not (self.env or self.ddp or self.loader)


@dataclass(frozen=True)
class Exported:
    """`text` is the whole file, in UTF-8. `notes` are for whoever exports."""

    text: str
    notes: tuple[str, ...] = field(default=())


def one_line(text: str) -> str:
    """Text for a comment: one printable line that is not too long for any reader."""
    line = shown(text, _LONGEST)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def comments(lines: Sequence[str]) -> str:
    """Lines that begin with `#`, each of one comment."""
    return "".join(f"# {one_line(line)}".rstrip() + "\n" for line in lines)


def ranks(best: Best) -> int | None:
    """How many ranks were measured on each node, None where the file does not say."""
    count = best.workload.get("nproc_per_node")
    if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= _MOST_RANKS:
        return count
    return len(_gpus(best)) or None


def nodes(best: Best) -> int:
    """On how many machines they were, with as many ranks each."""
    count = best.workload.get("nodes")
    return count if type(count) is int and 0 < count <= _MOST_RANKS else 1


def on_gpus(best: Best) -> bool:
    return best.workload.get("device") != "cpu" and best.workload.get("backend") != "gloo"


# Where it comes from.


def provenance(best: Best) -> dict[str, str]:
    """One line each, by name; what the file lacks is left out."""
    told = {
        "study": _study(best),
        "date": _text(best.provenance.get("date")),
        "command": _text(best.provenance.get("command")),
        "machine": _machine(best),
        "job": _job(best),
        "verdict": _verdict(best),
    }
    return {name: one_line(text) for name, text in told.items() if text}


def provenance_lines(best: Best) -> list[str]:
    version = _text(best.provenance.get("nccltune")) or "of an unknown version"
    return [
        f"exported from a result of nccltune {version}",
        *(f"{name}: {text}" for name, text in provenance(best).items()),
    ]


def _text(value: object) -> str | None:
    """A plain value of a file that may hold anything."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float, date)):
        return None
    return str(value)


def _study(best: Best) -> str | None:
    name = _text(best.provenance.get("study"))
    trial, trials = (_text(best.provenance.get(part)) for part in ("trial", "trials"))
    if name is None or trial is None:
        return name
    if trial == "0":
        return f"{name}, the defaults, after {trials or 'some'} trials"
    return f"{name}, trial {trial}" + (f" of {trials}" if trials else "")


def _gpus(best: Best) -> list[str]:
    gpus = best.machine.get("gpus")
    return [gpu for gpu in gpus if isinstance(gpu, str)] if isinstance(gpus, list) else []


def _machine(best: Best) -> str | None:
    machine = best.machine
    cores = _text(machine.get("cores"))
    parts = [f"{count}x {name}" for name, count in Counter(_gpus(best)).items()]
    if not parts and cores:
        parts = [f"{cores} CPU cores, no GPU"]
    versions = {
        "driver": machine.get("driver"),
        "NCCL": best.provenance.get("nccl") or machine.get("nccl"),
        "torch": machine.get("torch"),
    }
    found = {name: text for name, value in versions.items() if (text := _text(value))}
    return "; ".join([", ".join(parts), *(f"{n} {v}" for n, v in found.items())]).strip("; ")


def _job(best: Best) -> str | None:
    model, precision = (_text(best.workload.get(part)) for part in ("model", "precision"))
    count, hosts = ranks(best), _text(best.workload.get("emulate_hosts"))
    parts = [
        model,
        f"batch {best.batch_size} a rank",
        precision,
        f"{count} ranks" if count else None,
        f"on each of {nodes(best)} nodes" if nodes(best) > 1 else None,
        f"which talked over sockets as if on {hosts} hosts" if hosts else None,
    ]
    return ", ".join(part for part in parts if part) if model else None


def _verdict(best: Best) -> str:
    verdict = best.verdict if isinstance(best.verdict, Mapping) else {}
    return _text(verdict.get("sentence")) or _text(verdict.get("word")) or "not confirmed"


# What a format says of a result beside its settings.


def remarks(result: Result, carries: frozenset[Target]) -> list[str]:
    """What the reader of the file, and whoever exports, should know; `carries` is what the format
    has a place for.
    """
    lines = [*result.remarks, *_left_out(result, carries), *_of_the_job(result.best)]
    if result.is_empty:
        return [*lines, "nothing to set: keep the defaults"]
    if result.best.provenance.get("trial") == 0:
        lines.append("the defaults were kept: what is set is the job's own, or held by --fix")
    if carries == VARIABLES and not result.env:
        lines.append("no variable to set: keep NCCL's defaults")
    return lines


def _left_out(result: Result, carries: frozenset[Target]) -> Iterator[str]:
    told = {"ddp": ("DDP arguments", result.ddp), "loader": ("DataLoader settings", result.loader)}
    missing = [told[target] for target in ("ddp", "loader") if target not in carries]
    found = [f"{what} ({settings(values)})" for what, values in missing if values]
    if found:
        yield (
            f"not part of this format: {' and '.join(found)}; `nccltune run` passes them, "
            "--format python writes them as code"
        )


def _of_the_job(best: Best) -> Iterator[str]:
    """Differences between the job that was measured and the one that the user has."""
    usual = best.workload.get("batch_size")
    if isinstance(usual, int) and usual != best.batch_size:
        yield (
            f"measured with batch size {best.batch_size} a rank, not the {usual} of the job: "
            "another training, set it in the script"
        )
    placed = best.workload.get("placed")
    if isinstance(placed, Mapping):
        for name, value in placed.items():
            yield f"measured with {name}={value} in the script's arguments; give it there"
    unpinned = best.provenance.get("unpinned")
    if isinstance(unpinned, list) and unpinned:
        names = " ".join(name for name in unpinned if isinstance(name, str))
        yield f"measured without {names}: take that out of the job's environment"
