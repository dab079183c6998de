"""What a shell script sets: exports, assignments before commands, options of launchers.

Nothing is run and nothing is guessed: a value that a shell would work out is None. What a script
sources, and what it evaluates, is not followed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from nccltune.nccl.findings import Finding, Setting, finding, shown
from nccltune.nccl.launcher_options import (
    ASSIGNMENT,
    HARMLESS,
    Fault,
    base,
    given,
    inner_script,
    joined,
    reads_a_script,
    slurm_export,
    taken_away,
)
from nccltune.nccl.readers import concerns, is_known, of_scripts
from nccltune.nccl.shell_branches import Branches
from nccltune.nccl.shell_cut import cut_at_blank, cut_at_operator
from nccltune.nccl.shell_parts import Command, Document, Script, Word
from nccltune.nccl.shell_words import read_script

_NAME = re.compile(r"[A-Za-z_]\w*", re.A)
_VALUE_ALONE = re.compile(r"[A-Z0-9_,^]+", re.A)
_DEFAULT = re.compile(
    r"""\$\{(?P<name>[A-Za-z_]\w*)(?P<operator>:?[-=])(?P<q>["']?)(?P<value>[^{}$`"']+)(?P=q)\}""",
    re.A,
)
"""${NAME:-value}, ${NAME:=value}, with a value that is the same whatever the shell has."""
_WRAPPERS = frozenset({"builtin", "command", "exec", "nohup"})
_SOURCES = frozenset({"source", "."})
_DECLARERS = frozenset({"export", "declare", "typeset", "readonly", "local"})
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
        self._groups = itertools.count(1)
        self._branches = Branches()
        self._nested = 0
        self._in_array = False
        self._array_group = 0
        self._export_all = False
        self._exported: set[str] = set()
        self._held: dict[str, list[int]] = {}  # by name, what holds to the end of the script
        self._passed: dict[str, None] = {}  # exported names that lint knows something of
        self._ran = 0  # commands that may have used what is set

    def read(self, script: Script) -> None:
        for words in script.directives:
            self._take(slurm_export(words, None), self._new_group())
        for index, command in enumerate(script.commands):
            for fault in cut_at_operator(script.commands, index):
                self._tell(fault)
            self._command(command)
        if script.open_quote is not None:
            text = (
                "a quote, substitution or here-document begins here and never ends: what follows "
                "it is lost"
            )
            self._tell(Fault(script.open_quote, "unterminated-quote", "", text))
        if script.cut is not None:
            text = (
                "the line ends as in Windows: a carriage return behind the backslash ends the "
                "command, and what is on the next lines does not belong to it; convert the file "
                "with dos2unix"
            )
            self._tell(Fault(script.cut, "carriage-return", "", text))

    def finish(self) -> None:
        """Find out what only shows at the end of the file."""
        handed_on = {s.name for s in self.settings if s.group}  # env NAME=$NAME command
        for name, indices in self._held.items():
            for index in indices if name not in self._exported else ():
                kept = replace(self.settings[index], exported=False)
                self.settings[index] = kept
                if is_known(name) and not of_scripts(name) and name not in handed_on:
                    text = f"a shell keeps it for itself unless it was exported: export {name}=..."
                    self.findings.append(finding(kept, "not-exported", text))

    def _command(self, command: Command) -> None:
        self._branches.begin(command.before)
        if self._in_array:
            self._launch(command.words, self._array_group)
            self._in_array = command.after != ")"
            return
        words = self._branches.without_keywords(command.words)
        if words and command.after == "(" and words[-1].text.endswith("="):
            self._begin_array(words[-1])
            return
        if words:
            self._statement(words, command.document)
        self._branches.end(command.after)

    def _begin_array(self, word: Word) -> None:
        """NAME=( ... )"""
        self._in_array, self._array_group = True, self._new_group()
        name = word.text.rstrip("+=")
        if is_known(name):
            text = "a shell exports no array, so no program sees it: write one value in quotes"
            self._tell(Fault(word.line, "not-exported", name, text))

    def _statement(self, words: Sequence[Word], document: Document | None) -> None:
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
        for fault in cut_at_blank(words, max(count - 1, 0)):
            self._tell(fault)
        alone = assignments and len(rest) == 1 and _VALUE_ALONE.fullmatch(rest[0].text)
        if alone and self._is_split(assignments[-1], rest[0]):
            assignments = assignments[:-1]
        group = self._new_group()
        for word in assignments:
            self._add(word, group)
        self._run(rest, group)
        if document is not None and reads_a_script(rest) and self._nested < _DEEPEST:
            self._read_within(read_script(document.text, document.line), group)

    def _run(self, words: Sequence[Word], group: int) -> None:
        """A command with its arguments."""
        start = next((i for i, word in enumerate(words) if base(word) not in _WRAPPERS), len(words))
        words = words[start:]
        name, arguments = base(words[0]) if words else "", words[1:]
        self._ran += name not in HARMLESS
        if name in _DECLARERS:
            self._declare(name, arguments)
        elif name == "set":
            self._set(arguments)
        elif name in (":", "true"):
            for word in arguments:
                self._assign_defaults(word)
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

    def _declare(self, name: str, arguments: Sequence[Word]) -> None:
        """export, declare, readonly and their like, with x or without."""
        options = "".join(word.text for word in arguments if word.text.startswith("-"))
        if {"f", "p"} & set(options):
            return
        taken = any(word.text[:1] == "+" and "x" in word.text for word in arguments)
        taken = taken or (name == "export" and "n" in options)
        exported = name == "export" or "x" in options
        words = [word for word in arguments if word.text[:1] not in ("-", "+")]
        for index, word in enumerate(words):
            name, equals, _ = word.text.partition("=")
            name = name.removesuffix("+")
            if index + 1 < len(words) and self._is_split(word, words[index + 1]):
                continue
            for fault in cut_at_blank(words, index):
                self._tell(fault)
            if _NAME.fullmatch(name):
                self._declared(word, name, bool(equals), exported=exported, taken=taken)
            elif equals and name[:4].upper() == "NCCL" and not (word.computed or "{" in name):
                text = f"{shown(name)} is no name for a variable: the shell refuses it"
                self._tell(Fault(word.line, "misspelt", "", text))

    def _declared(
        self, word: Word, name: str, assigned: bool, *, exported: bool, taken: bool
    ) -> None:
        if taken:
            self._drop(word.line, name)
        elif exported:
            self._export_name(name)
        if assigned:
            self._assign(word)
        elif word.returned:
            self._tell_return(word.line, name)

    def _set(self, arguments: Sequence[Word]) -> None:
        texts, index = [word.text for word in arguments], 0
        while index < len(texts) and texts[index][:1] in ("-", "+") and texts[index] != "--":
            sign, letters = texts[index][0], texts[index][1:]
            index += 1
            if "a" in letters:
                self._export_all = sign == "-"
            if "o" in letters:  # takes the next word
                if texts[index : index + 1] == ["allexport"]:
                    self._export_all = sign == "-"
                index += 1

    def _unset(self, arguments: Sequence[Word]) -> None:
        for word in arguments:
            if word.returned:
                self._tell_return(word.line, word.text)
            self._drop(word.line, word.text)

    def _drop(self, line: int, name: str) -> None:
        """Programs see it no more."""
        self._tell_dropped(line, name, None)
        if self._branches.within:
            return
        self._exported.discard(name)
        self._passed.pop(name, None)
        for index in self._held.pop(name, []):
            self.settings[index] = replace(self.settings[index], group=None)

    def _tell_dropped(self, line: int, name: str, group: int | None) -> None:
        if concerns(name):
            within = self._branches.within
            gone = Setting(self.file, line, name, None, "shell", group, within, unset=True)
            self.settings.append(gone)

    def _launch(self, words: Sequence[Word], group: int) -> None:
        exported = next(iter(self._passed), None)
        self._take(given(words, exported, array=self._in_array), group)
        for word in taken_away(words):
            self._tell_dropped(word.line, word.text, group)
        script = inner_script(words)
        if script is not None and self._nested < _DEEPEST:
            self._read_within(read_script(script.script, script.line), group)

    def _read_within(self, script: Script, group: int) -> None:
        """A script given to another shell: what it exports ends with it."""
        inner = _Reader(self.file)
        inner._nested = self._nested + 1
        inner._branches = self._branches.of_another_script()
        inner._groups = self._groups
        inner._exported = set(self._exported)
        inner.read(script)
        inner.finish()
        self.findings += inner.findings
        for setting in inner.settings:
            self.settings.append(replace(setting, group=group) if setting.group == 0 else setting)

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

    def _assign_defaults(self, word: Word) -> None:
        """The argument of : "${NAME:=value}"."""
        for match in _DEFAULT.finditer(word.text):
            if match["operator"].endswith("="):
                self._assign(Word(word.line, f"{match['name']}={match['value']}", quoted=True))

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
        if word.returned:
            self._tell_return(word.line, name)
        if computed or (value.startswith("~") and not word.quoted):
            known = None
        else:
            known = value
        within = self._branches.within
        setting = Setting(self.file, word.line, name, known, "shell", group, within, ran=self._ran)
        if group == 0:
            self._held.setdefault(name, []).append(len(self.settings))
        self.settings.append(setting)
        default = _DEFAULT.fullmatch(value) if known is None else None
        if default is not None:  # judged, but nobody knows whether it holds
            self.settings.append(replace(setting, value=default["value"], group=None))

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

    def _tell_return(self, line: int, name: str) -> None:
        text = (
            "the line ends as in Windows, and the carriage return becomes part of the value or "
            "name; convert the file with dos2unix"
        )
        self._tell(Fault(line, "carriage-return", name, text))

    def _new_group(self) -> int:
        return next(self._groups)

    def _tell(self, fault: Fault) -> None:
        if fault.name == "" or concerns(fault.name):
            self.findings.append(
                Finding(self.file, fault.line, fault.rule, fault.name, fault.message)
            )
