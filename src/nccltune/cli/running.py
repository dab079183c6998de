"""The main path of `nccltune run`: read, compare the machine, choose the way in, become the job."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from nccltune.cli.cache import cache_folder
from nccltune.cli.speaking import say
from nccltune.errors import UsageError
from nccltune.launch.attached import ENTRY, lasting_attached_python
from nccltune.launch.commands import JobCommand, read_command
from nccltune.launch.libraries import libraries_of
from nccltune.machine.differences import machine_differences
from nccltune.machine.facts import this_machine
from nccltune.nccl.to_set import variables_to_set
from nccltune.nccl.versions import known_version
from nccltune.output.best import Best, read_best
from nccltune.output.words import settings
from nccltune.study.settings_file import JobSettings, read_settings
from nccltune.worker.attach import APPLY, PYTHON_EXEC, USERS_PYTHON_EXEC

# How many there are, for ranks that are started one by one: by torchrun, srun, or mpirun.
_RANKS = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
# Which of those on one host this is; the first of them speaks.
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


@dataclass(frozen=True)
class _Start:
    """What this process becomes."""

    argv: tuple[str, ...]
    added: Mapping[str, str] = field(default_factory=dict)


def run_job(
    file: str, command: Sequence[str], *, env_only: bool, strict: bool, loader_match: str | None
) -> NoReturn:
    """Raises: NccltuneError where nothing is started."""
    if not command:
        raise UsageError(
            "no command; give it after --, as in: nccltune run best.yaml -- torchrun ..."
        )
    given = read_settings(file)
    best = read_best(file) if Path(file).suffix in (".yaml", ".yml") else None
    job = read_command(command, os.environ)
    _compare(file, best, job, strict)
    variables = variables_to_set(given.env, os.environ)
    for line in [*variables.kept, *_notes(best)]:
        _note(line)
    wanted = JobSettings(given.name) if env_only else given
    arguments = _arguments(wanted, job)
    start = _start(job, arguments, best, loader_match)
    _tell(_set_words(variables.values, arguments))
    _become(start.argv, {**os.environ, **variables.values, **start.added})


# The machine.


def _compare(file: str, best: Best | None, job: JobCommand, strict: bool) -> None:
    """Tell what differs. Raises UsageError where that, or not knowing it, shall stop the job."""
    if best is None or not best.machine:
        if strict:
            raise UsageError(f"--strict: {file} does not say which machine was measured")
        return
    machine, _gpus = this_machine(os.environ, use_gpus=bool(best.machine.get("gpus")))
    if job.python is not None:
        found = libraries_of(job.python, os.environ)
        machine = machine.with_job({"torch": found.torch, "nccl_built": _release(found.nccl)})
    ranks = int(job.ranks) if job.ranks is not None and job.ranks.isdecimal() else None
    differences = list(machine_differences(best.machine, machine, ranks))
    if differences and strict:
        listed = "".join(f"\n  {line}" for line in differences)
        raise UsageError(f"--strict: this is not the machine that was measured:{listed}")
    for line in differences:
        _note(line)


def _release(nccl: str | None) -> str | None:
    version = known_version(nccl)
    return None if version is None else str(version)


def _notes(best: Best | None) -> list[str]:
    """What a result says of the job that it was measured with, where that matters here."""
    if best is None:
        return []
    notes = []
    usual = best.workload.get("batch_size")
    if usual is not None and usual != best.batch_size:
        notes.append(
            f"measured with batch size {best.batch_size} a rank, not the {usual} of the job; the "
            "batch size is not changed: the script sets it"
        )
    placed = best.workload.get("placed") or {}
    notes += [
        f"measured with {value} for {{{name}}} in the script's arguments; give it there"
        for name, value in placed.items()
    ]
    unpinned = [n for n in best.provenance.get("unpinned") or () if n in os.environ]
    return notes + [f"measured without {name}, which is set here" for name in unpinned]


# The way in.


def _arguments(given: JobSettings, job: JobCommand) -> JobSettings:
    """Those arguments that can reach the job; what cannot is told."""
    if not (given.ddp or given.loader):
        return given
    if job.without_python is not None:
        _note(f"{job.without_python}: DDP and loader arguments cannot be passed, variables are set")
        return JobSettings(given.name, given.env)
    if job.way == "other":
        program = os.path.basename(job.argv[0])
        _note(f"DDP and loader arguments reach only ranks that torchrun starts below {program}")
    if job.way == "python" and given.ddp and not _is_one_of_several():
        _note(
            f"DDP arguments are left out ({settings(given.ddp)}): ranks that a script starts by "
            "itself would not all have them; start it with torchrun"
        )
        return JobSettings(given.name, given.env, {}, given.loader)
    return given


def _is_one_of_several() -> bool:
    """Whether each rank is started like this one."""
    return any(os.environ.get(name, "1") not in ("", "0", "1") for name in _RANKS)


def _start(job: JobCommand, given: JobSettings, best: Best | None, match: str | None) -> _Start:
    if not (given.ddp or given.loader):
        return _Start(job.argv)
    apply: dict[str, Any] = {
        "ddp": dict(given.ddp),
        "loader": dict(given.loader),
        "training": None if best is None else best.workload.get("training_loader"),
        "match": match,
    }
    program = lasting_attached_python(cache_folder())
    added = {APPLY: json.dumps(apply)}
    if PYTHON_EXEC in os.environ:
        added[USERS_PYTHON_EXEC] = os.environ[PYTHON_EXEC]
    if job.way == "python" and job.script is not None:
        entry = str(program.parent / ENTRY)
        return _Start((*job.argv[: job.script], entry, *job.argv[job.script :]), added)
    return _Start(job.argv, {**added, PYTHON_EXEC: str(program)})


def _set_words(variables: Mapping[str, str], arguments: JobSettings) -> str:
    parts = (("", variables), ("DDP: ", arguments.ddp), ("loader: ", arguments.loader))
    told = [f"{name}{settings(values)}" for name, values in parts if values]
    return f"set {'; '.join(told)}" if told else "nothing to set: the defaults are kept"


def _become(argv: tuple[str, ...], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process. What Python ignores is not ignored in the command."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(argv[0], argv, dict(environ))
    except OSError as error:
        say(f"nccltune: error: {argv[0]}: cannot be started: {error.strerror}")
        raise SystemExit(127 if isinstance(error, FileNotFoundError) else 126) from None


def _note(text: str) -> None:
    _tell(f"note: {text}")


def _tell(text: str) -> None:
    if all(os.environ.get(name, "0") == "0" for name in _LOCAL_RANK):
        say(f"nccltune: {text}")
