"""What `lint` reads, and what it has to say: settings, rules and findings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
"""error: does not do what it says, or breaks; warning: dangerous or slow; note: good to know."""

Place = Literal["shell", "conf", "docker", "environment"]

Arm = tuple[int, int]
"""A branch of a script, and which of its arms: of one branch only one arm is gone through."""


_PLAIN = re.compile(r"[\w,:=./%+-]*", re.A)


@dataclass(frozen=True)
class Setting:
    """A variable that a file or the environment sets.

    `value` is None where only a shell can work it out. `group` says how long it holds: 0 until the
    end, another number for one command alone, None where it is unset again. `within` are the
    branches, loops and functions around it, and it is not `exported` where it may stay in the
    shell. With `unset` the name is taken away instead. `ran` counts the commands before it that may
    have used an earlier value.
    """

    file: str
    line: int | None
    name: str
    value: str | None
    place: Place = "shell"
    group: int | None = 0
    within: frozenset[Arm] = frozenset()
    exported: bool = True
    unset: bool = False
    ran: int = field(default=0, compare=False)

    @property
    def certain(self) -> bool:
        """Whether its line is reached whatever happens."""
        return not self.within


@dataclass(frozen=True)
class Finding:
    """One thing to know about a setting. `source` is public: `owner/repository#number` or so."""

    file: str
    line: int | None
    rule: str
    name: str
    message: str
    source: str | None = None

    @property
    def severity(self) -> Severity:
        return RULES[self.rule][0]

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "line": self.line,
            "severity": self.severity,
            "rule": self.rule,
            "name": self.name,
            "message": self.message,
            "source": self.source,
        }


def finding(setting: Setting, rule: str, message: str, source: str | None = None) -> Finding:
    """A finding at the setting's place."""
    assert rule in RULES, rule
    return Finding(setting.file, setting.line, rule, setting.name, message, source)


def quoted(setting: Setting, value: str) -> str:
    """A value as it has to stand in that setting's place: in quotes where a shell reads it."""
    by_shell = setting.place in ("shell", "environment")
    return f"'{value}'" if by_shell and not _PLAIN.fullmatch(value) else value


def shown(text: str, limit: int = 80) -> str:
    """Text of a file, safe to print: nothing that a terminal would act on, and not too long."""
    return printable(text if len(text) <= limit else f"{text[:limit]}...")


def printable(text: str, *, lines: bool = False) -> str:
    """The text with escapes for all that a terminal would act on or not show: control characters,
    changes of the direction of writing, bytes that are no text. With `lines` it may have several,
    and tabs.
    """
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text
    )


RULES: Mapping[str, tuple[Severity, str]] = MappingProxyType(
    {
        # How the file is read.
        "unterminated-quote": ("error", "a quote or here-document begins and never ends"),
        "spaces-around-equals": ("error", "blanks beside `=` belong to the name or the value"),
        "carriage-return": ("error", "a line of a Windows file: the value ends with `\\r`"),
        "byte-order-mark": ("error", "a mark before the first word, which becomes a part of it"),
        "file-refused": ("error", "a line for which `docker --env-file` takes nothing of the file"),
        "export-in-file": ("error", "`export` in a file that no shell reads"),
        "quotes-kept": ("error", "quotes that become part of the value"),
        "comment-in-value": ("error", "a comment that becomes part of the value"),
        "not-expanded": ("error", "`$NAME` or `~` where nothing replaces it"),
        "cut-at-operator": ("error", "an unquoted `;`, `&` or `|` ends the value"),
        "cut-short": ("error", "longer than NCCL's buffer"),
        "cut-at-comma": ("error", "`--export` of Slurm ends the value at its first comma"),
        "read-too-late": ("error", "in nccl.conf alone, but read before NCCL reads that file"),
        "assumed-format": ("note", "which format was taken, where only the lines tell"),
        "depends-on-reader": ("warning", "a shell and `docker --env-file` read it differently"),
        "not-a-setting": ("warning", "a line without `=`"),
        "not-exported": ("warning", "set in the shell, but no program sees it"),
        "not-followed": ("note", "another file that is read when this one is"),
        "not-passed-on": ("warning", "`srun --export` without ALL drops what was exported"),
        "duplicate": ("warning", "set twice in one file with different values"),
        "overruled": ("warning", "something else that is set takes its place"),
        "repeated": ("note", "set twice with the same value, in one file or exported too"),
        "computed": ("note", "the value is worked out by the shell: not checked"),
        "set-by-nccl": ("note", "NCCL puts what nccl.conf alone sets into the environment"),
        # Names.
        "unknown-variable": ("error", "no known release of NCCL or torch reads it"),
        "misspelt": ("error", "close to a name that is read"),
        "removed": ("error", "no longer read by this release"),
        "not-yet": ("error", "variable or value of a later release"),
        "obsolete": ("warning", "ignored by this torch"),
        "deprecated": ("note", "still read, but has a successor"),
        "newer-release": ("note", "a name that only a release newer than the data may read"),
        "not-nccls": ("note", "read by something else than NCCL"),
        "rccl": ("note", "settings for AMD's library, which has rules of its own"),
        # Values.
        "unreadable-number": ("error", "text where NCCL wants a number: it reads another one"),
        "out-of-range": ("error", "a number that is capped, replaced or has no meaning"),
        "unknown-value": ("error", "a word that is ignored or taken for the default"),
        "bad-list": ("error", "a list that NCCL refuses or cuts"),
        "no-algorithm": ("error", "leaves no algorithm or protocol for what DDP calls"),
        "torch-refuses": ("error", "a value with which torch fails at its start"),
        "empty-value": ("warning", "set, but to nothing"),
        "sentinel": ("warning", "NCCL's own mark for `automatic`, written as a value"),
        "no-such-pair": ("warning", "an algorithm that does not exist for that function"),
        "falls-back": ("note", "a function without an algorithm, for which Ring steps in"),
        "legacy-level": ("note", "a number where a word is meant; its meaning may change"),
        # What a value does.
        "dangerous": ("warning", "wrong sums, hangs or failures are known"),
        "slow": ("warning", "costs speed"),
        "debugging-left-on": ("warning", "a debugging aid that slows every step"),
        "raised-level": ("warning", "direct access over paths that are not safe everywhere"),
        "shared-host-id": ("warning", "a host identity that several hosts would share"),
        "shared-log-file": ("warning", "all ranks write into one file"),
        "needs-plugin": ("warning", "CollNet, which needs a plugin and a network for it"),
        "log-left-on": ("note", "logs or dumps at every start"),
        "one-queue": ("note", "slow for DDP, and wanted by Megatron's tensor parallelism"),
        "plugin-ignores": ("note", "holds for the built-in network alone"),
        # Several settings.
        "constraint-broken": ("error", "values that do not fit each other"),
        "site-multicast": ("error", "switches on NVLink multicast, which the site has off"),
        "acts-only-with": ("warning", "does nothing without another setting"),
        "fallback-forgets-proto": ("warning", "falls back to Ring and forgets NCCL_PROTO"),
        "split-not-set": ("warning", "several queue pairs, and a default that has changed"),
        "long-spelling": ("note", "a spelling that fails from NCCL 2.31 on"),
        "differs-from-site": ("note", "another value than the site's"),
        # The machine.
        "device-missing": ("error", "names a device or file that is not here"),
        "dead-here": ("warning", "cannot act on this machine"),
        "matches-more": ("warning", "a prefix that takes in more devices than it names"),
        "small-shm": ("warning", "/dev/shm is too small for what is asked"),
        "leaves-out-devices": ("note", "uses some of the devices that are here"),
        "sockets-only": ("note", "acts only over sockets, and there is something better here"),
        # What kind of setting it is.
        "measured": ("note", "settings that nccltune measured on the machine in their header"),
        "fabric-specific": ("note", "right for the network it was written for"),
        "version-bound": ("note", "NVIDIA's guide lists it as a debugging setting"),
        "undocumented": ("note", "not in NVIDIA's guide: no interface"),
        "not-for-ddp": ("note", "acts on send and receive, which DDP does not use"),
    }
)
"""Severity and meaning of every rule."""
