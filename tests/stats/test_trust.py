"""The benchmark of the verdict: its bars hold for what it simulates, wrong rules do not reach them,
and what is no landscape is refused.
"""

from __future__ import annotations

import importlib.util
import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nccltune.stats.ratios import ratio_interval
from nccltune.stats.verdict import Block, Verdict, settle

BENCHMARK = Path(__file__).parents[2] / "benchmarks/trust.py"


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("trust", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["trust"] = module
    spec.loader.exec_module(module)
    return module


trust = _load()
LAWS = {law.name: law for law in trust.LAWS}
NORMAL = LAWS["spread 1 %"]

Measure = Callable[[int], Block | None]
Noise = Sequence[Sequence[float]]


@pytest.mark.parametrize("name", ["spread 1 %", "recorded"])
def test_the_verdict_keeps_its_bars(name: str) -> None:
    law = LAWS.get(name) or trust.Law(name, recorded=trust.launch_factors(trust.LANDSCAPE))
    row = trust.examine(law)
    assert row.runs == 2000
    assert trust.missed([row]) == []


def test_a_mode_that_only_the_candidate_has_is_judged_by_false_verdicts() -> None:
    row = trust.examine(LAWS["candidate alone bimodal"])
    assert row.false_verdicts <= 0.05
    assert (row.coverage_same, row.coverage_gain, row.power) == (None, None, None)
    assert trust.missed([replace(row, false_verdicts=0.051)]) != []


def ratios(measure: Measure, count: int) -> list[float]:
    blocks = [measure(number) for number in range(count)]
    return [block[1] / block[0] for block in blocks if block is not None]


def answer(word: Any, values: Sequence[float]) -> Verdict:
    found = ratio_interval(values)
    return Verdict(word, found.ratio, found.low, found.high, 0.01, len(values))


def the_higher_mean_wins(measure: Measure, noise: Noise, limit: int) -> Verdict:
    values = ratios(measure, limit)
    return answer("FASTER" if statistics.fmean(values) > 1 else "SLOWER", values)


def windows_count_as_launches(measure: Measure, noise: Noise, limit: int) -> Verdict:
    """As if each of four windows of a launch, which are alike, were a measurement of its own."""
    found = answer("INCONCLUSIVE", 4 * ratios(measure, limit))
    assert found.low is not None and found.high is not None
    if found.low > 1:
        return replace(found, word="FASTER")
    return replace(found, word="SLOWER") if found.high < 1 else found


def a_look_after_every_block(measure: Measure, noise: Noise, limit: int) -> Verdict:
    values: list[float] = []
    for number in range(limit):
        block = measure(number)
        assert block is not None
        values.append(block[1] / block[0])
        found = ratio_interval(values)
        if len(values) > 2 and not found.low <= 1 <= found.high:
            return answer("FASTER" if found.low > 1 else "SLOWER", values)
    return answer("WITHIN_NOISE", values)


def nothing_is_ever_known(measure: Measure, noise: Noise, limit: int) -> Verdict:
    return Verdict("INCONCLUSIVE", 1.0, 0.5, 2.0, 0.01, limit)


def the_best_launch_is_printed(measure: Measure, noise: Noise, limit: int) -> Verdict:
    seen: list[float] = []

    def watched(number: int) -> Block | None:
        block = measure(number)
        if block is not None:
            seen.append(block[1] / block[0])
        return block

    return replace(settle(watched, noise, limit), ratio=max(seen, default=1.0))


def an_interval_half_as_wide(measure: Measure, noise: Noise, limit: int) -> Verdict:
    found = settle(measure, noise, limit)
    assert found.ratio is not None and found.low is not None and found.high is not None
    low, high = math.sqrt(found.ratio * found.low), math.sqrt(found.ratio * found.high)
    return replace(found, low=low, high=high)


@pytest.mark.parametrize(
    ("rule", "complaints"),
    [
        (the_higher_mean_wins, ["gave a difference"]),
        (windows_count_as_launches, ["gave a difference", "covered the true ratio"]),
        (a_look_after_every_block, ["gave a difference", "covered the true ratio"]),
        (nothing_is_ever_known, ["was found in 0.0%"]),
        (the_best_launch_is_printed, ["the gain printed is"]),
        (an_interval_half_as_wide, ["covered the true ratio"]),
    ],
)
def test_a_wrong_rule_misses_the_bars(rule: Any, complaints: list[str]) -> None:
    said = "\n".join(trust.missed([trust.examine(NORMAL, 200, rule)]))
    for complaint in complaints:
        assert complaint in said


def test_a_smallest_gain_that_is_too_large_misses_the_bars() -> None:
    wide = replace(NORMAL, spread=0.013)
    assert "the smallest gain is" in "\n".join(trust.missed([trust.examine(wide, 100)]))


def test_without_noise_everything_is_known_exactly() -> None:
    found = trust.simulate(trust.Law("still"), 2.0, random.Random(1))
    assert (found.stated, found.true) == (0.005, 1.01)
    assert (found.verdict.word, found.verdict.launches) == ("FASTER", 6)
    assert found.verdict.ratio == pytest.approx(1.01)
    assert trust.simulate(trust.Law("still"), 0.0, random.Random(1)).verdict.word == "WITHIN_NOISE"


def test_launches_follow_one_another_in_time() -> None:
    """With a drift alone the launches are in order: 6 of the baseline, then one of each side, of
    which now this, now that one comes first.
    """
    law = trust.Law("drift", slope=0.001)
    places: list[tuple[int, int]] = []

    def place(speed: float) -> int:
        return round(abs(math.log(speed / trust.SPEED)) / 0.001)

    def watch(measure: Measure, noise: Noise, limit: int) -> Verdict:
        assert [place(speed) for speed in noise[0]] == list(range(6))
        for number in range(limit):
            block = measure(number)
            assert block is not None
            places.append((place(block[0]), place(block[1])))
        return nothing_is_ever_known(measure, noise, limit)

    trust.simulate(law, 0.0, random.Random(3), watch)
    assert [sorted(both) for both in places] == [[n, n + 1] for n in range(6, 30, 2)]
    assert {ours < theirs for theirs, ours in places} == {True, False}


def logs(law: Any, count: int = 20_000) -> list[float]:
    return sorted(math.log(factor) for factor in law.launches(random.Random(4), count))


def test_laws_are_what_they_are_called() -> None:
    assert statistics.stdev(logs(NORMAL)) == pytest.approx(0.01, rel=0.03)
    modes = logs(LAWS["bimodal, half 3 % slower"])
    assert statistics.fmean(value < -0.015 for value in modes) == pytest.approx(0.5, abs=0.02)
    assert statistics.stdev(modes) == pytest.approx(math.hypot(0.005, 0.0305 / 2), rel=0.03)
    outliers = logs(LAWS["1 % outliers"])
    assert statistics.fmean(value < -0.2 for value in outliers) == pytest.approx(0.01, abs=0.003)
    # Student's t with 3 degrees of freedom: quartile 0.765, 97.5 % point 3.182, variance 3.
    tails = logs(LAWS["heavy tails"])
    assert tails[15_000] == pytest.approx(0.01 * 0.765 / math.sqrt(3), rel=0.05)
    assert tails[19_500] == pytest.approx(0.01 * 3.182 / math.sqrt(3), rel=0.1)


def test_a_walk_goes_further_the_longer_it_is() -> None:
    law, draw = trust.Law("walk", step=0.005), random.Random(5)
    ends = [math.log(law.launches(draw, 25)[-1]) for _ in range(2000)]
    assert statistics.stdev(ends) == pytest.approx(0.025, rel=0.08)


def test_a_mode_of_the_candidate_keeps_its_mean() -> None:
    law, draw = LAWS["candidate alone bimodal"], random.Random(6)
    factors = [law.candidate(draw) for _ in range(20_000)]
    assert statistics.fmean(factors) == pytest.approx(1.0, abs=0.0005)
    assert max(factors) - min(factors) == pytest.approx(0.03 / 0.985)


def test_rows_are_the_same_each_time() -> None:
    assert trust.examine(NORMAL, 20) == trust.examine(NORMAL, 20)


def row(launch: int, windows: Any, **given: Any) -> str:
    plain = {"nsocks": None, "nthreads": None, "buffsize": None, "algo": "", "bucket_cap_mb": 25}
    return json.dumps({"launch": launch, "windows": windows, **plain, **given})


def written(folder: Path, *lines: str) -> Path:
    path = folder / "landscape.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_launch_factors_worked_out_by_hand(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        row(0, [90.0, 110.0]),  # means 100, 110 and 90: of 100
        row(1, [500.0], nsocks=4),  # not the default
        row(2, [110, 110]),
        row(3, [90.0, 90.0]),
        row(0, [300.0], algo="allreduce:tree"),  # means 300 and 100: of 200
        row(2, [100.0], algo="allreduce:tree"),
        row(3, [777.0], bucket_cap_mb=5),  # measured once
    )
    assert sorted(trust.launch_factors(path)) == pytest.approx([0.5, 0.9, 1.0, 1.1, 1.5])


def test_the_recorded_landscape_has_four_launches_of_ten_configurations() -> None:
    factors = trust.launch_factors(trust.LANDSCAPE)
    assert len(factors) == 40
    assert statistics.fmean(factors) == pytest.approx(1.0)
    assert statistics.stdev(factors) == pytest.approx(0.0421, abs=0.0001)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "is not repeated"),
        ([row(0, [1.0])], "is not repeated"),
        ([row(0, [1.0]), row(0, [1.0])], "is not repeated"),
        ([row(0, [1.0]), row(1, [1.0], bucket_cap_mb=5)], "is not repeated"),
        ([row(0, [1.0], nthreads=2), row(1, [1.0], nthreads=2)], "is not repeated"),
        ([row(0, [1.0]), row(1, [1.0])[:-9]], "line 2: not a row of a landscape"),
        ([row(0, [1.0]), "", row(1, [1.0])], "line 2: not a row of a landscape"),
        (["[1, 2]"], "line 1: not a row of a landscape"),
        (["\udcff"], "line 1: not a row of a landscape"),
        ([row(0, [1.0]), '{"launch": 1}'], "line 2: no nsocks"),
        ([row(0, [1.0]), row(1, [])], "line 2: windows must be rates above 0"),
        ([row(0, [1.0]), row(1, [1.0, 0.0])], "line 2: windows must be rates above 0"),
        ([row(0, [1.0]), row(1, [math.nan])], "line 2: windows must be rates above 0"),
        ([row(0, [1.0]), row(1, [None])], "line 2: windows must be rates above 0"),
        ([row(0, [1.0]), row(1, "123")], "line 2: windows must be rates above 0"),
        ([row(0, [1.0]).replace('"launch": 0', '"launch": "x"')], "line 1: launch must be"),
    ],
)
def test_what_is_no_landscape(tmp_path: Path, lines: list[str], complaint: str) -> None:
    path = tmp_path / "landscape.jsonl"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"))
    with pytest.raises(ValueError) as raised:
        trust.launch_factors(path)
    assert complaint in str(raised.value)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARK), *arguments], capture_output=True, text=True, timeout=120
    )


def test_the_command(tmp_path: Path) -> None:
    ran = command("--quick", "--runs", "20", "--json", "-")
    found = json.loads(ran.stdout)
    rows = found["rows"]
    assert {row["runs"] for row in rows} == {20}
    assert rows[-1]["law"] == "recorded: h200x2-socket-resnet50"
    assert found["false_verdict_rate_max"] == max(row["false_verdicts"] for row in rows)
    assert found["power_min"] == min(row["power"] for row in rows if row["power"] is not None)
    covered = [row[name] for row in rows for name in ("coverage_same", "coverage_gain")]
    assert found["coverage_min"] == min(value for value in covered if value is not None)
    promised = [row["promised_over_true"] for row in rows]
    assert found["promised_over_true_max"] == max(value for value in promised if value is not None)
    lines = ran.stderr.splitlines()
    assert [line.split("  ")[0] for line in lines[2 : 2 + len(rows)]] == [r["law"] for r in rows]
    assert lines[2 + len(rows) :] == found["missed"]
    assert found["missed"], "20 runs are too few to keep every bar"
    assert ran.returncode == 1
    path = tmp_path / "found.json"
    again = command("--quick", "--runs", "20", "--json", str(path))
    assert (again.stdout, json.loads(path.read_text())["rows"]) == ("", rows)


def test_the_command_refuses_what_is_no_landscape(tmp_path: Path) -> None:
    ran = command("--landscape", str(written(tmp_path, row(0, [1.0]))))
    assert ran.returncode == 2
    assert ran.stderr.startswith("trust.py: ") and "is not repeated" in ran.stderr
    ran = command("--landscape", str(tmp_path / "missing.jsonl"))
    assert ran.returncode == 2 and "missing.jsonl" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
def test_the_quick_run_keeps_every_bar() -> None:
    ran = command("--quick", "--json", "-")
    assert (ran.returncode, json.loads(ran.stdout)["missed"]) == (0, [])


def test_where_each_bar_is() -> None:
    kept = trust.Row("a", 20, 0.01, 0.02, 0.05, 0.9, 0.93, 0.93, 0.9, 1.1, 9.0, 7.0)
    assert trust.missed([kept]) == []
    for name, value in (
        ("false_verdicts", 0.051),
        ("coverage_same", 0.929),
        ("coverage_gain", 0.929),
        ("power", 0.899),
        ("promised_over_true", 1.101),
    ):
        assert len(trust.missed([replace(kept, **{name: value})])) == 1
    for law, most in (("spread 1 %", 0.025), ("spread 5 %", 0.12)):
        assert trust.missed([replace(kept, law=law, smallest_gain=most)]) == []
        assert len(trust.missed([replace(kept, law=law, smallest_gain=most + 0.001)])) == 1
