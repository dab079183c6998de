"""The recorder of landscapes: what it draws, what it repeats, and what a recording holds."""

from __future__ import annotations

import importlib
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from nccltune.errors import UsageError
from nccltune.space import Facts, Selection, canonical, key, load, resolve, violation
from nccltune.study.definition import Task
from nccltune.study.effective import effective
from running import Cli
from workloads import WORKLOAD

BENCHMARK = Path(__file__).parents[1] / "benchmarks/record_landscape.py"
JOB = (
    *("--device", "cpu", "--model", "smalljobs:tiny", "--data", "synthetic", "--batch-size", "4"),
    *("--image-size", "16", "--measure-seconds", "0.3", "--space", "space.yaml"),
)
# GLOO_INERT is read by nobody; no machine has that interface, so that ranks cannot meet.
SPACE = """
version: 1
parameters:
  GLOO_INERT: {target: env, choices: [null, 1], default: null}
  GLOO_SOCKET_IFNAME: {target: env, choices: [null, nosuch0], default: null}
  bucket_cap_mb: {target: ddp, choices: [null, 1, 50], default: null}
constraints:
  forbids:
    - {GLOO_INERT: [1], GLOO_SOCKET_IFNAME: [nosuch0]}
"""
NAMES = ["GLOO_INERT", "GLOO_SOCKET_IFNAME", "bucket_cap_mb"]


sys.path.append(str(BENCHMARK.parent))  # where Python looks first when it runs the file
landscape: Any = importlib.import_module("record_landscape")
points: Any = importlib.import_module("landscape_points")


def point(number: int, place: str, speed: float | None) -> Any:
    return points.Point(f"c{number}", place, number // 10, speed)


def test_what_is_repeated_are_fast_and_slow_ones_of_few_environments() -> None:
    # Ten at each of six places; the fastest eight are at two of them.
    fast = {31: 990.0, 33: 980.0, 35: 970.0, 37: 960.0, 41: 950.0, 43: 940.0, 45: 930.0, 12: 920.0}
    speeds = [fast.get(number, 100.0 + number) for number in range(60)]
    measured = [point(number, str(number // 10), speed) for number, speed in enumerate(speeds)]
    measured.append(point(60, "3", None))
    random.Random(0).shuffle(measured)
    names = points.choose(measured, "c0", 14, 3)
    assert len(set(names)) == 14 and names[0] == "c0"
    assert {name[1] for name in names if len(name) > 2} <= {"3", "4"}  # and below ten
    assert set(names[1:9]) == {"c31", "c33", "c35", "c37", "c41", "c43", "c45", "c49"}
    assert "c60" not in names
    rest = [speeds[int(name[1:])] for name in names[9:]]
    assert rest == sorted(rest, reverse=True) and min(rest) < 110 and max(rest) > 140
    assert set(points.choose(measured, "c0", 5, 1)) <= {f"c{n}" for n in range(10)}
    assert points.choose(measured, "c0", 1, 1) == ["c0"]


def test_the_default_is_repeated_where_nothing_else_worked() -> None:
    assert points.choose([point(0, "a", None), point(1, "a", None)], "c0", 14, 4) == ["c0"]


@pytest.mark.parametrize(
    ("lacking", "launches"), [([], 0), ([5, 5, 3], 5), ([5] * 14, 7), ([2] * 10 + [1], 3)]
)
def test_launches_that_an_environment_still_needs(lacking: list[int], launches: int) -> None:
    assert points.launches_for(lacking) == launches


def test_what_repeats_cost_follows_from_what_was_measured() -> None:
    costs = points.Costs(firsts=[5.0, 6.0, 50.0], others=[2.0, 2.0, 2.0])
    assert (costs.launch, costs.measurement) == (4.0, 2.0)
    assert costs.of([[5, 5], [1]]) == 5 * 4.0 + 10 * 2.0 + 4.0 + 2.0
    assert points.Costs().of([[3]]) == 0.0
    assert costs.of_repeats(13, 6, 2) == costs.of([[5] * 7, [5] * 6]) == 10 * 4.0 + 65 * 2.0
    assert costs.of_repeats(13, 6, 1) == 7 * 4.0 + 65 * 2.0  # ten at most in a launch
    assert points.Costs([9.0], [1.0, 1.0, 7.0]).measurement == 3.0  # one of three is slow


def planned(minutes: float, costs: Any, *places: str) -> Any:
    recorder = object.__new__(landscape.Recorder)
    recorder._wanted = landscape.Wanted(minutes, repeats=13, launches=6)
    recorder.points = [point(n, place, 100.0) for n, place in enumerate(places)]
    recorder.costs = costs
    return recorder


def test_new_configurations_leave_the_time_that_repeats_need() -> None:
    costs = points.Costs(firsts=[6.0], others=[2.0])  # the repeats take 170 s at two environments
    assert planned(10, costs, "a", "b")._kept() == 300  # half of the time is more
    assert planned(5, costs, "a", "b")._kept() == pytest.approx(1.05 * 170)
    assert planned(5, costs, "a")._kept() == pytest.approx(1.05 * 158)
    assert planned(4, costs, "a", "b")._kept() == pytest.approx(160)  # new ones keep a third
    assert planned(4, points.Costs())._kept() == 120  # nothing is measured yet


def source_of(name: str, seed: int, *only: str) -> Any:
    """Draws from a space, as it is where two GPUs talk to each other."""
    facts = Facts(
        backend="nccl",
        world_size=2,
        probed=True,
        transports=("P2P",),
        nccl=Version("2.28.9"),
        cpus_per_rank=8,
        batch_size=64,
        num_workers=2,
    )
    space = resolve(load(name), facts, Selection(only=only), name)
    task = Task(WORKLOAD, 2, 64, 2, None)

    def process_env(configuration: Any) -> Any:
        return effective(
            configuration,
            space,
            nccl=facts.nccl,
            config_fields=frozenset({"min_ctas", "max_ctas"}),
            task=task,
        ).process_env

    return points.Source(space, process_env, seed), space


def test_what_is_drawn_is_legal_new_and_of_one_environment() -> None:
    source, space = source_of("comm", 1)  # NCCL_MIN_CTAS alone needs a new group there
    places = {source.place(source.default)}
    for _ in range(8):
        base = source.environment(places)
        place = source.place(base)
        assert place not in places
        places.add(place)
        first = source.beside(base, {key(base)}, 9)
        known = {key(base), *map(key, first)}
        more = source.beside(base, known, 9)
        names = [key(each) for each in (base, *first, *more)]
        assert len(first) == 9 and len(set(names)) == len(names)
        for each in (base, *first, *more):
            assert source.place(each) == place
            assert each == canonical(each, space) and violation(each, space) is None
    assert any("NCCL_MIN_CTAS" in place for place in places)


def test_a_small_space_is_used_up() -> None:
    source, _ = source_of("comm", 0, "bucket_cap_mb", "gradient_as_bucket_view")
    found = source.beside(source.default, (), 100)
    assert len({*map(key, found), key(source.default)}) == len(found) + 1 == 14
    assert source.beside(source.default, set(map(key, found)), 9) == []
    assert source.environment({source.place(source.default)}) is None


def test_a_variable_that_acts_beside_another_setting_gets_its_environment(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(
        "version: 1\nparameters:\n"
        "  bucket_cap_mb: {target: ddp, choices: [null, 1], default: null}\n"
        "  gradient_as_bucket_view: {target: ddp, choices: [false, true], default: false}\n"
        "  GLOO_OTHER: {target: env, choices: [null, 1], default: null, "
        "when: {param: {bucket_cap_mb: [1]}}}\n"
    )
    source, _ = source_of(str(file), 0)
    base = source.environment({source.place(source.default)})
    assert (base["GLOO_OTHER"], base["bucket_cap_mb"]) == (1, 1)
    [beside] = source.beside(base, (), 9)
    assert beside == {**base, "gradient_as_bucket_view": not base["gradient_as_bucket_view"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--minutes", "nan"], "--minutes must be"),
        (["--minutes", "1", "--points", "0"], "--points must be"),
        (["--minutes", "1", "--", "--no-such-option"], "No such option"),
        (["--minutes", "1", "--", "--", "train.py"], "only nccltune's own job"),
        (["--minutes", "1", "--out", "/"], "is there already"),
    ],
)
def test_mistakes_are_told_before_anything(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        landscape.parse(["--out", str(tmp_path / "new.jsonl"), *arguments])


def begin(cli: Cli, *arguments: str) -> subprocess.Popen[str]:
    (cli.folder / "space.yaml").write_text(SPACE)
    return subprocess.Popen(
        [sys.executable, str(BENCHMARK), "--out", "rows.jsonl", *arguments, "--", *JOB],
        cwd=cli.folder,
        env=cli.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rows_of(cli: Cli) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (cli.folder / "rows.jsonl").read_text().splitlines()]


@pytest.mark.ranks
@pytest.mark.slow
def test_a_recording_has_points_of_several_environments_and_repeats(cli: Cli) -> None:
    process = begin(cli, "--minutes", "5", "--repeats", "3", "--repeat-launches", "2")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    cli.assert_nothing_left()
    rows = rows_of(cli)
    seen: dict[tuple[Any, ...], set[int]] = {}
    for number, row in enumerate(rows):
        expected = ["launch", *NAMES, "windows", "setup_s", "warm_s", "measure_s", "launch_s"]
        assert list(row) == expected + ["failed"] * ("failed" in row)
        assert ("failed" in row) == (row["GLOO_SOCKET_IFNAME"] == "nosuch0") != bool(row["windows"])
        before = rows[number - 1]["launch"] if number else -1
        assert row["launch"] in (before, before + 1)
        assert (row["launch_s"] > 0) == (row["launch"] > before)
        seen.setdefault(tuple(row[name] for name in NAMES), set()).add(row["launch"])
    # Three values of the bucket in both environments that work; the third is left after two.
    worked = {values: launches for values, launches in seen.items() if values[1] is None}
    assert len(worked) == 6 and len(seen) == 8
    assert len(worked[None, None, None]) == 6
    assert next(iter(seen)) == (None, None, None), "whatever the time allows, it is there"
    assert sum(len(launches) >= 2 for launches in worked.values()) == 3
    places = {row["launch"]: (row["GLOO_INERT"], row["GLOO_SOCKET_IFNAME"]) for row in rows}
    assert all(places[row["launch"]] == tuple(row[n] for n in NAMES[:2]) for row in rows)
    assert out.startswith("points 8, environments 3, "), out
    assert "2 of the measurements failed" in out and "fewer repeats" not in out, out
    assert "3 configurations, 3 of them in 2 or more" in out, out


@pytest.mark.ranks
def test_an_interrupted_recording_keeps_its_rows_and_leaves_no_rank(cli: Cli) -> None:
    process = begin(cli, "--minutes", "5")
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if (cli.folder / "rows.jsonl").exists() and len(rows_of(cli)) >= 2:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    cli.assert_nothing_left()
    assert len(rows_of(cli)) >= 2 and "what was measured is in the file" in err, err
    assert ", environments 1, " in out, out
