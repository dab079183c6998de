"""What a live group measures is what a fresh launch measures: the benchmark's own comparison."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import workloads
from nccltune.worker.spec import Request, Settings
from workloads import WORKLOAD, launcher

BENCHMARK = Path(__file__).parents[2] / "benchmarks/three_ways.py"


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("three_ways", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["three_ways"] = module
    spec.loader.exec_module(module)
    return module


three_ways = _load()


def row(block: int, way: str, speed: float, loss: float = 2.0, name: str = "a") -> dict[str, Any]:
    return {
        "block": block,
        "way": way,
        "configuration": name,
        "samples_per_second": speed,
        "first_loss": loss,
    }


def test_a_block_is_one_ratio() -> None:
    rows = [
        *(row(0, "torchrun", 100.0), row(0, "warm", 101.0), row(0, "live", 99.0)),
        *(row(1, "warm", 202.0), row(1, "torchrun", 200.0), row(1, "live", 198.0)),
        *(row(0, "live", 55.0, name="b"), row(0, "torchrun", 50.0, name="b")),
        row(0, "warm", 50.5, name="b"),
    ]
    assert three_ways.ratios(rows, "warm") == pytest.approx([1.01, 1.01])
    assert three_ways.ratios(rows, "live") == pytest.approx([math.sqrt(0.99 * 1.1), 0.99])


@pytest.mark.parametrize(
    ("speeds", "words"),
    [
        ([100.0, 101.0, 99.5, 100.5], "equal within 3%"),
        ([110.0, 111.0, 112.0, 110.5], "not equal within 3%"),
        ([100.0, 104.0, 97.0, 101.0], "more blocks should settle it"),
        ([100.0, 120.0, 97.0, 105.0], "would not show it either"),
    ],
)
def test_what_a_comparison_allows_to_say(speeds: list[float], words: str) -> None:
    rows = [row(n, "torchrun", 100.0) for n in range(4)]
    rows += [row(n, way, speed) for n, speed in enumerate(speeds) for way in ("warm", "live")]
    found = three_ways.summary(rows)
    assert three_ways.sentence("live", found["live"]).endswith(words)


def test_another_start_is_seen() -> None:
    rows = [row(0, "torchrun", 1.0, 2.0), row(0, "warm", 1.0, 2.0), row(1, "warm", 1.0, 3.0)]
    assert three_ways.same_start(rows)
    assert not three_ways.same_start([*rows, row(0, "live", 1.0, 2.01)])


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.parametrize("blocks", [3, 8])
def test_a_live_group_measures_what_fresh_launches_do(tmp_path: Path, blocks: int) -> None:
    """A job whose steps take 30 ms of waiting and little else, so that few blocks say something on
    a busy machine too, with data whose order shows in the loss.
    """
    workload = replace(WORKLOAD, model="smalljobs:Sleepy", data="smalljobs:numbered")
    settings = Settings(windows=2, max_warmup_windows=4)
    plain = Request("b", workload, settings, {}, {"num_workers": 1}, batch_size=4)
    launchers = {
        kind: launcher(kind, tmp_path / kind, STEP_MS="30") for kind in workloads.LAUNCHERS
    }
    configurations = {"buckets": replace(plain, ddp={"bucket_cap_mb": 1})}
    if blocks > 2:
        configurations["default"] = plain
    rows = three_ways.compare(launchers, configurations, blocks, tmp_path, print)
    for starter in launchers.values():
        starter.close()
    assert len(rows) == blocks * len(configurations) * 3
    assert three_ways.same_start(rows)
    assert len({r["first_loss"] for r in rows}) == blocks, "each block has data of its own"
    for way, found in three_ways.summary(rows).items():
        print(three_ways.sentence(way, found))
        assert found["said"] != "different", found
        assert 0.75 < found["ratio"] < 1.33, found  # few blocks can hardly say "different"
    assert workloads.left() == []
