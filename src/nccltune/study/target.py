"""What `verify` and `retune` are asked about: a result, and the command that made it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from nccltune.errors import UsageError
from nccltune.output.best import Best, read_best, result_file
from nccltune.output.writers import others_can_write
from nccltune.study.folder import StudyPaths, find_study, read_definition
from nccltune.study.generations import current, read_history
from nccltune.study.options import SearchOptions

_BESTS = ("best.yaml", "best-batch.yaml")


@dataclass(frozen=True)
class Target:
    """`paths` is the study that the file lies in, None where it lies by itself. `own`: it is the
    user's own study, so that what its command starts may be started again.
    """

    file: Path
    best: Best
    command: str
    paths: StudyPaths | None
    own: bool


def read_target(text: str, studies_dir: Path) -> Target:
    """A best.yaml, a study's folder, or the name of a study. Raises UsageError."""
    given = Path(text)
    if given.is_file():
        return _of_file(given)
    paths = find_study(text, studies_dir)
    return _of_study(paths, result_file(paths.folder))


def _of_file(file: Path) -> Target:
    if file.suffix not in (".yaml", ".yml"):
        beside = file.with_name("best.yaml")
        raise UsageError(
            f"{file}: only a best.yaml says which job it is for; give "
            f"{beside if beside.is_file() else 'that'}, or use `nccltune compare defaults {file}`"
        )
    paths = StudyPaths(file.parent)
    if file.name in _BESTS and paths.definition.is_file():
        return _of_study(paths, file)
    best = read_best(file)
    return Target(file, best, _command(file, best), None, own=False)


def _of_study(paths: StudyPaths, file: Path) -> Target:
    """The command is that of the generation whose files are the study's."""
    made = paths.generation(current(read_history(paths)))
    if not made.definition.is_file():
        made = paths
    command = str(read_definition(made)["command"])
    own = not any(map(others_can_write, (file, paths.definition, made.definition)))
    return Target(file, read_best(file), command, paths, own)


def _command(file: Path, best: Best) -> str:
    command = best.provenance.get("command")
    if not isinstance(command, str):
        raise UsageError(f"{file}: provenance.command: missing, so it does not say of which job")
    return command


def harmless(target: Target, options: SearchOptions, given: frozenset[str]) -> SearchOptions:
    """Files from elsewhere are data: a program that only they name is not started, and what they
    allow is not allowed. `given` are the options that the user has typed. Raises UsageError.
    """
    if target.own:
        return options
    named = {
        "script": " ".join(options.script),
        "model": options.model if ":" in (options.model or "") else None,
        "data": options.data if ":" in options.data else None,
        "python": options.python,
    }
    for name, value in named.items():
        if not value or name in given:
            continue
        how = f"-- {value}" if name == "script" else f"--{name} {value}"
        raise UsageError(
            f"{target.file}: it is of a job that starts {value!r}, and it is no study of your own; "
            f"if that shall be started, say so: add `{how}`"
        )
    return replace(
        options,
        allow_saves=False,
        allow_busy=options.allow_busy and "allow_busy" in given,
        unpin=(),
    )
