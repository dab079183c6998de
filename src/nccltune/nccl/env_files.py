"""Files that set variables, read as whoever uses them would: a shell, NCCL, docker --env-file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from nccltune.errors import UsageError
from nccltune.nccl.catalog import lookup
from nccltune.nccl.findings import Finding, Place, Setting, finding, shown
from nccltune.nccl.readers import concerns
from nccltune.nccl.shell_settings import shell_settings
from nccltune.nccl.site import conf_files, conf_lines, conf_setting

Format = Literal["shell", "nccl.conf", "docker"]
"""shell: scripts and files to be sourced; nccl.conf: NCCL's own; docker: of docker --env-file."""

LARGEST = 1 << 20
"""Bytes; a larger file sets no environment."""

_SCRIPTS = (".sh", ".bash", ".zsh", ".ksh", ".csh", ".sbatch", ".slurm", ".job", ".pbs", ".lsf")
_SHELL_LINE = re.compile(
    rb"[ \t]*(?:export|setenv|unset|set|if|for|source|\.|declare|module|srun|mpirun|torchrun)[ \t]"
)
_PLAIN_LINE = re.compile(rb"\s*[A-Za-z_]\w*[ \t]*(?:=.*)?\r?", re.S)
_NAME = re.compile(r"[A-Za-z_]\w*", re.A)
_EXPORT = re.compile(r"\s*export\s+")
_COMMENT = re.compile(r"\s#.*", re.S)
_FIRST_FROM_CONF = ("NCCL_CONF_FILE", "NCCL_ENV_PLUGIN", "LD_LIBRARY_PATH", "LD_PRELOAD")
_PART = 1023


@dataclass(frozen=True)
class EnvFile:
    """`guessed` where nothing but the lines themselves tells the format."""

    file: str
    format: Format | Literal["environment"]
    guessed: bool
    settings: tuple[Setting, ...]
    findings: tuple[Finding, ...]


def load(path: Path) -> bytes:
    """The bytes of a file. Raises UsageError where it is no file of a sensible size."""
    where = shown(str(path), 4096)
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{where}: is no file; give - to read what is piped in")
        with path.open("rb") as stream:
            content = stream.read(LARGEST + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"{where}: cannot be read: {reason}") from error
    return content


def read_env_file(file: str, content: bytes, given: Format | None = None) -> EnvFile:
    """What the file sets. `file` is its name in messages, and a hint at the format.

    Raises: UsageError for what is no text, or far too large.
    """
    where = shown(file, 4096)
    if len(content) > LARGEST:
        raise UsageError(f"{where}: larger than {LARGEST} bytes: no file of settings")
    if b"\0" in content:
        raise UsageError(f"{where}: holds NUL bytes: no text file")
    if Path(file).suffix.lower() in (".yaml", ".yml") and given is None:
        raise UsageError(
            f"{where}: is YAML; lint reads shell files, nccl.conf and files of docker --env-file; "
            "--format says which"
        )
    format, guessed = (given, False) if given is not None else guess_format(file, content)
    if format == "shell":
        settings, findings = shell_settings(file, _text(content.removeprefix(b"\xef\xbb\xbf")))
        return EnvFile(file, format, guessed, settings, findings)
    reader = _LineReader(file, format, guessed)
    if format == "nccl.conf":
        reader.conf(content)
    else:
        reader.docker(content)
    return EnvFile(file, format, guessed, tuple(reader.settings), tuple(reader.findings))


def environment_files(environ: Mapping[str, str]) -> tuple[tuple[EnvFile, ...], tuple[str, ...]]:
    """The environment, and NCCL's own files in the order in which NCCL gives way to them; and why
    those that are there and cannot be read are left out.
    """
    read = [EnvFile("environment", "environment", False, environment_settings(environ), ())]
    unread = []
    for path in conf_files(environ):
        if path.exists():
            try:
                read.append(read_env_file(str(path), load(path), "nccl.conf"))
            except UsageError as error:
                unread.append(str(error))
    return tuple(read), tuple(unread)


def guess_format(file: str, content: bytes) -> tuple[Format, bool]:
    """The format, and whether only the form of the lines speaks for it."""
    name = Path(file).name.lower()
    if name.endswith(".conf"):
        return "nccl.conf", False
    if name.endswith(_SCRIPTS) or content.startswith(b"#!") or b"\n#SBATCH" in content:
        return "shell", False
    lines = [line for line in content.split(b"\n") if line.strip()]
    lines = [line for line in lines if not line.lstrip().startswith(b"#")]
    if any(_SHELL_LINE.match(line) for line in lines):
        return "shell", False
    plain = bool(lines) and all(_PLAIN_LINE.fullmatch(line) for line in lines)
    return ("docker", "docker" not in name) if plain else ("shell", False)


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


class _LineReader:
    """Files in which a line is NAME=value and no shell has a say."""

    def __init__(self, file: str, format: Format, guessed: bool) -> None:
        self.file = file
        self.place: Place = "conf" if format == "nccl.conf" else "docker"
        self.reader = "NCCL" if format == "nccl.conf" else "docker --env-file"
        self.guessed = guessed
        self.settings: list[Setting] = []
        self.findings: list[Finding] = []

    def conf(self, content: bytes) -> None:
        for number, line in conf_lines(content):
            found = conf_setting(line)
            if found is not None:
                raw = _text(line).partition("=")[2]
                self._setting(number, found[0], found[1], len(raw) > _PART)
            elif line.strip() and not line.startswith(b"#"):
                self._no_setting(number, _text(line))
        self._set_by_nccl()

    def docker(self, content: bytes) -> None:
        lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        for number, raw in enumerate(lines, start=1):
            line = _text(raw.removesuffix(b"\r")).lstrip()
            name, equals, value = line.partition("=")
            if line == "" or line.startswith("#") or (_NAME.fullmatch(line) and not equals):
                continue  # a name alone hands the variable through
            if name.strip() and equals:
                self._setting(number, name, value)
            else:
                self._no_setting(number, line)

    def _no_setting(self, number: int, line: str) -> None:
        if "NCCL" in line.upper() and not line.lstrip().startswith("#"):
            text = f"{self.reader} finds no NAME=value here: {shown(line.strip())}"
            self.findings.append(Finding(self.file, number, "not-a-setting", "", text))

    def _setting(self, number: int, written: str, value: str, cut: bool = False) -> None:
        name = _EXPORT.sub("", written, count=1).strip()
        early = self.place == "conf" and name in _FIRST_FROM_CONF
        if not concerns(name) and not early:
            return
        setting = Setting(self.file, number, name, value, self.place)
        faults = list(self._name_faults(written, name))
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


def environment_settings(environ: Mapping[str, str]) -> tuple[Setting, ...]:
    """The variables of a process that lint knows something of."""
    return tuple(
        Setting("environment", None, name, value, "environment")
        for name, value in sorted(environ.items())
        if concerns(name)
    )
