"""best.env: variables to be sourced by any POSIX shell, under a header that says where from."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence


def env_file(variables: Mapping[str, str], header: Sequence[str]) -> str:
    """The text of an env file. With no variables it holds the header alone: keep the defaults."""
    comments = [f"# {' '.join(line.split())}".rstrip() for line in header]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join([*comments, *exports]) + "\n"
