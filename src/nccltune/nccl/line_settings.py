"""Files in which a line is NAME=value and no shell has a say: nccl.conf, docker --env-file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from nccltune.nccl.catalog import lookup
from nccltune.nccl.findings import Finding, Place, Setting, finding, shown
from nccltune.nccl.readers import concerns
from nccltune.nccl.shell_words import read_script
from nccltune.nccl.site import conf_lines, conf_setting

Format = Literal["shell", "nccl.conf", "docker"]
"""shell: scripts and files to be sourced; nccl.conf: NCCL's own; docker: of docker --env-file."""

MARK = b"\xef\xbb\xbf"
"""The byte-order mark of UTF-8."""

_NAME = re.compile(r"[A-Za-z_]\w*", re.A)
_EXPORT = re.compile(r"\s*export\s+")
_COMMENT = re.compile(r"\s#.*", re.S)
_FIRST_FROM_CONF = ("NCCL_CONF_FILE", "NCCL_ENV_PLUGIN", "LD_LIBRARY_PATH", "LD_PRELOAD")
_PART = 1023


def text_of(content: bytes) -> str:
    """What is no UTF-8 is kept as surrogates."""
    return content.decode("utf-8", "surrogateescape")


class LineReader:
    """`guessed` where nothing but the lines themselves tells the format."""

    def __init__(self, file: str, format: Format, guessed: bool) -> None:
        self.file = file
        self.place: Place = "conf" if format == "nccl.conf" else "docker"
        self.reader = "NCCL" if format == "nccl.conf" else "docker --env-file"
        self.guessed = guessed
        self.settings: list[Setting] = []
        self.findings: list[Finding] = []

    def conf(self, content: bytes) -> None:
        marked = content.startswith(MARK)
        for number, line in conf_lines(content.removeprefix(MARK)):
            found = conf_setting(line)
            if found is not None:
                raw = text_of(line).partition("=")[2]
                self._setting(number, *found, len(raw) > _PART, marked and number == 1)
            elif line.strip() and not line.startswith(b"#"):
                self._no_setting(number, text_of(line))
        self._set_by_nccl()

    def docker(self, content: bytes) -> None:
        refused: list[Finding] = []
        for number, raw in enumerate(content.removeprefix(MARK).split(b"\n"), start=1):
            line = text_of(raw.removesuffix(b"\r")).lstrip()
            name, equals, value = line.partition("=")
            if not self.guessed and (why := self._refusal(line, name)):
                refused.append(Finding(self.file, number, "file-refused", "", why))
            if line == "" or line.startswith("#") or (_NAME.fullmatch(line) and not equals):
                continue  # a name alone hands the variable through
            if name.strip() and equals:
                before = len(self.findings)
                self._setting(number, name, value)
                if self.guessed and concerns(name):
                    told = len(self.findings) > before
                    self._compare(text_of(raw), f"{name}={value}", told=told)
            else:
                self._no_setting(number, line)
        self.findings += refused if self.settings else []

    def _refusal(self, line: str, name: str) -> str | None:
        """Why docker takes nothing of the file, where no finding of a setting says so."""
        if any("\udc80" <= c <= "\udcff" for c in line):
            return "bytes that are no UTF-8: docker refuses the whole file"
        bad = line != "" and not line.startswith("#") and name.split() != [name]
        if bad and not concerns(_EXPORT.sub("", name, count=1).strip()):
            return f"{shown(line)}: no name without blanks before =: docker refuses the whole file"
        return None

    def _compare(self, raw: str, line: str, *, told: bool) -> None:
        """Tell if a shell reads something else than docker, where nothing was `told` of it yet."""
        setting, commands = self.settings[-1], read_script(raw).commands
        words = commands[0].words if len(commands) == 1 else ()
        same = len(words) == 1 and words[0].text == line and not words[0].returned
        home = line.partition("=")[2].startswith("~")
        if home:
            self.settings[-1] = replace(setting, value=None)
        if not told and (home or not same):
            text = (
                "a shell and docker --env-file read this line differently; write it so that both "
                "read the same, or say which with --format"
            )
            self.findings.append(finding(setting, "depends-on-reader", text))

    def _no_setting(self, number: int, line: str) -> None:
        if "NCCL" in line.upper() and not line.lstrip().startswith("#"):
            text = f"{self.reader} finds no NAME=value here: {shown(line.strip())}"
            self.findings.append(Finding(self.file, number, "not-a-setting", "", text))

    def _setting(
        self, number: int, written: str, value: str, cut: bool = False, marked: bool = False
    ) -> None:
        name = _EXPORT.sub("", written, count=1).strip()
        early = self.place == "conf" and name in _FIRST_FROM_CONF
        if not concerns(name) and not early:
            return
        setting = Setting(self.file, number, name, value, self.place)
        faults = list(self._name_faults(written, name))
        if marked:
            text = (
                "a byte-order mark stands at the beginning of the file: NCCL takes it for a part "
                "of this name, so nobody reads it; save the file without it"
            )
            faults.append(("byte-order-mark", text))
        self.findings += [finding(setting, rule, text) for rule, text in faults]
        if cut:
            text = f"NCCL keeps the first {_PART} characters of the value"
            self.findings.append(finding(setting, "cut-short", text))
        if concerns(name):
            clean = self._clean(setting, blanks=not faults)
            # What does not get there must not win over other lines.
            self.settings.append(replace(clean, group=None) if faults else clean)

    def _name_faults(self, written: str, name: str) -> Iterator[tuple[str, str]]:
        effect = (
            "NCCL takes all before = for the name, so nobody reads it"
            if self.place == "conf"
            else "docker refuses the whole file"
        )
        if _EXPORT.match(written):
            yield "export-in-file", f"{effect}; write {name}=value without export"
        elif written != name:
            yield "spaces-around-equals", f"{effect}; write {name}=value without blanks"
        early = name.startswith(("TORCH_", "CUDA_")) or name in _FIRST_FROM_CONF
        if self.place == "conf" and early:
            yield "read-too-late", "it is read before NCCL reads this file; export it instead"

    def _clean(self, setting: Setting, *, blanks: bool) -> Setting:
        """What is meant, after saying what becomes of it; of `blanks` only where that is new."""
        assert setting.value is not None
        value = setting.value
        comment = _COMMENT.search(value)
        if comment:
            self._literal(setting, "comment-in-value", f"the comment {shown(comment[0].strip())}")
            value = value[: comment.start()]
        if blanks and value != value.strip() and not comment:
            variable = lookup(setting.name)
            if variable is not None and not variable.is_integer:
                text = "blanks around the value belong to it; take them out"
                self.findings.append(finding(setting, "spaces-around-equals", text))
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            self._literal(setting, "quotes-kept", f"the quotes in {shown(value)}")
            value = value[1:-1]
        if re.search(r"\$[A-Za-z_{(]|`", value):
            self._literal(setting, "not-expanded", f"the text {shown(value)}")
            return replace(setting, value=None)
        return replace(setting, value=value)

    def _literal(self, setting: Setting, rule: str, what: str) -> None:
        if self.guessed:
            rule = "depends-on-reader"
            text = (
                f"docker --env-file puts {what} into the value, a shell does not; write it so that "
                "both read the same, or say which with --format"
            )
        else:
            text = f"{self.reader} puts {what} into the value; take that out"
        source = "docker/cli#3630" if self.place == "docker" and "quotes" in what else None
        self.findings.append(finding(setting, rule, text, source))

    def _set_by_nccl(self) -> None:
        if not self.settings:
            return
        text = (
            "NCCL puts what this file sets into the environment at its first call: other threads "
            "may be reading there (a crash was reported), and before that call nobody sees it; "
            "exporting is safer"
        )
        source = "pytorch/pytorch#133744, #117328"
        self.findings.append(finding(self.settings[0], "set-by-nccl", text, source))
