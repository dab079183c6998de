"""--when-idle: waits for the GPUs, and gets out of the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from nccltune.cli import idle
from nccltune.cli.verifying import idle_flag
from nccltune.errors import Busy, UsageError
from nccltune.machine.gpus import Gpu, GpuProcess
from nccltune.study.options import SearchOptions

GPUS = tuple(Gpu(index, f"u{index}", "H200", 1, 18) for index in range(4))


class Others:
    """Who uses the GPUs, look by look."""

    def __init__(self, *looks: Sequence[int]) -> None:
        self.looks, self.asked = list(looks), list[Sequence[Gpu]]()

    def __call__(self, gpus: Sequence[Gpu]) -> tuple[GpuProcess, ...]:
        self.asked.append(gpus)
        used = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return tuple(GpuProcess(gpu, 77, "train") for gpu in used)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr(idle.time, "sleep", waited.append)
    return waited


def test_it_waits_until_they_are_free(
    monkeypatch: pytest.MonkeyPatch, slept: list[float], capsys: Any
) -> None:
    monkeypatch.setattr(idle, "processes", Others([1], [1, 2], []))
    idle.wait_for_idle(GPUS, 3600.0)
    assert len(slept) == 2
    told = capsys.readouterr().err
    assert (
        told.count("waiting until they are free") == 1 and "GPU 1 is in use by process 77" in told
    )


def test_it_ends_with_75_where_that_does_not_come(
    monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    monkeypatch.setattr(idle, "processes", Others([0]))
    with pytest.raises(
        Busy, match="GPU 0 is in use by process 77 .train.; nothing was started"
    ) as e:
        idle.wait_for_idle(GPUS, 0.0)
    assert e.value.exit_code == 75 and slept == []


def test_others_that_come_later_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    others = Others([], [2])
    monkeypatch.setattr(idle, "strangers", others)
    flag = idle.IdleFlag(GPUS)
    flag.check()
    flag.check()  # looks only now and then
    assert len(others.asked) == 1
    with pytest.raises(Busy, match="GPU 2 .* so as not to be in its way"):
        flag.check_now()


def test_only_the_gpus_of_the_job_count(monkeypatch: pytest.MonkeyPatch) -> None:
    others = Others([])
    monkeypatch.setattr(idle, "processes", others)
    monkeypatch.setattr("nccltune.cli.verifying.visible_gpus", lambda _environ: GPUS)
    asked = SearchOptions(nproc_per_node=2, allow_busy=True)
    options, flag = idle_flag(asked, "10m", {})
    assert others.asked == [GPUS[:2]] and isinstance(flag, idle.IdleFlag)
    assert not options.allow_busy  # which the study's own command had
    assert idle_flag(asked, None, {}) == (asked, None)


def test_what_contradicts_it_and_what_is_no_time() -> None:
    with pytest.raises(UsageError, match="contradict"):
        idle_flag(SearchOptions(device="cpu"), "1m", {"allow_busy": True})
    with pytest.raises(UsageError, match="not a time"):
        idle_flag(SearchOptions(device="cpu"), "soon", {})
