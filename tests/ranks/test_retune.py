"""`nccltune verify`, `retune` and `show --history`, with real ranks and a machine that changes: a
variable of the site, which the job obeys, stands for other hardware.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from running import Cli

pytestmark = pytest.mark.ranks

SPACE = """
version: 1
parameters:
  GLOO_QUICK: {target: env, choices: [null, 1], default: null}
  GLOO_OTHER: {target: env, choices: [null, 1], default: null}
"""
SEARCH = (
    *("search", "--model", "verdictjobs:switched", "--data", "synthetic", "--device", "cpu"),
    *("--batch-size", "2", "--space", "space.yaml", "--trials", "4", "--search-anyway"),
    *("--confirm-launches", "6", "--measure-seconds", "0.3", "--study", "s"),
)
MOVED = {"GLOO_WORLD": "2"}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Cli]:
    """A study whose result is GLOO_QUICK=1."""
    command = Cli(tmp_path_factory.mktemp("first"), cache)
    (command.folder / "space.yaml").write_text(SPACE)
    done = command.run(*SEARCH)
    assert done.returncode == 0, done.stderr
    assert exports(command.study("s")) == ["export GLOO_QUICK=1"]
    yield command


@pytest.fixture
def retuned(first: Cli, cli: Cli) -> Cli:
    """A copy of it."""
    shutil.copytree(first.folder, cli.folder, dirs_exist_ok=True)
    return cli


@pytest.fixture(scope="module")
def unconfirmed(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Cli:
    """The same study in a few seconds: its result is not confirmed."""
    command = Cli(tmp_path_factory.mktemp("unconfirmed"), cache)
    (command.folder / "space.yaml").write_text(SPACE)
    done = command.run(*SEARCH, "--confirm-launches", "0", "--trials", "2")
    assert done.returncode == 0, done.stderr
    return command


@pytest.fixture
def begun(unconfirmed: Cli, cli: Cli) -> Cli:
    """A copy of that."""
    shutil.copytree(unconfirmed.folder, cli.folder, dirs_exist_ok=True)
    return cli


def exports(folder: Path) -> list[str]:
    lines = (folder / "best.env").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def altered(command: Cli, **parts: Any) -> None:
    """The study as if it had been measured on another machine."""
    for name in ("study.yaml", "best.yaml"):
        file = command.study("s") / name
        found = yaml.safe_load(file.read_text())
        found["fingerprint"].update(parts)
        file.write_text(yaml.safe_dump(found))


def verified(command: Cli, *options: str, **env: str) -> tuple[int, dict[str, Any]]:
    done = command.run("verify", "s", "--json", *options, **env)
    assert done.stdout, done.stderr
    command.assert_nothing_left()
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_a_new_machine_gets_a_new_generation_that_holds(retuned: Cli) -> None:
    study = retuned.study("s")
    before = (study / "best.env").read_text()
    check = retuned.run("retune", "s", "--check", "--verify-budget", "1s", **MOVED)
    assert check.returncode == 3 and "site.GLOO_WORLD changed" in check.stdout, check.stderr
    assert (study / "best.env").read_text() == before and not (study / "history.jsonl").exists()

    done = retuned.run("retune", "s", **MOVED)
    assert done.returncode == 0, done.stderr
    assert "tried first: best of generation 1" in done.stderr
    assert "generation 2 holds from now on" in done.stdout
    assert exports(study) == ["export GLOO_OTHER=1"]
    assert (study / "best.env").read_text() == (study / "generations/2/best.env").read_text()
    retuned.assert_nothing_left()

    again = retuned.run("search", *SEARCH[1:])
    assert again.returncode == 2 and "its files are those of generation 2" in again.stderr
    shown = retuned.run("show", "s", "--history")
    assert "generation 2 (holds)" in shown.stdout and "GLOO_WORLD: not set before" in shown.stdout
    entries = json.loads(retuned.run("show", "s", "--history", "--json").stdout)
    assert [(e["what"], e["generation"]) for e in entries] == [
        ("search", 1), ("check", 1), ("search", 2)
    ]  # fmt: skip
    assert entries[2]["ratio"] > 1.3 and entries[1]["ratio"] < 0.9
    assert [d["name"] for d in entries[1]["changed"]] == ["site.GLOO_WORLD"]


def test_what_was_altered_is_told_and_a_search_is_due(begun: Cli) -> None:
    altered(begun, driver="570.1", torch="2.9.0", gpus=["NVIDIA H200"] * 8)
    code, found = verified(begun, "--time-budget", "1s")
    assert (code, found["status"]) == (3, "cannot_tell")
    assert [d["name"] for d in found["differences"]] == ["gpus", "driver", "torch"]
    told = begun.run("retune", "s", "--check", "--verify-budget", "1s")
    assert told.returncode == 3
    assert "a new search is due: gpus, driver, torch changed since the last search" in told.stdout
    assert "driver: 570.1 where it was measured, none here" in told.stdout


def test_a_file_from_elsewhere_starts_no_code_that_only_it_names(begun: Cli) -> None:
    file = begun.folder / "given.yaml"
    shutil.copy(begun.study("s") / "best.yaml", file)
    done = begun.run("verify", "given.yaml")
    assert done.returncode == 2 and "--model verdictjobs:switched" in done.stderr


def test_two_at_once(begun: Cli) -> None:
    before = exports(begun.study("s"))
    one = begun.start("retune", "s", **MOVED)
    lock = begun.study("s") / "lock"
    try:
        while one.poll() is None and f"process {one.pid}" not in lock.read_text():
            time.sleep(0.05)
        other = begun.run("retune", "s", **MOVED)
        assert other.returncode == 2, other.stderr
        assert f"another nccltune works on this study (process {one.pid} of user" in other.stderr
    finally:
        one.send_signal(signal.SIGINT)
        one.communicate(timeout=120)
    assert one.returncode == 130
    assert exports(begun.study("s")) == before


@pytest.mark.slow
def test_harm_is_told_by_verify(retuned: Cli) -> None:
    code, found = verified(retuned, **MOVED)
    assert (code, found["status"]) == (3, "harmful")
    assert [d["name"] for d in found["differences"]] == ["site.GLOO_WORLD"]


@pytest.mark.slow
def test_while_it_holds_nothing_is_searched(retuned: Cli) -> None:
    code, found = verified(retuned)
    assert (code, found["status"], found["differences"]) == (0, "still_good", [])
    assert found["verdict"]["word"] == "FASTER"
    done = retuned.run("retune", "s")
    assert done.returncode == 0, done.stderr
    assert "nothing that matters has changed" in done.stdout
    assert not (retuned.study("s") / "generations").exists()
    entries = json.loads(retuned.run("show", "s", "--history", "--json").stdout)
    assert [entry["what"] for entry in entries] == ["search", "check"]


@pytest.mark.slow
def test_killed_at_any_time_it_leaves_a_whole_file_and_goes_on(retuned: Cli) -> None:
    study = retuned.study("s")
    old = (study / "best.env").read_text()
    for said in ("comparing it with", "generation 2 ", "measuring the baseline", "confirm ",
                 "comparing the new settings"):  # fmt: skip
        process = retuned.start("retune", "s", "--verify-budget", "1s", **MOVED)
        assert process.stderr is not None
        seen = next((line for line in process.stderr if line.startswith(said)), None)
        assert seen is not None, said
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert (study / "best.env").read_text() == old
    done = retuned.run("retune", "s", "--verify-budget", "1s", **MOVED)
    assert done.returncode == 0, done.stderr
    assert exports(study) == ["export GLOO_OTHER=1"]
    retuned.assert_nothing_left()
