"""Whole searches on two gloo ranks whose right answer is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from running import Cli

pytestmark = pytest.mark.ranks

NOTHING = """
version: 1
parameters:
  GLOO_INERT_A: {target: env, choices: [null, 1, 2], default: null}
  gradient_as_bucket_view: {target: ddp, choices: [false, true], default: false}
  bucket_cap_mb: {target: ddp, choices: [null, 5, 25, 50], default: null}
"""
ONE_OF_EACH = """
version: 1
parameters:
  GLOO_SLOW: {target: env, choices: [null, 1], default: null}
  num_workers: {target: loader, choices: [0, 1], default: 0}
"""
Run = Callable[[str, str, int, int], "tuple[Cli, dict[str, Any]]"]


@pytest.fixture
def searched(tmp_path: Path, cache: Path) -> Run:
    """The result of a search over that space, as JSON, and where it ran."""

    def run(space: str, data: str, seed: int, limit: int) -> tuple[Cli, dict[str, Any]]:
        command = Cli(tmp_path, cache)
        (tmp_path / "space.yaml").write_text(space)
        done = command.run(
            *("search", "--model", "verdictjobs:sleeper", "--data", data, "--device", "cpu"),
            *("--batch-size", "2", "--num-workers", "0", "--space", "space.yaml", "--trials", "4"),
            *("--confirm-launches", str(limit)),
            *("--measure-seconds", "0.3", "--study", f"s{seed}", "--seed", str(seed), "--json"),
        )
        assert done.returncode == 0, done.stderr
        command.assert_nothing_left()
        return command, json.loads(done.stdout)

    return run


def exports(command: Cli, study: str) -> list[str]:
    lines = (command.study(study) / "best.env").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def kept_defaults(searched: Run, seed: int, limit: int = 12) -> bool:
    """Whether the search ended with "keep the defaults"; it must never end with FASTER."""
    command, found = searched(NOTHING, "synthetic", seed, limit)
    best = yaml.safe_load((command.study(f"s{seed}") / "best.yaml").read_text())
    assert (found["verdict"] or {}).get("word") != "FASTER", found["verdict_line"]
    assert exports(command, f"s{seed}") == [] and best["ddp"].get("bucket_cap_mb") is None
    kept = found["verdict_line"].endswith("eep the defaults")
    assert kept or found["verdict"]["word"] == "INCONCLUSIVE", found["verdict_line"]
    return bool(kept)


@pytest.mark.slow
def test_a_space_that_does_nothing_never_wins(searched: Run) -> None:
    kept_defaults(searched, 0, limit=6)


@pytest.mark.slow
def test_ten_searches_of_nothing_keep_the_defaults(searched: Run) -> None:
    assert sum(kept_defaults(searched, seed) for seed in range(10)) >= 9


def only_what_pays(searched: Run, seed: int) -> None:
    command, found = searched(ONE_OF_EACH, "verdictjobs:slow_data", seed, 6)
    best = yaml.safe_load((command.study(f"s{seed}") / "best.yaml").read_text())
    assert found["verdict"]["word"] == "FASTER", found["verdict_line"]
    assert best["loader"]["num_workers"] == 1
    assert exports(command, f"s{seed}") == []  # neither what slows nor what does nothing


@pytest.mark.slow  # test_retune.py has a search that ends in FASTER too
def test_what_speeds_is_found_and_what_slows_is_not(searched: Run) -> None:
    only_what_pays(searched, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 10))
def test_what_speeds_is_found_every_time(searched: Run, seed: int) -> None:
    only_what_pays(searched, seed)


@pytest.mark.slow
def test_compare_knows_the_slower_of_two(tmp_path: Path, cache: Path) -> None:
    command = Cli(tmp_path, cache)
    (tmp_path / "slow.env").write_text("export GLOO_SLOW=1\n")
    job = (
        *("--model", "verdictjobs:sleeper", "--data", "synthetic", "--device", "cpu"),
        *("--batch-size", "2", "--measure-seconds", "0.3", "--launches", "6"),
    )
    done = command.run("compare", "defaults", "slow.env", *job, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["word"] == "SLOWER"
    assert found["low"] < 12 / 18 * 1.2 and found["high"] < 1  # 12 ms and 6 more, of a longer step
    assert [
        len([r for r in found["launched"] if r["side"] == s]) for s in (found["a"], found["b"])
    ] == [6, 6]
    command.assert_nothing_left()
