"""`nccltune run --watch` with real ranks: what is said of a job, and that nothing else changes."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nccltune.output.best import Best
from running import Cli

pytestmark = pytest.mark.ranks

SCRIPTS = Path(__file__).parents[1] / "scripts"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
REPORT = re.compile(
    r"nccltune: step (?P<step>\d+): (?P<speed>[\d.]+) samples/s of 2 ranks"
    r"(?:, (?P<percent>\d+)% of the (?P<promised>[\d.]+) promised \([\d.]+ .. [\d.]+\))?"
    r"(?:; communication that computing does not hide: (?P<exposed>\d+)% of a step)?"
    r"(?P<unjudged> \(.*, not judged\))?"
)


def promising(script: str, speed: float) -> Best:
    """A file that a study of this script might have written, with these samples/s."""
    launches = {"without": [speed / 2] * 6, "with": [speed] * 6}
    return Best(
        env={}, ddp={}, loader={}, batch_size=16,
        workload={"model": script, "data": "script", "nproc_per_node": 2},
        verdict={"word": "FASTER", "speeds": launches, "files": None, "threshold": 0.01},
        machine={}, provenance={"study": 'a "study"'},
    )  # fmt: skip


def watch(
    cli: Cli, best: Best | str, script: str, *arguments: str, options: Sequence[str] = ()
) -> CompletedProcess[str]:
    """The script on two ranks, with a report after each 5 steps."""
    name = best if isinstance(best, str) else "best.yaml"
    if isinstance(best, Best):
        (cli.folder / name).write_text(best.to_yaml())
    command = [*TORCHRUN, str(SCRIPTS / script), *arguments]
    done = cli.run("run", name, "--watch-every", "5", *options, "--", *command)
    cli.assert_nothing_left()
    return done


def lines(done: CompletedProcess[str], kind: str = "") -> list[str]:
    """What nccltune said: reports, or its notes or warnings."""
    begin = f"nccltune: {kind or 'step'}"
    return [line for line in done.stderr.splitlines() if line.startswith(begin)]


def reports(done: CompletedProcess[str]) -> list[Mapping[str, Any]]:
    found = [REPORT.fullmatch(line) for line in lines(done)]
    assert None not in found, lines(done)
    return [match.groupdict() for match in found if match is not None]


def metrics(file: Path) -> dict[str, float]:
    """By name; all have the same labels."""
    families = list(text_string_to_metric_families(file.read_text()))
    samples = [sample for family in families for sample in family.samples]
    assert {tuple(s.labels.items()) for s in samples} == {
        (("study", 'a "study"'), ("model", "short.py"))
    }
    return {sample.name: sample.value for sample in samples}


def test_a_promise_that_is_kept(cli: Cli) -> None:
    file = cli.folder / "job.prom"
    best = promising("short.py", 1.0)
    done = watch(
        cli, best, "short.py", "--leave", "--steps", "33", options=["--metrics", "job.prom"]
    )
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"rank (\d) ends after 33 steps", done.stdout)) == ["0", "1"]
    found = reports(done)
    assert [int(each["step"]) for each in found] == [5, 10, 15, 20, 25, 30]
    assert found[0]["unjudged"] == " (the first steps, not judged)"
    assert not any(each["unjudged"] for each in found[1:])
    assert all(each["exposed"] is not None for each in found)
    assert {each["promised"] for each in found} == {"1.00"}
    # How much of a step communication is depends on who else is on these cores.
    assert not [line for line in lines(done, "warning") if "slower than promised" in line]
    assert lines(done, "note") == []
    told = metrics(file)
    assert told.pop("nccltune_last_report_timestamp_seconds") > 1.6e9
    assert told["nccltune_samples_per_second"] == pytest.approx(float(found[-1]["speed"]), rel=0.01)
    assert 0 <= told["nccltune_exposed_communication_ratio"] <= 1
    assert told["nccltune_promised_samples_per_second_low"] == pytest.approx(1 / 1.03)
    assert told["nccltune_promised_samples_per_second_high"] == pytest.approx(1.03)
    assert (told["nccltune_steps_total"], told["nccltune_below_promise"]) == (30, 0)


def test_a_promise_that_is_not_kept(cli: Cli) -> None:
    """Nor can the metrics be written, nor is communication hidden: the last rank is slow."""
    best = promising("unequal.py", 1e9)
    options = ["--metrics", "no/such/job.prom"]
    done = watch(cli, best, "unequal.py", "--steps", "35", options=options)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    found = reports(done)
    assert [int(each["step"]) for each in found] == [5, 10, 15, 20, 25, 30, 35]
    assert all(int(each["exposed"]) > 30 for each in found)
    slow, exposed = lines(done, "warning")
    assert slow.startswith("nccltune: warning: slower than promised in 3 reports in a row: ")
    assert "at least 970873786 were expected. `nccltune verify best.yaml` measures" in slow
    assert "warning: communication that computing does not hide is" in exposed
    said = done.stderr.splitlines()
    after = {line.split(":")[1] for line in said[: said.index(slow)] if "step" in line}
    assert after == {" step 5", " step 10", " step 15", " step 20"}  # the first is not judged
    missing, note = lines(done, "note")
    assert "no/such/job.prom: no folder " in missing  # told before the job begins
    folder = cli.folder / "no/such/job.prom"
    assert note == (
        f"nccltune: note: {folder} cannot be written: No such file or directory; the job goes on"
    )


EVIL = """
import sys
from collections.abc import Mapping
import torch
from torch.utils.data import DataLoader

class Batch(Mapping):
    def __init__(self, x): self.x = x
    def __getitem__(self, name): return self.x
    def __iter__(self): return iter(["x"])
    def __len__(self): return 1
    def items(self): raise RuntimeError("nobody but the\\nscript may look")
    values = items

parameter = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for batch in DataLoader(torch.ones(64, 4), 2, collate_fn=lambda rows: Batch(torch.stack(rows))):
    (batch["x"] * parameter).sum().backward()
    optimizer.step()
print(parameter.sum().item() < 0, sys.argv)
sys.exit(3)
"""


def test_a_mistake_of_ours_never_reaches_the_script(cli: Cli) -> None:
    (cli.folder / "evil.py").write_text(EVIL)
    command = [sys.executable, "evil.py", "a b"]
    done = cli.run("run", "defaults", "--watch-every", "5", "--", *command)
    assert (done.returncode, done.stdout) == (3, "True ['evil.py', 'a b']\n")
    assert done.stderr.splitlines() == [
        "nccltune: note: --watch: defaults promises no samples/s: it is no best.yaml; speeds are "
        "told alone",
        "nccltune: nothing to set: the defaults are kept",
        "nccltune: watching has ended, the job goes on: RuntimeError: nobody but the script may "
        "look",
    ]


@pytest.mark.slow
def test_reports_with_a_validation_or_a_new_epoch_in_them_are_not_judged(cli: Cli) -> None:
    """It validates after every 20 steps, which shows in the steps after."""
    done = watch(cli, promising("validates.py", 1e9), "validates.py", "--steps", "60")
    assert done.returncode == 0, done.stderr
    unjudged = {int(each["step"]) for each in reports(done) if each["unjudged"]}
    assert unjudged == {5, 25, 45}
    slow = [line for line in lines(done, "warning") if "slower" in line]
    assert len(slow) == 1
    assert (
        done.stderr.index("step 20:") < done.stderr.index(slow[0]) < done.stderr.index("step 25:")
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("gan.py", "the script has 2 modules in DistributedDataParallel"),
        ("fsdp2.py", "the script has no DistributedDataParallel"),
    ],
)
def test_where_communication_is_not_known_speed_is_watched_alone(
    cli: Cli, script: str, why: str
) -> None:
    done = watch(cli, promising(script, 1e9), script, "--steps", "40")
    assert done.returncode == 0, done.stderr
    (note,) = lines(done, "note")
    told = "nccltune: note: only speed is watched: communication is not known: "
    assert note.startswith(told + why)
    assert {each["exposed"] for each in reports(done)} == {None}
    assert [line for line in lines(done, "warning") if "slower than promised" in line]


@pytest.mark.slow
@pytest.mark.parametrize("script", ["accumulates.py", "compiled.py", "exact.py"])
def test_other_ways_to_train(cli: Cli, script: str) -> None:
    done = watch(cli, promising(script, 1.0), script, "--steps", "40")
    assert done.returncode == 0, done.stderr
    found = reports(done)
    assert [int(each["step"]) for each in found] == list(range(5, 45, 5))
    assert found[-1]["exposed"] is not None and found[-1]["promised"] == "1.00"
    trained = re.search(r"train: ([\d.]+) samples/s", done.stdout)
    assert trained is not None
    speeds = sorted(float(each["speed"]) for each in found[2:])
    assert speeds[0] < 1.5 * float(trained[1]) and speeds[-1] > float(trained[1]) / 1.5


@pytest.mark.slow
def test_another_job_than_the_one_that_was_measured_is_promised_nothing(cli: Cli) -> None:
    other = promising("train.py", 1e9)
    here = promising("short.py", 1e9)
    for best, why in [
        (other, "it was measured with train.py, and this is short.py"),
        (replace(here, workload={**here.workload, "nproc_per_node": 4}),
         "it was measured with 4 ranks, and these are 2"),
        (replace(here, batch_size=64),
         "it was measured with 64 samples of a rank in a step, and this job has 16"),
    ]:  # fmt: skip
        done = watch(cli, best, "short.py", "--leave", "--steps", "30")
        assert done.returncode == 0, done.stderr
        assert lines(done, "note") == [
            f"nccltune: note: the file promises this job no samples/s: {why}"
        ]
        assert {each["promised"] for each in reports(done)} == {None}
        assert not [line for line in lines(done, "warning") if "slower" in line]


@pytest.mark.slow
def test_a_script_that_ends_before_the_first_report_is_told_of(cli: Cli) -> None:
    done = watch(cli, promising("short.py", 1.0), "short.py", "--leave", "--steps", "4")
    assert done.returncode == 0, done.stderr
    assert lines(done, "note") == [
        "nccltune: note: --watch: the script was over after 4 steps, before the first report: "
        "there is one every 5 (--watch-every)"
    ]
