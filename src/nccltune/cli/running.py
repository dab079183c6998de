"""The main path of `nccltune run`: read, compare the machine, choose the way in, become the job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from nccltune.cli.cache import cache_folder
from nccltune.cli.placing import placed_notes
from nccltune.cli.speaking import say
from nccltune.cli.watching import Watching, check_watch, watched
from nccltune.errors import UsageError
from nccltune.launch.attached import ENTRY, lasting_attached_python
from nccltune.launch.commands import JobCommand, rank_count, read_command
from nccltune.launch.libraries import libraries_of
from nccltune.machine.facts import this_machine
from nccltune.machine.fingerprint import Fingerprint, differences, fingerprint
from nccltune.machine.topology import read_topology
from nccltune.nccl.site import site_variables
from nccltune.nccl.to_set import variables_to_set
from nccltune.nccl.versions import known_version
from nccltune.output.best import Best, read_best, result_file
from nccltune.output.fingerprints import difference_lines
from nccltune.output.words import settings
from nccltune.output.writers import others_can_write
from nccltune.study.fingerprinting import comparable, of_result
from nccltune.study.folder import StudyPaths
from nccltune.study.settings_file import JobSettings, read_settings
from nccltune.worker.attach import APPLY, PYTHON_EXEC, USERS_PYTHON_EXEC

# How many there are, for ranks that are started one by one: by torchrun, srun, or mpirun.
_RANKS = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_STUDIES = Path("studies")  # where `search` puts them
# Which of those on one host this is; the first of them speaks.
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


@dataclass(frozen=True)
class _Start:
    """What this process becomes."""

    argv: tuple[str, ...]
    added: Mapping[str, str] = field(default_factory=dict)


def run_job(
    file: str,
    command: Sequence[str],
    *,
    env_only: bool,
    strict: bool,
    loader_match: str | None,
    watch: Watching | None = None,
) -> NoReturn:
    """Raises: NccltuneError where nothing is started."""
    if not command:
        raise UsageError(
            "no command; give it after --, as in: nccltune run best.yaml -- torchrun ..."
        )
    file = _meant(file)
    given = read_settings(file)
    best = read_best(file) if Path(file).suffix in (".yaml", ".yml") else None
    if warning := others_can_write(file):
        _note(warning)
    command, notes = _found(command)
    job = read_command(command, os.environ)
    notes += [] if watch is None else check_watch(watch, job)
    _compare(file, best, job, strict)
    variables = variables_to_set(given.env, os.environ)
    for line in [*notes, *variables.kept, *_notes(best, job)]:
        _note(line)
    wanted = JobSettings(given.name) if env_only else given
    arguments = _arguments(wanted, job)
    seen: Mapping[str, Any] | None = None
    if watch is not None:
        seen, more = watched(watch, file, best, given, arguments)
        for line in more:
            _note(line)
    elif loader_match is not None and not arguments.loader:
        _note(f"--loader-match {loader_match} has no effect: no DataLoader settings are passed")
    start = _start(job, arguments, best, loader_match, seen)
    _tell(_set_words(variables.values, arguments, _whose(job)))
    _become(start.argv, {**os.environ, **variables.values, **start.added})


def _meant(file: str) -> str:
    """The file, also of a study that is named as in `search --study`."""
    named = StudyPaths(_STUDIES / file)
    if os.sep not in file and not os.path.exists(file) and named.definition.is_file():
        file = str(named.folder)
    return str(result_file(file)) if os.path.isdir(file) else file


def _found(command: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    """The command, with the torchrun of our own environment where PATH has none, and what is to be
    said of it. Ends as a shell does where the program is not there.
    """
    program = command[0]
    if os.sep in program and os.path.exists(program) or shutil.which(program) is not None:
        return command, []
    beside = os.path.join(os.path.dirname(sys.executable), program)
    if program == "torchrun" and os.access(beside, os.X_OK):
        return (beside, *command[1:]), [f"torchrun is not on PATH: using {beside}"]
    why = "No such file or directory" if os.sep in program else "command not found"
    say(f"nccltune: {program}: {why}")
    raise SystemExit(127)


# The machine.


def _compare(file: str, best: Best | None, job: JobCommand, strict: bool) -> None:
    """Tell what differs. Raises UsageError where that, or not knowing it, shall stop the job."""
    if best is None or not best.machine:
        if strict:
            raise UsageError(f"--strict: {file} does not say which machine was measured")
        return
    here = differences(of_result(best, file), _here(best, job))
    found = difference_lines([each for each in here if each.matters])
    if found and strict:
        listed = "".join(f"\n  {line}" for line in found)
        raise UsageError(f"--strict: this is not the machine that was measured:{listed}")
    for line in found:
        _note(line)


def _here(best: Best, job: JobCommand) -> Fingerprint:
    """Of this machine as the job's ranks will have it, without what only a launch tells."""
    use_gpus = bool(best.machine.get("gpus"))
    machine, gpus = this_machine(os.environ, use_gpus=use_gpus)
    if job.python is not None:
        found = libraries_of(job.python, os.environ)
        machine = machine.with_job({"torch": found.torch, "nccl_built": _release(found.nccl)})
    ranks = rank_count(job.ranks)
    topology = read_topology(os.environ, use_gpus=use_gpus)
    site = {name: v.value for name, v in site_variables(os.environ).items()}
    indices = [gpu.index for gpu in gpus[:ranks]]
    return fingerprint(machine.of_ranks(ranks), topology, indices, comparable(site), None, {})


def _release(nccl: str | None) -> str | None:
    version = known_version(nccl)
    return None if version is None else str(version)


def _notes(best: Best | None, job: JobCommand) -> list[str]:
    """What a result says of the job that it was measured with, where that matters here."""
    if best is None:
        return []
    notes = []
    usual, placed = best.workload.get("batch_size"), best.workload.get("placed") or {}
    if usual not in (None, best.batch_size) and "batch_size" not in placed:
        notes.append(
            f"measured with batch size {best.batch_size} a rank, not the {usual} of the job; the "
            "batch size is not changed: the script sets it"
        )
    notes += placed_notes(best, job)
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


def _start(
    job: JobCommand,
    given: JobSettings,
    best: Best | None,
    match: str | None,
    seen: Mapping[str, Any] | None,
) -> _Start:
    """`seen`: what is watched; None where nothing is."""
    if not (given.ddp or given.loader or seen):
        return _Start(job.argv)
    apply: dict[str, Any] = {
        "ddp": dict(given.ddp),
        "loader": dict(given.loader),
        "training": None if best is None else best.workload.get("training_loader"),
        "match": match,
        **({} if seen is None else {"watch": seen}),
    }
    program = lasting_attached_python(cache_folder())
    added = {APPLY: json.dumps(apply)}
    if PYTHON_EXEC in os.environ:
        added[USERS_PYTHON_EXEC] = os.environ[PYTHON_EXEC]
    if job.way == "python" and job.script is not None:
        entry = str(program.parent / ENTRY)
        return _Start((*job.argv[: job.script], entry, *job.argv[job.script :]), added)
    return _Start(job.argv, {**added, PYTHON_EXEC: str(program)})


def _whose(job: JobCommand) -> str:
    return "script" if job.way == "python" and not _is_one_of_several() else "ranks"


def _set_words(variables: Mapping[str, str], arguments: JobSettings, whose: str) -> str:
    """Variables are set in the job from the first; arguments are passed once it makes what takes
    them.
    """
    parts = (("DDP", arguments.ddp), ("loader", arguments.loader))
    passed = "; ".join(f"{name}: {settings(values)}" for name, values in parts if values)
    told = [f"set {settings(variables)}"] if variables else []
    told += [f"for the {whose}: {passed}"] if passed else []
    return "; ".join(told) or "nothing to set: the defaults are kept"


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
