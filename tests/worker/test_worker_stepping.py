"""`nccltune.step`, with and without somebody who listens."""

from __future__ import annotations

import subprocess
import sys
import timeit

import pytest

import nccltune
from nccltune.worker import stepping


def test_outside_a_trial_nothing_happens() -> None:
    assert nccltune.step() is None  # type: ignore[func-returns-value]
    assert nccltune.step(samples=32) is None  # type: ignore[func-returns-value]


def test_a_listener_is_found_whenever_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int | None] = []
    from nccltune import step  # bound before, as in a script

    monkeypatch.setattr(stepping, "listener", heard.append)
    step(samples=32)
    step()
    step(7)
    assert heard == [32, None, 7]


def test_it_costs_no_more_than_a_few_calls() -> None:
    # A microsecond is twenty calls of an empty function and more, on any machine.
    def nothing(samples: int | None = None) -> None: ...

    def cost(call: object) -> float:
        return min(timeit.repeat("f(samples=32)", globals={"f": call}, number=20_000, repeat=5))

    assert cost(nccltune.step) < 5 * cost(nothing)


def test_torch_is_not_needed() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from nccltune import step, load, apply\n"
        "step(samples=1)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
