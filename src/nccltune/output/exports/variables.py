"""Formats that hold environment variables alone."""

from __future__ import annotations

import re

from nccltune.errors import UsageError
from nccltune.nccl.readers import reader_of
from nccltune.nccl.site import conf_lines, conf_setting
from nccltune.output.env_file import env_file
from nccltune.output.exports.command_lines import job_command
from nccltune.output.exports.result import (
    VARIABLES,
    Exported,
    Result,
    comments,
    one_line,
    provenance_lines,
    remarks,
)

_DOCKER_LINE = 64 * 1024 - 2  # bytes: what docker's line scanner holds, with its line end
_NOT_FROM_CONF = frozenset({"NCCL_CONF_FILE", "NCCL_ENV_PLUGIN"})  # read before that file
# python-dotenv puts other variables into a value, whatever its quotes, unescapes in them, and takes
# every line end for a line feed.
_DOTENV_READS_OTHERWISE = re.compile(r"['\\\r]|\$\{")


def env(result: Result) -> Exported:
    """`export NAME=value` lines for any POSIX shell, as best.env has them."""
    notes = remarks(result, VARIABLES)
    header = [*provenance_lines(result.best), *notes]
    told = [*notes, *_dotenv_notes(result)]
    return Exported(env_file(result.env, [one_line(line) for line in header]), tuple(told))


def _dotenv_notes(result: Result) -> list[str]:
    names = [name for name, value in result.env.items() if _DOTENV_READS_OTHERWISE.search(value)]
    if not names:
        return []
    return [f"for a shell: python-dotenv may read the file otherwise, for {' '.join(names)}"]


def slurm(result: Result) -> Exported:
    """The same lines for a job script, with the launch as a comment."""
    notes = remarks(result, VARIABLES)
    header = [
        "below the #SBATCH lines of a job script; srun and torchrun hand these variables on (where "
        "the job was submitted with --export=NONE: srun --export=ALL)",
        "measured on one node; ranks on several talk over a network that no trial has seen",
        *provenance_lines(result.best),
        *notes,
    ]
    launch = comments([f"srun --ntasks-per-node=1 {job_command(result)} train.py"])
    text = env_file(result.env, [one_line(line) for line in header])
    return Exported(text + launch, tuple(notes))


def docker(result: Result) -> Exported:
    """Lines for `docker run --env-file`: all behind the first `=` is the value, to the line's end.

    Raises: UsageError for a value that such a line cannot hold.
    """
    notes = remarks(result, VARIABLES)
    header = [
        "for docker run --env-file FILE; in docker compose (2.30 on): env_file with format: raw",
        *provenance_lines(result.best),
        *notes,
    ]
    lines = [_docker_line(result, name, value) for name, value in result.env.items()]
    return Exported(comments(header) + "".join(lines), tuple(notes))


def _docker_line(result: Result, name: str, value: str) -> str:
    line = f"{name}={value}"
    if "\n" in value or value.endswith("\r"):
        raise UsageError(
            f"{result.file}: env.{name}: holds a line break, which a file of docker --env-file "
            "cannot say; --format env can"
        )
    if len(line.encode()) > _DOCKER_LINE:
        raise UsageError(
            f"{result.file}: env.{name}: longer than docker --env-file takes in a line "
            f"({_DOCKER_LINE} bytes)"
        )
    return line + "\n"


def nccl_conf(result: Result) -> Exported:
    """NCCL's own file: NAME=VALUE, nothing quoted, and only what NCCL reads after that file.

    Raises: UsageError for a value that NCCL would cut.
    """
    others = [name for name in result.env if not _reads_from_conf(name)]
    notes = remarks(result, VARIABLES)
    if others:
        listed = " ".join(f"{name}={result.env[name]}" for name in others)
        notes.append(f"not read from nccl.conf, so left out; export it in the job: {listed}")
    header = [
        "for NCCL: as ~/.nccl.conf or /etc/nccl.conf, or named by NCCL_CONF_FILE (from NCCL 2.23.4 "
        "on); variables that are set already stay",
        *provenance_lines(result.best),
        *notes,
    ]
    kept = {name: value for name, value in result.env.items() if name not in others}
    lines = [_conf_line(result, name, value) for name, value in kept.items()]
    return Exported(comments(header) + "".join(lines), tuple(notes))


def _reads_from_conf(name: str) -> bool:
    """Whether NCCL itself reads it, and not before it reads that file."""
    return name.startswith("NCCL_") and name not in _NOT_FROM_CONF and reader_of(name) is None


def _conf_line(result: Result, name: str, value: str) -> str:
    line = f"{name}={value}"
    seen = [conf_setting(part) for _, part in conf_lines(line.encode())]
    if seen != [(name, value)]:
        raise UsageError(
            f"{result.file}: env.{name}: a line of nccl.conf cannot hold it: NCCL takes 1023 bytes "
            "of a value, and no line break; --format env can"
        )
    return line + "\n"
