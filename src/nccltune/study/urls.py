"""URLs of databases: what may be shown of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+._-]*://")
_LOGIN = re.compile(r"(://[^:/@]*):([^@]*)@")
_QUERY = re.compile(r"([?&]\w*passw(?:or)?d=)([^&\s]*)")
_OPTION = "--storage"


def is_url(given: str) -> bool:
    """Whether it is the URL of a database; else it is a path."""
    return _URL.match(given) is not None


def without_password(text: str) -> str:
    """A URL, or a text with URLs, fit to be shown and recorded."""
    return _QUERY.sub(r"\1***", _LOGIN.sub(r"\1:***@", text))


def secrets_of(url: str) -> frozenset[str]:
    """The passwords in a URL, as they stand there and as they are meant."""
    found = {m[2] for m in (*_LOGIN.finditer(url), *_QUERY.finditer(url)) if m[2]}
    return frozenset(found | {unquote(text) for text in found})


def command_without_password(command: Sequence[str]) -> tuple[str, ...]:
    """A command of ours as it may be shown and recorded; what follows -- is the user's own."""
    words = list(command)
    end = words.index("--") if "--" in words else len(words)
    for place in range(end):
        follows = place > 0 and words[place - 1] == _OPTION
        if follows or words[place].startswith(f"{_OPTION}="):
            words[place] = without_password(words[place])
    return tuple(words)
