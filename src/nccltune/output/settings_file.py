"""Settings of a job from a file of ours or of the user's: an env file, or a best.yaml."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nccltune.errors import UsageError
from nccltune.output.best import read_best

DEFAULTS = "defaults"
_EXPANDED = re.compile(r"""=~|=[^'"#\s]*[*?\[]""")  # what a shell would replace by other text
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class JobSettings:
    """What one side of a comparison sets; what it does not name stays as in the job."""

    name: str
    env: Mapping[str, str] = field(default_factory=dict)
    ddp: Mapping[str, Any] = field(default_factory=dict)
    loader: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int | None = None


def read_settings(text: str) -> JobSettings:
    """`defaults`, an env file, or a YAML file such as best.yaml.

    Raises: UsageError naming file, line and what is wrong.
    """
    if text == DEFAULTS:
        return JobSettings(DEFAULTS)
    path = Path(text)
    if not path.is_file():
        raise UsageError(f"{text}: no such file; give an env file, a best.yaml or `{DEFAULTS}`")
    if path.suffix in (".yaml", ".yml"):
        best = read_best(path)
        return JobSettings(text, best.env, best.ddp, best.loader, best.batch_size)
    return JobSettings(text, read_env_file(path))


def read_env_file(path: Path) -> dict[str, str]:
    """NAME=value lines, with or without `export`, quoted as in a shell; `#` begins a comment.

    Raises: UsageError for anything that only a shell could work out.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        for name, value in _assignments(path, number, line):
            found[name] = value
    return found


def _words(line: str) -> list[str]:
    """As a shell splits the line; its operators are words of their own. Raises ValueError."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>()")
    lexer.whitespace_split, lexer.commenters = True, ""
    words = []
    for word in lexer:
        if word.startswith("#"):
            break
        words.append(word)
    return words


def _assignments(path: Path, number: int, line: str) -> list[tuple[str, str]]:
    try:
        words = _words(line)
    except ValueError as error:
        raise UsageError(f"{path}: line {number}: {error}") from error
    if words[:1] == ["export"]:
        words = words[1:]
    pairs = [word.partition("=") for word in words]
    bare = shlex.quote(line.strip())
    if any(not found or not _NAME.fullmatch(name) for name, found, _ in pairs):
        raise UsageError(f"{path}: line {number}: not NAME=value: {bare}")
    if any("$" in value or "`" in value for _, _, value in pairs) or _EXPANDED.search(line):
        raise UsageError(f"{path}: line {number}: only plain values are read, got {bare}")
    return [(name, value) for name, _, value in pairs]
