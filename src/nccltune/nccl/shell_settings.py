"""What a shell script sets: exports, assignments before commands, options of launchers.

Nothing is run and nothing is guessed: a value that a shell would work out is None. What a script
sources, and what it evaluates, is not followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from nccltune.nccl.findings import Finding, Setting, finding, shown
from nccltune.nccl.launcher_options import (
    ASSIGNMENT,
    Fault,
    base,
    given,
    inner_script,
    joined,
    slurm_export,
)
from nccltune.nccl.readers import concerns, is_known
from nccltune.nccl.shell_words import Command, Script, Word, read_script

_NAME = re.compile(r"[A-Za-z_]\w*", re.A)
_VALUE_ALONE = re.compile(r"[A-Z0-9_,^]+", re.A)
_OPENS = frozenset({"if", "for", "while", "until", "case", "select", "{"})
_CLOSES = frozenset({"fi", "done", "esac", "}"})
_INSIDE = frozenset({"then", "elif", "else", "do", "!", "time"})
_WRAPPERS = frozenset({"builtin", "command", "exec", "nohup"})
_SOURCES = frozenset({"source", "."})
_EXPORTERS = frozenset({"export", "declare", "typeset"})
_DEEPEST = 3  # shells that are started within shells


def shell_settings(file: str, text: str) -> tuple[tuple[Setting, ...], tuple[Finding, ...]]:
    """The settings of a script in their order, and what is wrong with how they are written."""
    reader = _Reader(file)
    reader.read(read_script(text))
    reader.finish()
    return tuple(reader.settings), tuple(reader.findings)


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.settings: list[Setting] = []
        self.findings: list[Finding] = []
        self._groups = 0
        self._certain = True
        self._depth = 0  # of branches, loops and bodies of functions
        self._parentheses = 0
        self._nested = 0
        self._in_array = False
        self._export_all = False
        self._exported: set[str] = set()
        self._held: dict[str, list[int]] = {}  # by name, what holds to the end of the script
        self._passed: dict[str, None] = {}  # exported names that lint knows something of

    def read(self, script: Script) -> None:
        for words in script.directives:
            self._take(slurm_export(words, None), self._new_group())
        for command in script.commands:
            self._command(command)
        if script.open_quote is not None:
            text = "a quote or substitution begins here and never ends: what follows it is lost"
            self._tell(Fault(script.open_quote, "unterminated-quote", "", text))

    def finish(self) -> None:
        """Find out what only shows at the end of the file."""
        for name, indices in self._held.items():
            for index in indices if name not in self._exported else ():
                kept = replace(self.settings[index], exported=False)
                self.settings[index] = kept
                if is_known(name):
                    text = f"a shell keeps it for itself unless it was exported: export {name}=..."
                    self.findings.append(finding(kept, "not-exported", text))

    def _command(self, command: Command) -> None:
        words = command.words
        if self._in_array:
            self._launch(words, self._new_group())
        elif words and command.after == "(" and words[-1].text.endswith("="):
            self._in_array = True  # NAME=( ... )
        elif words:
            self._statement(words, after_test=command.before in ("&&", "||"))
        if command.after == "(":
            self._parentheses += 1
        elif command.after == ")":
            self._in_array = False
            self._parentheses = max(0, self._parentheses - 1)

    def _statement(self, words: Sequence[Word], *, after_test: bool) -> None:
        words = self._without_keywords(words)
        if len(words) > 1 and words[0].text == "function" and words[-1].text == "{":
            self._depth += 1
        self._certain = not (after_test or self._depth or self._parentheses or self._nested)
        count = 0
        while count < len(words) and ASSIGNMENT.fullmatch(words[count].text):
            count += 1
        assignments, rest = words[:count], words[count:]
        if not rest:
            for word in assignments:
                self._assign(word)
            return
        if len(rest) > 1 and self._is_split(rest[0], rest[1]):
            return
        alone = assignments and len(rest) == 1 and _VALUE_ALONE.fullmatch(rest[0].text)
        if alone and self._is_split(assignments[-1], rest[0]):
            assignments = assignments[:-1]
        group = self._new_group()
        for word in assignments:
            self._add(word, group)
        self._run(rest, group)

    def _without_keywords(self, words: Sequence[Word]) -> Sequence[Word]:
        for index, word in enumerate(words):
            if word.text in _OPENS and not word.quoted:
                self._depth += 1
            elif word.text in _CLOSES and not word.quoted:
                self._depth = max(0, self._depth - 1)
            elif word.text not in _INSIDE or word.quoted:
                return words[index:]
        return ()

    def _run(self, words: Sequence[Word], group: int) -> None:
        """A command with its arguments."""
        start = next((i for i, word in enumerate(words) if base(word) not in _WRAPPERS), len(words))
        words = words[start:]
        name, arguments = base(words[0]) if words else "", words[1:]
        if name in _EXPORTERS:
            self._export(name, arguments)
        elif name == "set":
            self._set(arguments)
        elif name == "unset":
            self._unset(arguments)
        elif name in _SOURCES and arguments:
            file = shown(arguments[0].text)
            text = f"what {file} sets is not looked at; lint that file too"
            self._tell(Fault(words[0].line, "not-followed", "", text))
        elif name == "setenv" and len(arguments) == 2:  # csh
            self._export_name(arguments[0].text)
            self._add(joined(*arguments), 0)
        else:
            self._launch(words, group)

    def _export(self, name: str, arguments: Sequence[Word]) -> None:
        options = "".join(word.text for word in arguments if word.text.startswith("-"))
        if (name != "export" and "x" not in options) or set("fnp") & set(options):
            return
        words = [word for word in arguments if word.text[:1] not in ("-", "+")]
        for index, word in enumerate(words):
            name, equals, _ = word.text.partition("=")
            name = name.removesuffix("+")
            if index + 1 < len(words) and self._is_split(word, words[index + 1]):
                continue
            if _NAME.fullmatch(name):
                self._export_name(name)
                if equals:
                    self._add(word, 0)
            elif equals and name[:4].upper() == "NCCL" and not word.computed:
                text = f"{shown(name)} is no name for a variable: the shell refuses it"
                self._tell(Fault(word.line, "misspelt", "", text))

    def _set(self, arguments: Sequence[Word]) -> None:
        texts = [word.text for word in arguments]
        for index, option in enumerate(texts):
            named = option[1:] == "o" and texts[index + 1 : index + 2] == ["allexport"]
            if option[:1] in ("-", "+") and (named or "a" in option[1:]):
                self._export_all = option[0] == "-"

    def _unset(self, arguments: Sequence[Word]) -> None:
        gone = {word.text for word in arguments}
        for word in arguments:
            if concerns(word.text):
                self.settings.append(
                    Setting(
                        self.file,
                        word.line,
                        word.text,
                        None,
                        "shell",
                        group=None,
                        certain=self._certain,
                        unset=True,
                    )
                )
        if not self._certain:
            return
        self._exported -= gone
        for name in gone:
            self._passed.pop(name, None)
            for index in self._held.pop(name, []):
                self.settings[index] = replace(self.settings[index], group=None)

    def _launch(self, words: Sequence[Word], group: int) -> None:
        exported = next(iter(self._passed), None)
        self._take(given(words, exported, array=self._in_array), group)
        script = inner_script(words)
        if script is not None and self._nested < _DEEPEST:
            self._within(script, group)

    def _within(self, script: Word, group: int) -> None:
        """A script given to another shell: what it exports ends with it."""
        inner = _Reader(self.file)
        inner._nested = self._nested + 1
        inner._exported = set(self._exported)
        inner.read(read_script(script.script, script.line))
        inner.finish()
        self.findings += inner.findings
        for setting in inner.settings:
            self.settings.append(replace(setting, group=group if setting.group == 0 else None))

    def _take(self, found: Iterator[Word | Fault], group: int) -> None:
        for item in found:
            if isinstance(item, Fault):
                self._tell(item)
            else:
                self._add(item, group)

    def _assign(self, word: Word) -> None:
        match = ASSIGNMENT.fullmatch(word.text)
        if match is not None and self._export_all:
            self._export_name(match[1])
        self._add(word, 0)

    def _export_name(self, name: str) -> None:
        self._exported.add(name)
        if concerns(name):
            self._passed[name] = None

    def _add(self, word: Word, group: int) -> None:
        match = ASSIGNMENT.fullmatch(word.text)
        if match is None or not concerns(match[1]):
            return
        name, appended, value = match.groups()
        computed = bool(appended) or (word.computed and ("$" in value or "`" in value))
        if value.endswith("\r"):
            text = (
                "the line ends as in Windows, and the carriage return becomes part of the value; "
                "convert the file with dos2unix"
            )
            self._tell(Fault(word.line, "carriage-return", name, text))
        if computed or (value.startswith("~") and not word.quoted):
            known = None
        else:
            known = value.removesuffix("\r")
        setting = Setting(
            self.file, word.line, name, known, "shell", group=group, certain=self._certain
        )
        if group == 0:
            self._held.setdefault(name, []).append(len(self.settings))
        self.settings.append(setting)

    def _is_split(self, word: Word, following: Word) -> bool:
        """Whether these are `NAME =value` or `NAME= value`, two words where one is meant."""
        name, equals, value = word.text.partition("=")
        if not _NAME.fullmatch(name):
            return False
        if equals and (value or "=" in following.text or word.quoted):
            return False
        if not equals and not following.text.startswith("="):
            return False
        text = f"the value is cut off: a shell wants no blanks around =; write {shown(name)}=value"
        self._tell(Fault(word.line, "spaces-around-equals", name, text))
        return True

    def _new_group(self) -> int:
        self._groups += 1
        return self._groups

    def _tell(self, fault: Fault) -> None:
        if fault.name == "" or concerns(fault.name):
            self.findings.append(
                Finding(self.file, fault.line, fault.rule, fault.name, fault.message)
            )
