"""The search: ask for a configuration, measure it in a worker group, record it, tell, repeat."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from packaging.version import Version

from nccltune.errors import StudyError
from nccltune.launch.environment import DIAGNOSTIC
from nccltune.launch.protocol import Failure, Launcher, Outcome
from nccltune.launch.stopping import StopFlag
from nccltune.nccl.log import merge, parse
from nccltune.space import ResolvedSpace, Value
from nccltune.study.budget import Budget, limits_from
from nccltune.study.definition import Task
from nccltune.study.effective import Effective, effective
from nccltune.study.planner import Next, Planner
from nccltune.study.records import Measurement, State, Trial, best_of
from nccltune.study.store import Store
from nccltune.worker.spec import Request, Settings

Ending = Literal["trials", "time", "exhausted"]


class Reporter(Protocol):
    """Told what happens while it happens; decides itself how to show it."""

    def trial_begins(self, number: int) -> None: ...
    def progress(self, message: Mapping[str, Any]) -> None: ...
    def trial_ends(self, trial: Trial, failure: Failure | None, log: Path | None) -> None: ...


@dataclass
class Search:
    """A study under way. `run` goes on from what the store holds."""

    store: Store
    launcher: Launcher
    planner: Planner
    task: Task
    space: ResolvedSpace
    nccl: Version | None
    config_fields: frozenset[str]
    settings: Settings
    budget: Budget
    reporter: Reporter
    stop: StopFlag

    def run(self) -> Ending:
        """Measure until trials or time are spent or nothing new is left to propose.

        Raises: StudyError when the baseline fails; Interrupted.
        """
        while len(self.store.trials) < self.budget.trials:
            self.stop.check()
            if not self.budget.fits(self.store.trials):
                return "time"
            following = self.planner.next(self.store.trials, self.budget)
            if following is None:
                return "exhausted"
            self._run_trial(following)
        return "trials"

    def _run_trial(self, following: Next) -> None:
        number = len(self.store.trials)
        self.reporter.trial_begins(number)
        measurement, failure = self.measure(following)
        if number == 0 and failure is not None:
            raise StudyError(_baseline_failed(failure))
        trial = self.store.add(measurement)
        self.planner.tell(trial, following)
        log = None if failure is None or failure.log is None else Path(failure.log)
        self.reporter.trial_ends(trial, failure, log)

    def measure(self, following: Next) -> tuple[Measurement, Failure | None]:
        """One configuration in a worker group of its own."""
        launch = self.store.next_launch()
        log_dir = self.store.paths.launch_logs(launch)
        given = self.effective(following.configuration)
        baseline = self.store.measurement(self.store.trials[0]) if self.store.trials else None
        limits = limits_from(baseline, given.batch_size / self.task.batch_size)
        began = time.monotonic()
        group = self.launcher.open(given.process_env, log_dir)
        try:
            outcome = group.request(self._request(following, given), limits, self.reporter.progress)
        finally:
            closing = time.monotonic()
            group.close()
        ended = time.monotonic()
        seconds = {**outcome.seconds, "close": round(ended - closing, 3)}
        seconds["other"] = round(max(0.0, ended - began - sum(seconds.values())), 3)
        return self._record(following, launch, given, outcome, seconds, log_dir), outcome.failure

    def effective(self, configuration: Mapping[str, Value]) -> Effective:
        return effective(
            configuration,
            self.space,
            nccl=self.nccl,
            config_fields=self.config_fields,
            task=self.task,
        )

    def _public(self, text: str) -> str:
        """Fit for a record that others may read: no path of this machine, no host name."""
        return _without(text, self.store.paths.folder.absolute(), os.uname().nodename)

    def _request(self, following: Next, given: Effective) -> dict[str, Any]:
        incumbent = best_of(self.store.trials, "search")
        compares = incumbent is not None and following.stage == "search"
        request = Request(
            id=f"m{self.store.next_launch():04d}",
            workload=self.task.workload,
            settings=replace(
                self.settings, cut_below=incumbent.value if incumbent and compares else None
            ),
            ddp=dict(given.ddp),
            loader=dict(given.loader),
            batch_size=given.batch_size,
            communicator_env=dict(given.communicator_env),
            communicator_config=dict(given.communicator_config),
        )
        return {"type": "measure", **asdict(request)}

    def _record(
        self,
        following: Next,
        launch: int,
        given: Effective,
        outcome: Outcome,
        seconds: Mapping[str, float],
        log_dir: Path,
    ) -> Measurement:
        state: State = "complete"
        failure = None
        if outcome.failure is not None:
            state = "failed"
            log = outcome.failure.log
            relative = None if log is None else self.store.paths.relative(log)
            failure = asdict(
                replace(
                    outcome.failure,
                    log=relative,
                    message=self._public(outcome.failure.message),
                    tail=tuple(self._public(line) for line in outcome.failure.tail),
                )
            )
        elif outcome.result is not None and outcome.result["cut"]:
            state = "pruned"
        return Measurement(
            id=f"m{launch:04d}",
            launch=launch,
            purpose="search",
            trial=len(self.store.trials),
            stage=following.stage,
            origin=following.origin,
            configuration=dict(following.configuration),
            effective=given.to_dict(),
            state=state,
            value=None if outcome.result is None else outcome.result["samples_per_second"],
            result=outcome.result,
            failure=failure,
            nccl=nccl_facts(log_dir),
            utilization=outcome.utilization,
            seconds=seconds,
        )


def _without(text: str, folder: Path, host: str) -> str:
    return re.sub(rf"\b{re.escape(host)}\b", "HOST", text.replace(str(folder), "."))


def nccl_facts(log_dir: Path) -> dict[str, Any] | None:
    """What NCCL's logs of one launch say, in plain values; None without logs (gloo)."""
    files = sorted(log_dir.glob("nccl.*.log"))
    if not files:
        return None
    log = merge(parse(file.read_text(errors="replace")) for file in files)
    return {
        "version": None if log.version is None else str(log.version),
        "environment": {n: v for n, v in log.environment.items() if n not in DIAGNOSTIC},
        "config": dict(log.config),
        "transport": list(log.transport),
        "network": log.network,
        "channels": log.coll_channels,
        "nvls": log.nvls,
        "nodes": log.nodes,
        "warnings": list(log.warnings[:5]),
    }


def _baseline_failed(failure: Failure) -> str:
    tail = "\n".join(f"  | {line}" for line in failure.tail[-8:])
    return (
        f"the baseline itself failed ({failure.kind}): {failure.message}\n{tail}\n"
        f"nothing of ours was set; see {failure.log}, then run the same command again"
    )
