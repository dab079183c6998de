"""The benchmark of samplers: its landscapes, its rules, its report."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from quality.landscapes import recorded  # noqa: E402
from quality.ours import Guided, disguised  # noqa: E402
from quality.peers import PEERS, CoordinateDescent  # noqa: E402
from quality.replay import replay  # noqa: E402
from quality.synthetic import KINDS, synthetic  # noqa: E402

RECORDED = ROOT / "benchmarks/landscapes/h200x2-socket-resnet50.jsonl"


def recording(path: Path, lucky: float = 1.0) -> Path:
    """Three buckets by two threads in a launch each, the default in five; 64 threads are twice as
    fast, and one launch of a slow point is `lucky`.
    """
    rows: list[dict[str, Any]] = []
    launches = [*[None] * 5, 64, 8]
    for launch, threads in enumerate(launches):
        for bucket in (None, 5, 100):
            true = 1000 * (2 if threads == 64 else 1) * (0.9 if bucket == 100 else 1)
            luck = math.exp(0.02 * math.sin(7 * launch)) * (lucky if threads == 8 else 1)
            rows.append(
                {
                    "launch": launch,
                    "NCCL_NTHREADS": threads,
                    "bucket_cap_mb": bucket,
                    "windows": [1.0, *[true * luck * (1 + 0.001 * i) for i in range(3)]],
                    "setup_s": 2.5 if bucket is None else 0.5,
                    "warm_s": 0.2,
                    "measure_s": 1.0,
                    "launch_s": 0.3 if bucket is None else 0.0,
                }
            )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_recording_is_read(tmp_path: Path) -> None:
    found = recorded(recording(tmp_path / "r.jsonl"))
    assert found.process == {"NCCL_NTHREADS"}
    assert found.default == (None, None)
    assert len(found.truth) == 9
    assert found.truth[64, None] == pytest.approx(2000, rel=0.05)
    assert found.regret((64, None)) < 0.02
    assert found.regret((None, 100)) == pytest.approx(0.55, abs=0.05)
    assert found.launch_seconds == pytest.approx(2.3)  # its start, and what is set up once
    assert found.seconds[64, 5] == pytest.approx(1.7)


def test_a_lucky_launch_is_not_taken_for_the_truth() -> None:
    found = recorded(RECORDED)
    rows = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    highest = max(sorted(row["windows"])[1] for row in rows)
    assert found.best < highest
    assert 0.01 < found.launch_spread < 0.07


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"launch": 0, "a": 1, "windows": []}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl: line 1"):
        recorded(file)
    file.write_text('{"launch": 0, "a": 1, "windows": [5.0]}\n')
    with pytest.raises(ValueError, match="no configuration was measured in two launches"):
        recorded(file)


def test_unrecorded_and_known_points_cost_nothing(tmp_path: Path) -> None:
    landscape = recorded(recording(tmp_path / "r.jsonl"))
    for make in PEERS.values():
        if make is not PEERS["gp"]:
            steps = replay(landscape, make(landscape, 0), 9, 0)
            assert len(steps) <= 9
            assert steps[0].regret == landscape.regret(landscape.default)
            assert all(a.seconds < b.seconds for a, b in zip(steps, steps[1:], strict=False))


def test_luck_is_the_same_for_all_samplers_of_a_seed(tmp_path: Path) -> None:
    landscape = recorded(recording(tmp_path / "r.jsonl"))
    whole = [replay(landscape, CoordinateDescent(landscape, s), 9, 3)[-1] for s in (1, 2)]
    assert whole[0].regret == whole[1].regret


def test_a_disguised_landscape_is_the_same_one(tmp_path: Path) -> None:
    landscape = recorded(recording(tmp_path / "r.jsonl"))
    other = disguised(landscape, 5)
    assert sorted(other.truth.values()) == sorted(landscape.truth.values())
    assert other.regret(other.default) == landscape.regret(landscape.default)
    assert other.parameters.keys().isdisjoint(landscape.parameters)
    assert len(other.process) == 1


def test_made_up_landscapes_belong_to_their_seed() -> None:
    for kind in KINDS:
        one, again, other = synthetic(kind, 1), synthetic(kind, 1), synthetic(kind, 2)
        assert one.best == again.best != other.best
        assert one.truth[one.default] > 0
        assert one.default not in one.failing
        assert len(one.truth) + sum(1 for _ in one.failing) == 129_600


def test_guided_finds_what_is_there() -> None:
    landscape = recorded(RECORDED)
    answers = [replay(landscape, Guided(landscape, s, presets=True), 20, s)[-1] for s in range(3)]
    assert sum(step.regret for step in answers) / 3 < 0.05  # the default: 0.30


def test_the_command(tmp_path: Path) -> None:
    file, rows = recording(tmp_path / "small.jsonl"), tmp_path / "rows.json"
    command = [sys.executable, "-W", "ignore", str(ROOT / "benchmarks/search_quality.py")]
    command += ["--landscape", str(file), "--seeds", "3", "--json", str(rows)]
    for sampler in ("guided", "guided-no-presets", "guided-disguised", "random", "tpe"):
        command += ["--sampler", sampler]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # of three seeds nothing can be said
    assert "small: mean regret in %" in done.stdout
    found = json.loads(rows.read_text())
    assert {r["sampler"] for r in found} >= {"guided", "random", "tpe"}
    assert {"landscape", "sampler", "trials", "mean_regret", "se", "p90_regret"} <= found[0].keys()
    assert {r["trials"] for r in found} == {10, 20, 40, None}
