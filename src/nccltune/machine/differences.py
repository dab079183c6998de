"""What differs between the machine that a result was measured on and the one it is used on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nccltune.machine.facts import Machine


def machine_differences(
    measured: Mapping[str, Any], here: Machine, ranks: int | None
) -> Iterator[str]:
    """`name: what was, what is`. `ranks`: how many GPUs of this machine the job takes, None where
    that is not known and all count. What one of the two does not tell is left out, and so are
    memory sizes, which virtual machines change as they go.
    """
    facts = here.to_dict()
    for name in ("gpus", "nvlinks"):
        facts[name] = facts[name] if ranks is None else facts[name][:ranks]
    for name in ("gpus", "nvlinks", "driver", "torch", "nccl", "cpu", "cores"):
        was, now = measured.get(name), facts[name]
        if name == "nvlinks" and len(was or ()) != len(now):
            continue  # told by the GPUs
        if was is None or now is None or _same(name, was, now):
            continue
        yield f"{name}: {_shown(name, was)} where it was measured, {_shown(name, now)} here"


def _same(name: str, was: Any, now: Any) -> bool:
    if name == "torch":  # packages leave out the local part that torch itself tells, or have it
        one, other = str(was).split("+"), str(now).split("+")
        return one == other if len(one) == len(other) else one[0] == other[0]
    return bool(was == now)


def _shown(name: str, value: Any) -> str:
    if name == "nvlinks":
        return " and ".join(str(links) for links in dict.fromkeys(value)) + " a GPU"
    if not isinstance(value, (list, tuple)):
        return str(value)
    return ", ".join(f"{value.count(kind)}x {kind}" for kind in dict.fromkeys(value)) or "none"
