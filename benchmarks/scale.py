"""A study of 5,000 trials: what a proposal costs, how long `show` takes, what memory both need.

    .venv/bin/python benchmarks/scale.py [--trials 5000] [--json FILE|-]

The records are those of a recorded study, its trials taken again and again with other values of
its parameters, each with a whole measurement. Times are of this machine; the exit code is 1 where a
proposal takes 50 ms (median), `show` 1.5 s or either 300 MB.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nccltune.space import ResolvedSpace, canonical, key, violation
from nccltune.study.batch_sizes import Memory, stage_parameters
from nccltune.study.budget import Budget
from nccltune.study.folder import StudyPaths, read_definition, write_text
from nccltune.study.planner import Planner
from nccltune.study.proposals import Proposer
from nccltune.study.records import Trial
from nccltune.study.sampling.choosing import Choice
from nccltune.study.sampling.linear_algebra import on_one_thread
from nccltune.study.store import Store

SOURCE = Path(__file__).resolve().parents[1] / "studies" / "h200x2-resnet50"
ASKS = 20
LIMITS = {"ask_seconds": 0.05, "show_seconds": 1.5, "ask_mb": 300.0, "show_mb": 300.0}


def build(folder: Path, count: int) -> StudyPaths:
    """A study of so many trials, all different."""
    old, paths = StudyPaths(SOURCE), StudyPaths(folder)
    folder.mkdir(parents=True)
    definition = read_definition(old) | {"sampler": "guided"}
    write_text(paths.definition, json.dumps(definition))  # YAML too
    space = ResolvedSpace.from_dict(definition["space"])
    store = Store(old, repair=False)
    complete = [t for t in store.trials if t.state == "complete" and t.stage == "search"]
    rng = random.Random(0)
    known = {key(complete[0].parameters)}
    with paths.trials.open("w") as trials, paths.measurements.open("w") as measurements:
        for number in range(count):
            like = complete[0] if number == 0 else rng.choice(complete[1:])
            configuration = like.parameters if number == 0 else _other(space, rng, known)
            name = f"m{number:04d}"
            measured = replace(
                store.measurement(like),
                id=name,
                trial=number,
                launch=number // 8,
                configuration=configuration,
                purpose="search",
                stage="search",
            )
            trial = Trial.of(measured)
            trials.write(json.dumps(trial.to_dict()) + "\n")
            measurements.write(json.dumps(measured.to_dict()) + "\n")
    return paths


def _other(space: ResolvedSpace, rng: random.Random, known: set[str]) -> dict[str, Any]:
    while True:
        values = {
            p.name: rng.choice(p.choices)
            if p.choices
            else rng.randint(int(p.range.low), int(p.range.high))  # type: ignore[union-attr]
            for p in space.parameters
            if p.target != "batch"
        }
        found = canonical(values, space)
        if violation(found, space) is None and key(found) not in known:
            known.add(key(found))
            return found


def ask(paths: StudyPaths, count: int) -> dict[str, float]:
    """Opening the study and some proposals, in a process of their own: seconds, MB."""
    on_one_thread()  # as the product does
    began = time.perf_counter()
    definition = read_definition(paths)
    whole = ResolvedSpace.from_dict(definition["space"])
    own = tuple(p for p in whole.parameters if p.target != "batch")
    space = replace(whole, parameters=own, baseline={**whole.baseline})
    store = Store(paths)
    made = Choice("guided", space, 0)
    proposer = Proposer(paths.journal, stage_parameters(space), store.trials, made)
    planner = Planner(space, proposer, 64, Memory(None, lambda _trial: None))
    baseline = store.trials[0].value or 0.0
    planner.know_noise([(baseline, -1 - n) for n in range(5)], 0.02)  # it asks for the chance too
    opened = time.perf_counter() - began
    budget, asks = Budget(count + ASKS, None), []
    for _ in range(ASKS):
        began = time.perf_counter()
        following = planner.next(store.trials, budget, lambda _configuration: True)
        asks.append(time.perf_counter() - began)
        assert following is not None and following.proposal is not None  # the sampler's
        like = store.trials[-1]
        trial = replace(like, number=len(store.trials), parameters=following.configuration)
        store.trials.append(trial)
        planner.tell(trial, following)
    return {
        "open_seconds": opened,
        "ask_seconds": statistics.median(asks),
        "ask_slowest_seconds": max(asks),
        "ask_mb": _peak_mb(resource.RUSAGE_SELF),
    }


def show(paths: StudyPaths) -> dict[str, float]:
    command = [sys.executable, "-m", "nccltune", "show", str(paths.folder)]
    times = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return {"show_seconds": min(times), "show_mb": _peak_mb(resource.RUSAGE_CHILDREN)}


def _peak_mb(whose: int) -> float:
    return resource.getrusage(whose).ru_maxrss / 1024


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=5000, metavar="N")
    parser.add_argument("--json", metavar="FILE|-")
    parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)  # the study to ask in
    asked = parser.parse_args(arguments)
    if asked.ask is not None:
        print(json.dumps(ask(StudyPaths(asked.ask), asked.trials)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        paths = build(Path(folder) / "large", asked.trials)
        found = {"trials": asked.trials, **show(paths)}
        itself = [sys.executable, __file__, "--trials", str(asked.trials), "--ask"]
        answer = subprocess.run(
            [*itself, str(paths.folder)], check=True, capture_output=True, text=True
        )
        found |= json.loads(answer.stdout.splitlines()[-1])
    rounded = {name: round(value, 4) for name, value in found.items()}
    text = json.dumps(rounded, indent=1)
    if asked.json == "-":
        print(text)
    else:
        for name, value in rounded.items():
            limit = f"  (limit {LIMITS[name]:g})" if name in LIMITS else ""
            print(f"{name:22}{value:10.3f}{limit}")
        if asked.json:
            Path(asked.json).write_text(text + "\n")
    return int(any(found[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
