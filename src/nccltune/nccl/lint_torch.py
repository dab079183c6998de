"""Variables of torch and CUDA that bear on DDP."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.version import Version

from nccltune.nccl.catalog import FOREIGN
from nccltune.nccl.circumstances import Circumstances
from nccltune.nccl.findings import Finding, Setting, finding, shown
from nccltune.nccl.integers import plain_integer
from nccltune.nccl.lint_dangers import dangers
from nccltune.nccl.readers import TORCH_NUMBERS, TORCH_SWITCHES

_TRUE = frozenset({"1", "y", "yes", "t", "true"})
_FALSE = frozenset({"0", "n", "no", "f", "false"})
_STOI = re.compile(r"\s*[+-]?\d", re.A)
_STASHING = Version("2.8")
_SLOW = {
    "TORCH_NCCL_BLOCKING_WAIT": (
        "the CPU waits at each wait(); DDP waits at the end of backward",
        None,
    ),
    "TORCH_NCCL_ENABLE_TIMING": (
        "an event before every collective; with CUDA_DEVICE_MAX_CONNECTIONS=1 overlap is lost",
        "pytorch/pytorch#143890",
    ),
    "TORCH_NCCL_NAN_CHECK": ("looks through every tensor before it is sent", None),
    "TORCH_NCCL_DESYNC_DEBUG": ("writes to the store at every collective", None),
}


def torch_findings(setting: Setting, around: Circumstances) -> Iterator[Finding]:
    """What torch or CUDA makes of the value. Names that neither reads give nothing."""
    value = setting.value
    if value is None:
        return
    name = _torch_name(setting.name)
    if name == "TORCH_NCCL_AVOID_RECORD_STREAMS":
        yield from _record_streams(setting, around)
    elif name in TORCH_SWITCHES and value.lower() not in _TRUE | _FALSE:
        text = f"torch does not start with {shown(value) or 'an empty value'}; write 1 or 0"
        yield finding(setting, "torch-refuses", text)
    elif name in TORCH_NUMBERS and not _STOI.match(value):
        text = f"torch does not start with {shown(value) or 'an empty value'}; write a number"
        yield finding(setting, "torch-refuses", text)
    elif name in _SLOW and value.lower() in _TRUE:
        text, source = _SLOW[name]
        yield finding(setting, "debugging-left-on", f"{text}; take it out", source)
    elif name == "TORCH_NCCL_ASYNC_ERROR_HANDLING" and plain_integer(value) == 0:
        text = "when a rank fails the others wait for ever instead of ending; leave it unset"
        yield finding(setting, "dangerous", text)
    else:
        yield from _of_the_job(setting, value, around)


def _torch_name(name: str) -> str:
    """The name under which torch knows it today."""
    return FOREIGN.get(name, "").partition(", as ")[2] or name


def _record_streams(setting: Setting, around: Circumstances) -> Iterator[Finding]:
    if around.torch is not None and around.torch < _STASHING:
        return
    release = f", this is {around.torch}" if around.torch is not None else ""
    text = (
        f"torch does so always, and ignores the variable, since {_STASHING}{release}; take it out"
    )
    source = "pytorch/pytorch#147168, #150398, #194701"
    yield finding(setting, "obsolete", text, source)


def _of_the_job(setting: Setting, value: str, around: Circumstances) -> Iterator[Finding]:
    name = setting.name
    if name == "CUDA_LAUNCH_BLOCKING":
        if value.strip() not in ("", "0"):
            text = "every kernel is waited for: nothing overlaps; take it out"
            yield finding(setting, "debugging-left-on", text)
    elif name == "TORCH_DISTRIBUTED_DEBUG":
        if value.upper() == "DETAIL":
            text = "compares every collective over all ranks first; take it out"
            yield finding(setting, "debugging-left-on", text)
    elif name == "CUDA_DEVICE_MAX_CONNECTIONS":
        yield from dangers(setting, around)
