"""Which settings hold together: to the end of the script, for one command, in one branch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nccltune.nccl import catalog
from nccltune.nccl.findings import Arm, Setting
from nccltune.nccl.integers import plain_integer

Chosen = Mapping[str, Setting]
"""The setting that holds in the end, by name. Its value is None where nobody knows it."""

_MOST = 1000  # commands and branches with settings of their own
_WORK = 2_000_000  # a hostile file may hold a hundred thousand of them

_Key = tuple[int, frozenset[Arm]]


@dataclass(frozen=True)
class View:
    """What can be said where one line is reached: `chosen` also has what other branches may have
    set, without a value; `sure` are the names of what holds whenever that line is reached.
    """

    within: frozenset[Arm]
    chosen: Chosen
    sure: frozenset[str]


def number_of(chosen: Chosen, name: str) -> int | None:
    """The number that holds; None where it is not set, not known or no number."""
    setting = chosen.get(name)
    return None if setting is None or setting.value is None else plain_integer(setting.value)


def text_of(chosen: Chosen, name: str) -> str | None:
    """The text that holds; None where it is not set or not known."""
    setting = chosen.get(name)
    return None if setting is None else setting.value


def views(settings: Sequence[Setting]) -> Iterator[View]:
    """A view for each command and each branch that sets something, the script as a whole first."""
    held: dict[_Key, dict[str, tuple[int, Setting]]] = {(0, frozenset()): {}}
    for index, setting in enumerate(settings):
        if setting.group is None or setting.unset or catalog.lookup(setting.name) is None:
            continue
        key = setting.group, setting.within
        if key not in held and len(held) >= min(_MOST, 1 + _WORK // len(settings)):
            continue
        own = held.setdefault(key, {})
        if setting.place == "conf":  # NCCL never overwrites what is set
            own.setdefault(setting.name, (index, setting))
        else:
            own[setting.name] = index, setting
    for key in held:
        yield _view(key, held)


def _view(key: _Key, held: Mapping[_Key, Mapping[str, tuple[int, Setting]]]) -> View:
    group, within = key
    arms = dict(within)
    found: list[tuple[int, int, bool, Setting]] = []
    for (other_group, other), own in held.items():
        if other_group not in (0, group) or any(arms.get(b, arm) != arm for b, arm in other):
            continue  # another command, or an arm that is not gone through
        found += [(other_group, i, other <= within, setting) for i, setting in own.values()]
    chosen: dict[str, Setting] = {}
    sure: set[str] = set()
    for _, _, holds, setting in sorted(found, key=lambda item: item[:2]):
        before = chosen.get(setting.name)
        if before is not None and setting.place == "conf":
            continue
        if holds:
            sure.add(setting.name)
        elif before is None or before.value != setting.value:
            setting = replace(before or setting, value=None)  # this or that
        else:
            continue
        chosen[setting.name] = setting
    return View(within, chosen, frozenset(sure))
