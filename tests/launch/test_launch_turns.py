"""Two worker groups in turn: the order, what is refused, and that both are always closed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from nccltune.launch import turns
from nccltune.launch.protocol import Failure, Limits, Outcome, Progress
from nccltune.launch.turns import NoTurns, Side, take_turns
from nccltune.machine.gpus import Gpu

GPU = Gpu(3, "GPU-1", "Some GPU", 100, 0)
CRASH = Outcome(None, Failure("crashed", "boom"))


@dataclass
class Group:
    """Answers after some turns, or fails in one of them; 0 is the beginning."""

    name: str
    events: list[str]
    turns: int = 2
    fails_in: int | None = None
    outcome: Outcome = CRASH
    alive: bool = True
    taken: int = 0

    def open(self) -> Group:
        self.events.append(f"open {self.name}")
        return self

    def request(self, message: Mapping[str, Any], limits: Limits, progress: Progress) -> Outcome:
        raise AssertionError("asked without turns")

    def begin(
        self, message: Mapping[str, Any], limits: Limits, progress: Progress
    ) -> Outcome | None:
        assert message == {"of": self.name}
        return self.outcome if self.fails_in == 0 else None

    def turn(self) -> Outcome | None:
        self.taken += 1
        self.events.append(f"turn {self.name}")
        if self.fails_in == self.taken:
            return self.outcome
        return Outcome({"of": self.name}, None) if self.taken == self.turns else None

    def close(self) -> None:
        assert self.alive, "closed twice"
        self.alive = False
        self.events.append(f"close {self.name}")


@dataclass
class Free:
    """What each look at the GPU's memory finds free."""

    looks: list[int]
    seen: int = field(default=0)

    def __call__(self, gpus: Any) -> tuple[int, ...]:
        self.seen += 1
        return (self.looks[min(self.seen, len(self.looks)) - 1],)


def groups(events: list[str], **other: Any) -> tuple[Group, Group]:
    return Group("a", events), Group("b", events, **other)


def taken(*several: Group) -> tuple[Outcome, Outcome]:
    sides = [Side(group.open, {"of": group.name}) for group in several]
    return take_turns(sides, [GPU])


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "free_memory", Free([100, 60]))


def test_turns_alternate_and_the_second_is_closed_first() -> None:
    events: list[str] = []
    one, other = taken(*groups(events))
    assert (one.result, other.result) == ({"of": "a"}, {"of": "b"})
    assert events == [
        *("open a", "open b", "turn a", "turn b", "turn b", "turn a", "close b", "close a")
    ]


def test_one_that_needs_more_turns_goes_on_alone() -> None:
    events: list[str] = []
    one, other = taken(*groups(events, turns=4))
    assert one.result and other.result
    assert events.count("turn a") == 2 and events.count("turn b") == 4


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_a_failure_ends_both(turn: int) -> None:
    events: list[str] = []
    with pytest.raises(NoTurns, match="crashed: boom"):
        taken(*groups(events, fails_in=turn))
    assert events[-2:] == ["close b", "close a"]


def test_a_host_that_dies_is_no_fault_of_the_two() -> None:
    events: list[str] = []
    lost = Outcome(None, Failure("crashed", "the warm host died"), host_lost=True)
    first = iter([Group("a", events, fails_in=1, outcome=lost), Group("a", events)])
    second = iter([Group("b", events), Group("b", events)])
    sides = [
        Side(lambda: next(first).open(), {"of": "a"}),
        Side(lambda: next(second).open(), {"of": "b"}),
    ]
    one, other = take_turns(sides, [GPU])
    assert one.result and other.result
    assert events[:5] == ["open a", "open b", "turn a", "close b", "close a"]


def test_all_are_closed_though_one_cannot_be() -> None:
    events: list[str] = []
    one, other = groups(events)
    other.close = lambda: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        taken(one, other)
    assert events[-1] == "close a"


@pytest.mark.parametrize(("free", "fits"), [(56, True), (55, False)])
def test_a_second_group_needs_the_room_of_the_first_and_a_quarter_more(
    free: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 100 bytes: the first takes 44 and leaves 56, or takes 45 and leaves 55."""
    monkeypatch.setattr(turns, "free_memory", Free([100, free]))
    events: list[str] = []
    if fits:
        taken(*groups(events))
        return
    with pytest.raises(NoTurns, match="memory of GPU 3 does not hold two worker groups"):
        taken(*groups(events))
    assert events == ["open a", "close a"]


def test_memory_that_came_free_meanwhile_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "free_memory", Free([10, 20]))
    taken(*groups([]))
