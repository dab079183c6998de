"""Two real tuners on one study, in a journal file and in a real PostgreSQL server."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from nccltune.study.records import AGAIN
from nccltune.study.shared_storage import open_storage
from postgres import PASSWORD, QUOTED, Postgres
from running import Cli

pytestmark = pytest.mark.ranks

SPACE = """
version: 1
parameters:
  bucket_cap_mb: {target: ddp, choices: [null, 1, 2, 5, 10, 25], default: null}
  gradient_as_bucket_view: {target: ddp, choices: [false, true], default: false}
"""
TRIALS = 10
# The command, with a tuner held for lost sooner than after a minute.
IMPATIENT = """
import sys
from nccltune.study import heartbeat
heartbeat.BEAT_SECONDS, heartbeat.LOST_SECONDS = 0.5, 15.0
from nccltune.cli import main
sys.argv[0] = "nccltune"
main()
"""


@pytest.fixture(params=[pytest.param("journal", marks=pytest.mark.slow), "postgresql"])
def storage(request: pytest.FixtureRequest, cli: Cli) -> str:
    if request.param == "journal":
        return str(cli.folder / "shared.journal")
    server: Postgres = request.getfixturevalue("postgres")
    return server.database()


def start(
    cli: Cli, storage: str, *more: str, model: str = "tiny", trials: int = TRIALS
) -> subprocess.Popen[str]:
    (cli.folder / "space.yaml").write_text(SPACE)
    options = (
        *("--model", f"smalljobs:{model}", "--device", "cpu", "--nproc-per-node", "1"),
        *("--batch-size", "4", "--image-size", "32", "--data", "synthetic"),
        *("--space", "space.yaml", "--study", "s", "--storage", storage),
        *("--trials", str(trials)),
    )
    return subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, "search", *options, *more],
        cwd=cli.folder,
        env={**cli.env, "HELD_UNTIL": str(cli.folder / "both")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@functools.cache
def opened(storage: str) -> BaseStorage:
    """Once a test: each database has connections of its own."""
    return open_storage(storage).storage


def shared(storage: str) -> list[FrozenTrial]:
    """The trials in the storage, as Optuna tells them; none before there is a study."""
    try:
        return optuna.load_study(study_name="s", storage=opened(storage)).trials
    except KeyError:
        return []


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "measurements.jsonl").read_text().splitlines()]


def test_one_is_killed_in_mid_trial_and_loses_no_other(cli: Cli, storage: str) -> None:
    one, other = start(cli, storage, "--confirm-launches", "0", model="held"), None
    try:
        until = time.monotonic() + 300
        while not shared(storage) and one.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
        other = start(cli, storage, "--confirm-launches", "0", model="held")
        # The first waits in its baseline until the other is there, however long that takes.
        while not (cli.study("s.2") / "tuner").exists() and other.poll() is None:
            time.sleep(0.05)
        (cli.folder / "both").touch()
        killed = killed_in_mid_trial(other, cli.study("s.2"), storage, until)
        out, err = one.communicate(timeout=300)
    finally:
        for process in (one, other):
            if process is not None:
                process.kill()
                process.communicate()
    assert one.returncode == 0, err
    trials = cli.trials("s")
    assert len(trials) == TRIALS and trials[0]["number"] == 0
    assert len({trial["number"] for trial in trials}) == TRIALS
    new = [trial for trial in trials if trial["origin"] != AGAIN]  # not repeated on purpose
    assert len({json.dumps(trial["parameters"], sort_keys=True) for trial in new}) == len(new)
    # The trial under way was lost, and what the other had finished before is kept.
    told = shared(storage)
    states = Counter(trial.state for trial in told)
    assert states[TrialState.COMPLETE] == TRIALS and states[TrialState.RUNNING] == 0
    lost = [t for t in told if t.user_attrs.get("given up") == "its tuner was lost"]
    assert [trial.number for trial in lost] == [killed.number]
    own = (cli.study("s.2") / "tuner").read_text().strip()
    theirs = [t for t in told if t.user_attrs["tuner"] == own and t.state == TrialState.COMPLETE]
    brought = [record for record in records(cli.study("s")) if record["tuner"] == own]
    assert {record["trial"] for record in brought} == {trial.number for trial in theirs}
    assert f"by tuner {own}" in err or not theirs
    cli.assert_nothing_left()
    assert_no_password(cli, out + err)


def killed_in_mid_trial(
    process: subprocess.Popen[str], folder: Path, storage: str, until: float
) -> FrozenTrial:
    """Kills that tuner once it has a trial under way that is not its first one. It is stopped
    before, so that the trial cannot come to its end meanwhile.
    """
    while process.poll() is None and time.monotonic() < until:
        name = (folder / "tuner").read_text().strip() if (folder / "tuner").exists() else None
        own = [trial for trial in shared(storage) if trial.user_attrs["tuner"] == name]
        running = [trial for trial in own if trial.state == TrialState.RUNNING]
        if running and any(trial.state == TrialState.COMPLETE for trial in own):
            os.kill(process.pid, signal.SIGSTOP)
            (left,) = [t for t in shared(storage) if t.number == running[0].number]
            if left.state == TrialState.RUNNING:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                return left
            os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.05)
    process.kill()
    pytest.fail(f"it began no second trial: {process.communicate()}")


def assert_no_password(cli: Cli, text: str) -> None:
    """Nowhere in what was printed, recorded or logged."""
    files = [file for file in (cli.folder / "studies").rglob("*") if file.is_file()]
    assert files
    for secret in (PASSWORD, QUOTED):
        assert secret not in text
        assert [file for file in files if secret.encode() in file.read_bytes()] == []


@pytest.mark.slow
def test_one_confirms_and_the_other_takes_it_over(cli: Cli, tmp_path: Path) -> None:
    storage = str(tmp_path / "shared.journal")
    confirm = ("--confirm-launches", "6", "--search-anyway", "--measure-seconds", "0.3")
    both = [start(cli, storage, *confirm, trials=4) for _ in range(2)]
    ended = []
    try:
        ended = [process.communicate(timeout=500) for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], ended
    errors = [err for _, err in ended]
    left = [err for err in errors if "confirms the result: `nccltune show" in err]
    confirmed = [err for err in errors if "confirm    " in err]
    assert len(confirmed) == 1 and len(left) + len([e for e in errors if "Confirmed by" in e]) == 1
    # Whoever comes again, or comes late, has the same result and measures nothing.
    by_confirmer = {
        name: (cli.study(name) / "best.yaml").read_text()
        for name in ("s", "s.2")
        if any(record["purpose"] == "confirm" for record in records(cli.study(name)))
    }
    (name,) = by_confirmer
    late = cli.study("s.2" if name == "s" else "s")
    before = len(records(late))
    again = start(cli, storage, *confirm, "--studies-dir", str(tmp_path / "elsewhere"), trials=4)
    out, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert f"(study {name}): " in err and "Confirmed by tuner" in out
    found = tmp_path / "elsewhere" / "s"
    assert (found / "best.yaml").read_text() == by_confirmer[name]
    assert {record["purpose"] for record in records(found)} == {"search"}
    assert len(records(late)) == before
    cli.assert_nothing_left()
