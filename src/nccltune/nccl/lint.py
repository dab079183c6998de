"""What is wrong, dangerous or worth knowing about settings of NCCL's variables. Nothing is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from nccltune.nccl import catalog
from nccltune.nccl.catalog import Variable
from nccltune.nccl.circumstances import Circumstances, MachineFacts
from nccltune.nccl.env_files import EnvFile
from nccltune.nccl.findings import RULES, Finding, Setting, finding, shown
from nccltune.nccl.integers import is_plain_integer
from nccltune.nccl.lint_dangers import dangers
from nccltune.nccl.lint_lists import list_findings
from nccltune.nccl.lint_machine import machine_findings, other_interfaces
from nccltune.nccl.lint_names import name_findings
from nccltune.nccl.lint_together import findings_together
from nccltune.nccl.lint_torch import torch_findings
from nccltune.nccl.lint_values import value_findings
from nccltune.nccl.readers import is_known
from nccltune.nccl.site import (
    MULTICAST_OFF,
    asks_for_multicast,
    multicast_is_off,
    protects_multicast,
)

__all__ = ["Circumstances", "MachineFacts", "in_order", "lint", "lint_files"]

_KINDS = frozenset({"fabric-specific", "undocumented", "version-bound", "not-for-ddp"})
_SEVERITIES = ("error", "warning", "note")
_SUGGESTIONS = 200  # a hostile file may hold a hundred thousand unknown names


def lint(settings: Sequence[Setting], around: Circumstances) -> tuple[Finding, ...]:
    """Findings in the order of files and lines, the gravest of a line first.

    The settings are those of one file, or of the environment with NCCL's own files behind it.
    """
    found: dict[Finding, None] = {}
    unknown: set[str] = set()
    settings = [_trimmed(setting) for setting in settings]
    for setting in settings:
        if catalog.lookup(setting.name) is None:
            unknown.add(setting.name)
        suggest = len(unknown) <= _SUGGESTIONS
        found.update(dict.fromkeys(_site(setting, around)))
        if not setting.unset:
            found.update(dict.fromkeys(_alone(setting, around, suggest=suggest)))
    found.update(dict.fromkeys(findings_together(settings, around)))
    return in_order(tuple(found), tuple(dict.fromkeys(setting.file for setting in settings)))


def lint_files(files: Sequence[EnvFile], around: Circumstances) -> tuple[Finding, ...]:
    """The findings of these files taken together, those of how they are written among them. The
    files are one, or the environment with NCCL's own files behind it.
    """
    settings = [setting for file in files for setting in file.settings]
    held = {s.name: s.value for s in settings if s.place == "environment"}
    held |= {n: v.value for n, v in around.site.items() if v.source == "environment"}
    written = [item for file in files for item in _written(file, held)]
    known = {file.file: file for file in files}
    judged = [_of_job(item, known.get(item.file)) for item in lint(settings, around)]
    found = [*written, *(item for item in judged if not _is_measured(item, known))]
    found += [_measured(file, file.measured) for file in files if file.measured and file.settings]
    return in_order(found, [file.file for file in files])


def _of_job(item: Finding, file: EnvFile | None) -> Finding:
    """What is slow for DDP and right for the training that the script shows."""
    one_queue = item.name == "CUDA_DEVICE_MAX_CONNECTIONS" and item.rule == "slow"
    if not one_queue or file is None or not file.megatron:
        return item
    text = "Megatron's tensor and sequence parallelism want it; for DDP and FSDP alone it is slow"
    return replace(item, rule="one-queue", message=text)


def _is_measured(item: Finding, files: Mapping[str, EnvFile]) -> bool:
    """What kind of setting it is need not be said where the file itself tells of its machine."""
    file = files.get(item.file)
    return item.rule in _KINDS and file is not None and file.measured is not None


def _measured(file: EnvFile, machine: str) -> Finding:
    text = (
        f"measured for the machine in the header ({shown(machine)}): `nccltune verify` of the "
        "best.yaml beside it checks whether it still holds"
    )
    return Finding(file.file, None, "measured", "", text)


def _written(file: EnvFile, held: Mapping[str, str | None]) -> Iterator[Finding]:
    """What is to be said of how the file is written, where the environment has `held` these: it
    wins over NCCL's own files.
    """
    here = {(s.line, s.name): s.value for s in file.settings}
    for item in file.findings:
        name = item.name
        if item.rule == "set-by-nccl" and all(s.name in held for s in file.settings):
            continue  # there is nothing left for NCCL to set
        if item.rule == "read-too-late" and held.get(name) is not None:
            if held[name] == here.get((item.line, name)):
                text = "read before NCCL reads this file, but the environment says the same"
                item = replace(item, rule="repeated", message=text)
        yield item


def in_order(findings: Sequence[Finding], files: Sequence[str]) -> tuple[Finding, ...]:
    """Findings by file, line and severity. What kind of setting it is goes without saying where
    something graver is said of it.
    """
    graver = {(f.file, f.line, f.name) for f in findings if f.severity != "note"}
    kept = [f for f in findings if f.rule not in _KINDS or (f.file, f.line, f.name) not in graver]
    return tuple(sorted(kept, key=lambda item: _place(item, files)))


def _place(item: Finding, files: Sequence[str]) -> tuple[int, int, int]:
    severity = _SEVERITIES.index(RULES[item.rule][0])
    return files.index(item.file), item.line or 0, severity


def _trimmed(setting: Setting) -> Setting:
    """Without blanks around a number, which NCCL passes over."""
    variable, value = catalog.lookup(setting.name), setting.value
    if value is None or variable is None or not variable.is_integer:
        return setting
    inner = value.strip(" \t")
    return replace(setting, value=inner) if is_plain_integer(inner) else setting


def _alone(setting: Setting, around: Circumstances, *, suggest: bool) -> Iterator[Finding]:
    """What can be said of a setting by itself."""
    variable = catalog.lookup(setting.name)
    by_shell = setting.value is None and setting.place not in ("conf", "docker")
    if by_shell and (setting.exported or is_known(setting.name)):
        yield finding(setting, "computed", "the shell works out the value: not checked")
    found = list(name_findings(setting, variable, around, suggest=suggest))
    if variable is not None and not any(f.severity == "error" for f in found):
        found += value_findings(setting, variable, around.version)
        found += list_findings(setting, around.version)
        found += dangers(setting, around)
        found += machine_findings(setting, variable, around)
        yield from found or _kind(setting, variable)
    else:
        yield from found
    yield from torch_findings(setting, around)
    yield from other_interfaces(setting, around)


def _kind(setting: Setting, variable: Variable) -> Iterator[Finding]:
    """What sort of variable it is, where nothing else is to be said."""
    name, value = setting.name, setting.value
    if value is not None and protects_multicast(name, value):
        return
    if value == "0" and name.endswith("_DISABLE"):
        return  # the default
    if variable.fabric:
        if value is not None and value.startswith("^"):
            return  # leaving out docker0 and lo is right on many hosts
        text = (
            "belongs to one network: copied elsewhere it hides devices or slows them down; measure "
            "without it"
        )
        source = "NVIDIA/nccl#1453, oracle-quickstart/oci-hpc#48, hiyouga/LlamaFactory#6111"
        yield finding(setting, "fabric-specific", text, source)
    elif not variable.documented:
        text = "not in NVIDIA's guide: it may change its meaning or go in any release"
        yield finding(setting, "undocumented", text, "NVIDIA/nccl#2280, #790")
    elif variable.debugging:
        text = (
            "a debugging setting in NVIDIA's guide, not to be kept: what is best changes with the "
            "release; measure again after each upgrade"
        )
        yield finding(setting, "version-bound", text, "NVIDIA/nccl-tests#352, NVIDIA/nccl#2280")
    if "send/recv" in variable.only:
        text = "acts on send and receive, which DDP does not use"
        yield finding(setting, "not-for-ddp", text, "NVIDIA/nccl#1598, #1045")


def _site(setting: Setting, around: Circumstances) -> Iterator[Finding]:
    """Where a file says another thing than what is set here already."""
    if setting.place == "environment":
        return
    name, value = setting.name, setting.value
    if name in MULTICAST_OFF and multicast_is_off(around.site):
        off = [v for v in around.site.values() if protects_multicast(v.name, v.value)]
        if setting.unset or value is None or not protects_multicast(name, value):
            what = ", ".join(f"{v.name}={v.value} in the {_source(v.source)}" for v in off)
            text = f"NVLink multicast is off here ({what}); this works against it, take it out"
            yield finding(setting, "site-multicast", text)
        return
    if name == "NCCL_ALGO" and value and multicast_is_off(around.site):
        if asks_for_multicast(name, value):
            text = "NVLink multicast is off here, and NVLS is nothing without it; name another"
            yield finding(setting, "site-multicast", text)
    here = around.site.get(name)
    if here is None or here.source == setting.file or setting.unset or here.value == value:
        return
    text = f"here it is {shown(here.value)} already, set in the {_source(here.source)}"
    if setting.place == "conf" and here.source == "environment":
        yield finding(setting, "overruled", f"{text}, which wins over nccl.conf")
    else:
        yield finding(setting, "differs-from-site", text)


def _source(source: str) -> str:
    return "environment" if source == "environment" else f"file {shown(source)}"
