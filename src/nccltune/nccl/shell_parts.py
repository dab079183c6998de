"""What a shell script consists of: words, commands, here-documents."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Word:
    """`text` has no quotes left. `script` is the same with continued lines still in it, so that
    line numbers hold if it is a script itself. `returned`: a carriage return follows it and ends
    the line.
    """

    line: int
    text: str
    computed: bool = False
    quoted: bool = False
    script: str = ""
    returned: bool = False


@dataclass
class Document:
    """A here-document; `text` is what the command reads, and begins on `line`."""

    delimiter: str
    tabs: bool
    literal: bool
    opened: int
    text: str = ""
    line: int = 0


@dataclass(frozen=True)
class Command:
    """Words between two operators; a lone parenthesis is a command without words. `document` is
    what it reads from its input.
    """

    words: tuple[Word, ...]
    before: str
    after: str
    document: Document | None = None


@dataclass(frozen=True)
class Script:
    """`directives` are the `#SBATCH` lines above the first command. `open_quote` is the line of a
    quote, substitution or here-document that never ends: what follows it is lost. `cut` is the
    first line that a carriage return behind its backslash keeps from going on.
    """

    commands: tuple[Command, ...]
    directives: tuple[tuple[Word, ...], ...]
    open_quote: int | None
    cut: int | None


class Parts:
    """A word in the making."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.script: list[str] = []
        self.computed = False
        self.quoted = False

    def add(self, text: str) -> None:
        self.text.append(text)
        self.script.append(text)

    def continued(self) -> None:
        self.script.append("\\\n")

    def word(self, line: int) -> Word:
        text, script = "".join(self.text), "".join(self.script)
        return Word(line, text, self.computed, self.quoted, script)
