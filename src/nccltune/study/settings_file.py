"""Settings of a job from a file of ours or of the user's: an env file, or a best.yaml."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nccltune.errors import UsageError
from nccltune.nccl.accepted import VARIABLE_NAME
from nccltune.nccl.shell_parts import Command
from nccltune.nccl.shell_words import read_script
from nccltune.nccl.site import SiteVariable
from nccltune.nccl.to_set import variables_to_set
from nccltune.output.best import (
    Best,
    allowed_variable,
    read_best,
    read_limited,
    read_variables,
    result_file,
)

DEFAULTS = "defaults"
_LARGEST_BATCH = 1 << 24
_HELD = {"module", "device_ids", "output_device", "process_group"}
_EXPANDED = re.compile(r"^~|:~|[*?\[]")  # what a shell would replace by other text
_SEPARATORS = {"", "\n", ";"}


@dataclass(frozen=True)
class JobSettings:
    """What one side of a comparison sets; what it does not name stays as in the job."""

    name: str
    env: Mapping[str, str] = field(default_factory=dict)
    ddp: Mapping[str, Any] = field(default_factory=dict)
    loader: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int | None = None
    placed: Mapping[str, str] = field(default_factory=dict)
    """What a script's command is given for names in braces."""


def taking_effect(
    side: JobSettings, environ: Mapping[str, str], site: Mapping[str, SiteVariable] | None = None
) -> tuple[JobSettings, tuple[str, ...]]:
    """What of these settings a job in this environment would take, and a line for each variable
    that it would not: what is set already stays, whoever set it, and NVLink multicast stays off
    where it is. `site` is by default what `environ` and NCCL's own files say.
    """
    found = variables_to_set(side.env, environ, site)
    ours = {name: value for name, value in found.values.items() if name in side.env}
    return replace(side, env=ours), found.kept


def read_settings(text: str) -> JobSettings:
    """`defaults`, an env file, or a YAML file such as best.yaml.

    Raises: UsageError naming file, line and what is wrong.
    """
    if text == DEFAULTS:
        return JobSettings(DEFAULTS)
    path = result_file(text)
    if not path.exists():
        raise UsageError(f"{text}: no such file; give an env file, a best.yaml or `{DEFAULTS}`")
    if path.suffix not in (".yaml", ".yml"):
        return JobSettings(text, read_env_file(path))
    best = read_best(path)
    _check_arguments(path, best)
    return JobSettings(text, read_variables(path, best), best.ddp, best.loader, best.batch_size)


def _check_arguments(path: Path, best: Best) -> None:
    for section, values in (("ddp", best.ddp), ("loader", best.loader)):
        for name, value in values.items():
            if not isinstance(name, str) or not _plain(value):
                raise UsageError(f"{path}: {section}.{name}: not a plain value")
    workers = best.loader.get("num_workers", 0)
    if not isinstance(workers, int) or isinstance(workers, bool) or not 0 <= workers <= 1024:
        raise UsageError(f"{path}: loader.num_workers: must be 0 to 1024")
    if held := _HELD & best.ddp.keys():
        raise UsageError(f"{path}: ddp.{min(held)}: belongs to the job, not to settings")
    if best.batch_size > _LARGEST_BATCH:
        raise UsageError(f"{path}: batch_size: must be at most {_LARGEST_BATCH}")


def _plain(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, (bool, int, str))


def read_env_file(path: Path) -> dict[str, str]:
    """NAME=value lines, with or without `export`, as a shell reads them; `#` begins a comment.

    Raises: UsageError for anything that only a shell could work out.
    """
    try:
        script = read_script(read_limited(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    if script.open_quote is not None:
        raise UsageError(f"{path}: line {script.open_quote}: No closing quotation")
    found: dict[str, str] = {}
    for command in filter(lambda command: command.words, script.commands):
        found.update(_assignments(path, command))
    return found


def _assignments(path: Path, command: Command) -> dict[str, str]:
    words = command.words
    where = f"{path}: line {words[0].line}"
    bare = shlex.quote(" ".join(word.text for word in words)[:80])
    if not {command.before, command.after} <= _SEPARATORS:
        raise UsageError(f"{where}: only plain values are read, got {bare}")
    found = {}
    for word in words[1:] if words[0].text == "export" else words:
        name, equals, value = word.text.partition("=")
        if not equals or not VARIABLE_NAME.fullmatch(name):
            raise UsageError(f"{where}: not NAME=value: {bare}")
        if word.computed or (not word.quoted and _EXPANDED.search(value)):
            raise UsageError(f"{where}: only plain values are read, got {bare}")
        ended = "\r" if word.returned else ""  # a shell keeps it
        found[name] = allowed_variable(f"{where}: {name}", name, value + ended)
    return found
