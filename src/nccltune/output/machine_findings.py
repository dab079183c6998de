"""What is wrong with a machine, or could be better, and what to do about it. No printing here."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from nccltune.output import words
from nccltune.output.diagnosis import findings as step_findings
from nccltune.output.findings import Finding, Severity, in_order
from nccltune.output.link_findings import link_findings, named
from nccltune.output.machine_facts import few, ranges
from nccltune.output.machine_view import Checked, MachineView, Told
from nccltune.output.network_findings import network_findings
from nccltune.output.pair_findings import pair_findings
from nccltune.stats.step import Diagnosis

_LEAST_SHM = 1 << 30
_LEAST_FREE = 256 << 20
_MOST_NAMES = 6


def all_findings(
    checked: Checked, diagnosis: Diagnosis | None = None, *, backend: str = "nccl"
) -> tuple[Finding, ...]:
    """The gravest first. Of one gravity: who disturbs, the GPUs and their links, the network, the
    host, the job, then settings.
    """
    machine = checked.machine
    pairs = tuple(pair_findings(checked, diagnosis))
    told = [
        *_missing(checked),
        *_disturbed(checked),
        *pairs,
        *link_findings(checked, compare=not pairs),
        *_cores(checked),
        *network_findings(machine),
        *_host(machine),
        *_software(checked),
        *(step_findings(diagnosis, backend=backend) if diagnosis else ()),
        *_settings(checked),
    ]
    return in_order(told)


def _missing(checked: Checked) -> Iterator[Finding]:
    if checked.gpuless is not None:
        fact = f"No GPU for --device cuda: {checked.gpuless}"
        text = "see whether nvidia-smi shows one here, and what the container or the queue gives"
        yield Finding("error", "GPUs", fact, text)


# Who disturbs.

_REMEDIES = (
    ("by heat", "look at fans, air flow and power limit: nvidia-smi -q -d PERFORMANCE,TEMPERATURE"),
    ("power brake", "look at the power supply: nvidia-smi -q -d PERFORMANCE,POWER"),
    ("was slowed", "look at nvidia-smi -q -d PERFORMANCE"),
    ("ECC", "drain this machine, reset the GPU, and look at nvidia-smi -q -d ECC,ROW_REMAPPER"),
    ("NVLink", "look at nvidia-smi nvlink -e; a GPU or a switch may have to be seated anew"),
    ("another process used GPU", "let it end, or choose other GPUs with CUDA_VISIBLE_DEVICES"),
    ("CPU cores", "see who they are (top), and repeat when they are gone"),
)


def _disturbed(checked: Checked) -> Iterator[Finding]:
    if checked.busy:
        yield Finding(
            "error",
            "contamination",
            f"Other processes run on these GPUs ({few(checked.busy, 4, '; ')}), so no rank was "
            "started",
            "let them end, choose free GPUs with CUDA_VISIBLE_DEVICES, or give --allow-busy",
        )
    for taint in checked.taints:
        if checked.busy and "another process used GPU" in taint:
            continue
        remedy = next((text for word, text in _REMEDIES if word in taint), "repeat")
        yield Finding("warning", "contamination", f"{taint[0].upper()}{taint[1:]}", remedy)


def _cores(checked: Checked) -> Iterator[Finding]:
    """GPUs whose own cores this process, and so its ranks, may not use."""
    mine = set(checked.machine.host.cores)
    far = [
        gpu.index
        for gpu in checked.machine.gpus
        if gpu.index in checked.used and gpu.cpus and mine and not mine & set(gpu.cpus)
    ]
    if far:
        fact = f"{named(far)}: no core beside it may be used (only CPU {ranges(mine)} may)"
        text = (
            "start the job with cores of that NUMA node: taskset, numactl, or the queue's binding"
        )
        yield Finding("warning", "NUMA", fact, text)


# The host, the software, settings.


def _host(machine: MachineView) -> Iterator[Finding]:
    host = machine.host
    size, free = host.shm_bytes, host.shm_free_bytes
    if size is not None and size < _LEAST_SHM:
        fact = (
            f"/dev/shm has {words.size(size)} (limit {words.size(_LEAST_SHM)}): loader workers and "
            "NCCL put their buffers there"
        )
        text = "start the container with --shm-size=8g or --ipc=host"
        yield Finding("warning", "shared memory", fact, text)
    elif free is not None and free < _LEAST_FREE:
        fact = f"/dev/shm has {words.size(free)} free of {words.size(size or 0)}"
        text = "remove what ended jobs have left there: ls -lt /dev/shm"
        yield Finding("warning", "shared memory", fact, text)
    if host.cpu_limit is not None and host.cores and host.cpu_limit < 0.9 * len(host.cores):
        fact = (
            f"A cgroup gives {host.cpu_limit:g} cores' worth of time on {len(host.cores)} cores, "
            "and stops all threads when it is used up"
        )
        text = "count loader workers by the time, not by the cores, or raise the limit"
        yield Finding("note", "limits", fact, text)


def _software(checked: Checked) -> Iterator[Finding]:
    if checked.torchless is not None:
        fact = f"No torch was found in {checked.torchless}"
        yield Finding("warning", "software", fact, "give the job's own interpreter with --python")
    driver, cuda = _release(checked.machine.cuda), _release(checked.cuda)
    if driver and cuda and cuda > driver:
        fact = f"torch is built for CUDA {checked.cuda}, the driver is for {checked.machine.cuda}"
        text = "a driver for that release, or a torch for the driver's"
        grave: Severity = "error" if cuda[0] > driver[0] else "note"
        yield Finding(grave, "software", fact, text)
    version = (checked.probe or {}).get("version")
    if version and checked.nccl and version != checked.nccl:
        fact = f"NCCL {version} ran, and torch was built with {checked.nccl}"
        text = "if that is not meant, look at LD_LIBRARY_PATH and LD_PRELOAD"
        yield Finding("note", "software", fact, text)


def _release(text: str | None) -> tuple[int, ...]:
    parts = (text or "").split(".")
    return tuple(int(part) for part in parts) if all(p.isdigit() for p in parts) else ()


def _settings(checked: Checked) -> Iterator[Finding]:
    """What is wrong line by line; what is only good to know is left to lint."""
    for reason in checked.unread:
        fact = f"Settings of NCCL are not known: {reason}"
        text = "make it a file that jobs can read, or take it away"
        yield Finding("warning", "site variables", fact, text)
    notes = [told for told in checked.lint if told.severity == "note"]
    for told in checked.lint:
        if told.severity != "note":
            yield Finding(told.severity, "site variables", _placed(told), _mend(told))
    if len(notes) == 1:
        yield Finding("note", "site variables", _placed(notes[0]), "nccltune lint")
    elif notes:
        names = list(dict.fromkeys(told.name for told in notes if told.name))
        about = f" on {few(names, _MOST_NAMES, ', ')}" if names else ""
        yield Finding("note", "site variables", f"{len(notes)} notes{about}", "nccltune lint")


def _placed(told: Told) -> str:
    place = "" if told.file is None else f"{told.file}, line {told.line}: "
    return f"{place}{f'{told.name}: ' if told.name else ''}{told.text}"


def _mend(told: Told) -> str:
    if told.file is None:
        return "change it where it is exported; nccltune lint says more"
    return f"change that line; nccltune lint {shlex.quote(told.file)} says more"
