"""The main path of `nccltune export`: read, check, write."""

from __future__ import annotations

import os
from pathlib import Path

import click

from nccltune.cli.speaking import readers_may_leave, say
from nccltune.errors import UsageError
from nccltune.nccl.site import asks_for_multicast, multicast_is_off, site_variables
from nccltune.output.best import read_best
from nccltune.output.exports.formats import export
from nccltune.output.exports.result import Result
from nccltune.output.writers import others_can_write
from nccltune.study.folder import StudyPaths, write_text
from nccltune.study.settings_file import read_settings

_YAML = (".yaml", ".yml")


def run_export(file: str, format: str, output: str | None) -> None:
    """Raises: NccltuneError before anything is written."""
    source = _best_file(file)
    target = None if output in (None, "-") else _target(Path(str(output)), source)
    made = export(_result(source), format)
    if target is not None:
        write_text(target, made.text)
    else:
        with readers_may_leave():
            click.echo(made.text.encode(), nl=False)
    for note in filter(None, [others_can_write(source), *made.notes]):
        say(f"nccltune: note: {note}")


def _best_file(file: str) -> Path:
    path = Path(file)
    if path.is_dir():
        found = StudyPaths(path).best_yaml
        if not found.exists():
            raise UsageError(f"{file}: no best.yaml in this folder; `nccltune search` writes it")
        return found
    if path.suffix not in _YAML:
        raise UsageError(f"{file}: not a best.yaml, and no study's folder")
    return path


def _target(path: Path, source: Path) -> Path:
    if path.is_dir():
        raise UsageError(f"-o {path}: is a folder; name a file")
    if not path.parent.is_dir():
        raise UsageError(f"-o {path}: there is no folder {path.parent}")
    if path.exists():
        if not path.is_file():
            raise UsageError(f"-o {path}: is no file; leave -o out for stdout")
        if source.exists() and path.samefile(source):
            raise UsageError(f"-o {path}: is the result itself; name another file")
    return path


def _result(source: Path) -> Result:
    given, best = read_settings(str(source)), read_best(source)
    off = multicast_is_off(site_variables(os.environ))
    asking = [name for name, value in given.env.items() if asks_for_multicast(name, value)]
    if off:
        remarks = [
            f"{name}={given.env[name]} is left out: the site has switched NVLink multicast off"
            for name in asking
        ]
        env = {name: value for name, value in given.env.items() if name not in asking}
    else:
        remarks = [
            f"{name}={given.env[name]} asks for NVLink multicast; take it out where the site has "
            "that switched off"
            for name in asking
        ]
        env = dict(given.env)
    return Result(os.path.abspath(source), best, env, tuple(remarks))
