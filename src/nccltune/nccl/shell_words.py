"""A shell script cut into commands and words, as far as that goes without running it.

What POSIX calls token recognition: quotes, escapes, continued lines, comments, here-documents,
operators. What a shell would compute (`$NAME`, `$(command)`) stays in the word as it is written,
and the word is marked. Any text can be read, in a time that grows with its length alone.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nccltune.nccl.shell_parts import Command, Document, Parts, Script, Word

_PLAIN = re.compile(r"[^ \t\n\\'\"$`;&|<>()]+")
_NAMED = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])", re.A)
_OPERATOR = re.compile(r";;&?|;&|&&|\|\||<<<|<<-?|&>>?|<&|>&|>>|<>|>\||[;&|<>()\n]")
_CLOSER = {"(": ")", "{": "}"}
_GO_ON = frozenset({"&&", "||", "|", ";;", ";;&", ";&"})  # behind them a new line is nothing
# A calculation, in which << is no here-document: (( ... )), on one line, brackets three deep.
_CALCULATION = re.compile(r"\(\((?:[^()\n]|\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\))*\)\)")
_KEPT_BACKSLASH = re.compile(r"\\([$`\\])")


def read_script(text: str, first_line: int = 1) -> Script:
    """The script's commands in their order. `first_line` is the number of its first line."""
    scanner = _Scanner(text, first_line)
    commands = tuple(_commands(scanner))
    return Script(commands, tuple(scanner.directives), scanner.open_quote, scanner.cut)


@dataclass(frozen=True)
class _Operator:
    text: str
    touches: bool  # no blank between it and the word before


def _commands(scanner: _Scanner) -> Iterator[Command]:
    words: list[Word] = []
    before, redirected = "", False
    document: Document | None = None
    for token in scanner.tokens():
        if isinstance(token, Document):
            document, redirected = token, False
        elif isinstance(token, Word):
            if not redirected:
                words.append(token)
            redirected = False
        elif "<" in token.text or ">" in token.text:
            if words and token.touches and words[-1].text.isdigit():
                words.pop()  # 2>file
            redirected = True
        else:
            if words or token.text in "()":
                yield Command(tuple(words), before, token.text, document)
            goes_on = token.text == "\n" and not words and before in _GO_ON
            before = before if goes_on else token.text
            words, redirected, document = [], False, None
    if words:
        yield Command(tuple(words), before, "", document)


class _Scanner:
    def __init__(self, text: str, first_line: int) -> None:
        self._returned = {
            number for number, line in enumerate(text.split("\n")) if line.endswith("\r")
        }
        self.text = text = text.replace("\r\n", "\n").removesuffix("\r")
        self.at = 0
        self.first_line = first_line
        self.directives: list[tuple[Word, ...]] = []
        self.open_quote: int | None = None
        self.cut: int | None = None
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._documents: list[Document] = []

    def line(self, at: int) -> int:
        return self.first_line + bisect.bisect_left(self._newlines, at)

    def tokens(self) -> Iterator[Word | Document | _Operator]:
        seen_word, document = False, ""
        while self.at < len(self.text):
            c = self.text[self.at]
            if c in " \t":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self._goes_on()
            elif c == "(" and (match := _CALCULATION.match(self.text, self.at)):
                yield Word(self.line(self.at), match[0], computed=True, quoted=True)
                self.at = match.end()
            elif c == "#":
                self._comment(directive=not seen_word)
            elif match := _OPERATOR.match(self.text, self.at):
                touches = self.at > 0 and self.text[self.at - 1] not in " \t\n"
                self.at = match.end()
                if match[0] == "\n":
                    self._skip_documents()
                document = match[0] if match[0] in ("<<", "<<-") else ""
                yield _Operator(match[0], touches)
            else:
                word, seen_word = self._word(), True
                if document:
                    opened = Document(word.text, document == "<<-", word.quoted, word.line)
                    self._documents.append(opened)
                    document = ""
                    yield opened
                else:
                    yield word
        self._skip_documents()

    def _comment(self, *, directive: bool) -> None:
        end = self.text.find("\n", self.at)
        end = len(self.text) if end < 0 else end
        comment = self.text[self.at : end]
        if directive and re.match(r"#SBATCH\b", comment):
            scanner = _Scanner(comment[1:], self.line(self.at))
            self.directives.append(tuple(t for t in scanner.tokens() if isinstance(t, Word)))
        self.at = end

    def _skip_documents(self) -> None:
        for document in self._documents:
            document.line = self.line(self.at)
            lines: list[str] = []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at = end + 1
                line = line.lstrip("\t") if document.tabs else line
                if line == document.delimiter:
                    break
                lines.append(line)
            else:
                self._never_closed_on(document.opened)
            text = "\n".join(lines)
            document.text = text if document.literal else _KEPT_BACKSLASH.sub(r"\1", text)
        self._documents.clear()

    def _word(self) -> Word:
        start, parts = self.at, Parts()
        while self.at < len(self.text):
            if match := _PLAIN.match(self.text, self.at):
                parts.add(match[0])
                self.at = match.end()
                continue
            c = self.text[self.at]
            if c in " \t\n;&|<>()":
                break
            if c == "\\":
                self._escape(parts)
            elif c == "'":
                self._single_quotes(parts, start)
            elif c == '"':
                self._double_quotes(parts, start)
            else:
                self._dollar(parts, start)
        word = parts.word(self.line(start))
        return replace(word, returned=True) if self._at_return() else word

    def _at_return(self) -> bool:
        """Whether a carriage return stood here, before the end of the line."""
        ends = self.at >= len(self.text) or self.text[self.at] == "\n"
        return ends and self.line(self.at) - self.first_line in self._returned

    def _goes_on(self) -> None:
        """A line that its backslash joins to the next; none if a carriage return is between."""
        self.at += 1
        if self._at_return() and self.cut is None:
            self.cut = self.line(self.at)
        self.at += 1

    def _escape(self, parts: Parts) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if following == "\n":
            parts.continued()
            self._goes_on()
        else:
            parts.add(following)
            parts.quoted = True
            self.at += 2

    def _single_quotes(self, parts: Parts, start: int) -> None:
        end = self._closing("'", self.at + 1, start)
        parts.add(self.text[self.at + 1 : end])
        parts.quoted = True
        self.at = end + 1

    def _double_quotes(self, parts: Parts, start: int) -> None:
        parts.quoted = True
        self.at += 1
        while self.at < len(self.text):
            c = self.text[self.at]
            if c == '"':
                self.at += 1
                return
            following = self.text[self.at + 1 : self.at + 2]
            if c == "\\" and following == "\n":
                parts.continued()
                self._goes_on()
            elif c == "\\" and following in ("$", "`", '"', "\\"):
                parts.add(following)
                self.at += 2
            elif c in "$`":
                self._dollar(parts, start, quoted=True)
            else:
                end = re.compile(r'[\\"$`]').search(self.text, self.at + 1)
                stop = end.start() if end else len(self.text)
                parts.add(self.text[self.at : stop])
                self.at = stop
        self._never_closed(start)

    def _dollar(self, parts: Parts, start: int, *, quoted: bool = False) -> None:
        """A `$` or a backtick, and what belongs to it."""
        begin, following = self.at, self.text[self.at + 1 : self.at + 2]
        if self.text[begin] == "`":
            self.at = self._closing("`", begin + 1, start) + 1
        elif following in _CLOSER:
            self.at = self._balanced(begin + 1, start)
        elif following == '"' and not quoted:  # a text to be translated
            self.at += 1
            self._double_quotes(parts, start)
            return
        elif following == "'" and not quoted:
            end = self._closing("'", begin + 2, start, escapes=True)
            inner = self.text[begin + 2 : end]
            self.at, parts.quoted = end + 1, True
            if "\\" not in inner:
                parts.add(inner)
                return
        elif match := _NAMED.match(self.text, begin):
            self.at = match.end()
        else:
            parts.add("$")
            self.at += 1
            return
        parts.add(self.text[begin : self.at])
        parts.computed = True

    def _closing(self, quote: str, at: int, start: int, *, escapes: bool = False) -> int:
        """Where the next such quote is; the end of the text if there is none."""
        while at < len(self.text):
            end = self.text.find(quote, at)
            if end < 0:
                break
            if (escapes or quote == "`") and self._is_escaped(end, at):
                at = end + 1
                continue
            return end
        self._never_closed(start)
        return len(self.text)

    def _is_escaped(self, at: int, begin: int) -> bool:
        slashes = 0
        while at - slashes - 1 >= begin and self.text[at - slashes - 1] == "\\":
            slashes += 1
        return slashes % 2 == 1

    def _balanced(self, at: int, start: int) -> int:
        """Behind the bracket that closes the one at `at`, quotes and inner brackets minded."""
        stack = [_CLOSER[self.text[at]]]
        at += 1
        while at < len(self.text) and stack:
            c = self.text[at]
            if c == "\\":
                at += 1
            elif c == stack[-1]:
                stack.pop()
            elif c == "$" and self.text[at + 1 : at + 2] in _CLOSER:
                at += 1
                stack.append(_CLOSER[self.text[at]])
            elif stack[-1] != '"':
                if c == '"':
                    stack.append(c)
                elif c == "(":
                    stack.append(")")
                elif c == "'":
                    end = self.text.find("'", at + 1)
                    at = len(self.text) if end < 0 else end
            at += 1
        if stack:
            self._never_closed(start)
        return min(at, len(self.text))

    def _never_closed(self, start: int) -> None:
        self._never_closed_on(self.line(start))

    def _never_closed_on(self, line: int) -> None:
        if self.open_quote is None:
            self.open_quote = line
