"""The search: ask for a configuration, measure it in a worker group, record it, tell, repeat."""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from packaging.version import Version

from nccltune.errors import StudyError
from nccltune.launch.environment import refuse_overrides
from nccltune.launch.nccl_logs import NcclLogs
from nccltune.launch.protocol import Failure, Group, Launcher, Outcome
from nccltune.launch.stopping import StopFlag
from nccltune.nccl.site import SiteVariable
from nccltune.space import ResolvedSpace, Value
from nccltune.study.budget import Budget, limits_from
from nccltune.study.definition import Task
from nccltune.study.effective import Effective, effective
from nccltune.study.planner import Next, Planner
from nccltune.study.records import Measurement, State, Trial, best_of
from nccltune.study.store import Store
from nccltune.worker.spec import Request, Settings

Ending = Literal["trials", "time", "exhausted"]

_MEASUREMENTS_A_GROUP = 10
_MEMORY_SLACK = 512 << 20  # bytes that a rank may hold more than after its first measurement


class Reporter(Protocol):
    """Told what happens while it happens; decides itself how to show it."""

    def trial_begins(self, number: int) -> None: ...
    def progress(self, message: Mapping[str, Any]) -> None: ...
    def trial_ends(self, trial: Trial, failure: Failure | None, log: Path | None) -> None: ...


@dataclass
class LiveGroup:
    """The worker group that measures now, and what it was started with."""

    group: Group
    launch: int
    log_dir: Path
    process_env: Mapping[str, str]
    measured: int = 0
    held: Sequence[int] = ()
    """Bytes in use by rank after the first measurement."""

    @classmethod
    def open(cls, launcher: Launcher, store: Store, given: Effective) -> LiveGroup:
        launch = store.next_launch()
        log_dir = store.paths.launch_logs(launch)
        return cls(launcher.open(given.process_env, log_dir), launch, log_dir, given.process_env)

    def serves(self, given: Effective) -> bool:
        """Whether it can measure that too. It is replaced now and then all the same, so that what
        a long life may bring (fragmented memory, a slow launch) does not follow all trials.
        """
        same = self.process_env == given.process_env
        return same and self.measured < _MEASUREMENTS_A_GROUP and self.group.alive

    def gave_memory_back(self, result: Mapping[str, Any]) -> bool:
        """Whether ranks hold no more after this measurement than they did after their first."""
        now = result["held_memory_bytes"]
        self.held = self.held or now
        pairs = zip(now, self.held, strict=True)
        return all(held - before <= _MEMORY_SLACK for held, before in pairs)


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
    site: Mapping[str, SiteVariable] = field(default_factory=dict)
    memory_is_ours: bool = True
    """False where others use the GPUs too: memory in use says nothing of our ranks then."""
    private: Mapping[str, str] = field(default_factory=dict)
    """Paths of this machine, and what stands for them in records that others may read."""
    _live_group: LiveGroup | None = None
    _opened: int = 0

    def run(self) -> Ending:
        """Measure until trials or time are spent or nothing new is left to propose.

        Raises: StudyError when the baseline fails; Interrupted.
        """
        try:
            return self._run()
        finally:
            self.close()
            self.planner.close()

    def _run(self) -> Ending:
        while len(self.store.trials) < self.budget.trials:
            self.stop.check()
            if not self.budget.fits(self.store.trials):
                return "time"
            following = self.planner.next(self.store.trials, self.budget, self._is_cheap)
            if following is None:
                return "exhausted"
            self._run_trial(following)
        return "trials"

    def _is_cheap(self, configuration: Mapping[str, Value]) -> bool:
        return self._live(self.effective(configuration))

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
        """One configuration, in the live worker group where its process environment is the same.

        A failure in ranks that have measured something before may be theirs, and one that came with
        the end of the warm host is the host's: it counts only when it comes again in new ranks.
        """
        given = self.effective(following.configuration)
        refuse_overrides(self.site, given.communicator_env)
        measurement, outcome = self._measure_once(following, given)
        used = self._live_group is not None and self._live_group.measured > 1
        if outcome.failure is not None and (used or outcome.host_lost):
            lost = round(sum(measurement.seconds.values()), 3)
            measurement, outcome = self._measure_once(following, given)
            seconds = {**measurement.seconds, "failed before": lost}
            measurement = replace(measurement, seconds=seconds)
        return measurement, outcome.failure

    def _measure_once(self, following: Next, given: Effective) -> tuple[Measurement, Outcome]:
        began = time.monotonic()
        live, closing = self._group_for(given)
        baseline = self.store.measurement(self.store.trials[0]) if self.store.trials else None
        factor = given.batch_size / self.task.batch_size
        limits = limits_from(baseline, factor, cold=self._opened == 1)
        log = NcclLogs(live.log_dir)
        message = self._request(following, given)
        outcome = live.group.request(message, limits, self.reporter.progress)
        live.measured += 1
        given_back = outcome.result is None or live.gave_memory_back(outcome.result)
        if self.memory_is_ours and not given_back:
            closing += self._close_timed()
        seconds = {**outcome.seconds, "close": round(closing, 3)}
        spent = time.monotonic() - began
        seconds["other"] = round(max(0.0, spent - sum(seconds.values())), 3)
        nccl = log.facts({*given.env, *self.site})
        return self._record(following, live.launch, given, outcome, seconds, nccl), outcome

    def _group_for(self, given: Effective) -> tuple[LiveGroup, float]:
        """The group to measure in, and the seconds it took to end the one before."""
        live = self._live_group
        if live is not None and live.serves(given):
            return live, 0.0
        closing = self._close_timed()
        self._live_group = live = LiveGroup.open(self.launcher, self.store, given)
        self._opened += 1
        return live, closing

    def _live(self, given: Effective) -> bool:
        live = self._live_group
        return live is not None and live.serves(given)

    def _close_timed(self) -> float:
        began = time.monotonic()
        self.close()
        return time.monotonic() - began

    def close(self) -> None:
        """End the live group, if there is one."""
        if self._live_group is not None:
            self._live_group.group.close()
            self._live_group = None

    def effective(self, configuration: Mapping[str, Value]) -> Effective:
        return effective(
            configuration,
            self.space,
            nccl=self.nccl,
            config_fields=self.config_fields,
            task=self.task,
            site=self.site,
        )

    def _public(self, text: str) -> str:
        """Fit for a record that others may read: no path of this machine, no host name."""
        paths = {**self.private, str(self.store.paths.folder.absolute()): "."}
        return _without(text, paths, os.uname().nodename)

    def _public_facts(self, nccl: Mapping[str, Any]) -> dict[str, Any]:
        return {**nccl, "warnings": [self._public(text) for text in nccl["warnings"]]}

    def _request(self, following: Next, given: Effective) -> dict[str, Any]:
        incumbent = best_of(self.store.trials, "search")
        compares = incumbent is not None and following.stage == "search"
        request = Request(
            id=self.store.next_id(),
            workload=self.task.workload,
            settings=replace(
                self.settings, cut_below=incumbent.value if incumbent and compares else None
            ),
            ddp=dict(given.ddp),
            loader=dict(given.loader),
            batch_size=given.batch_size,
            data_seed=zlib.crc32(self.store.next_id().encode()),
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
        nccl: Mapping[str, Any] | None,
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
            id=self.store.next_id(),
            launch=launch,
            launcher=self.launcher.name,
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
            nccl=None if nccl is None else self._public_facts(nccl),
            utilization=outcome.utilization,
            seconds=seconds,
        )


def _without(text: str, paths: Mapping[str, str], host: str) -> str:
    for path, name in paths.items():
        text = text.replace(path, name)
    return re.sub(rf"\b{re.escape(host)}\b", "HOST", text)


def _baseline_failed(failure: Failure) -> str:
    tail = "\n".join(f"  | {line}" for line in failure.tail[-8:])
    return (
        f"the baseline itself failed ({failure.kind}): {failure.message}\n{tail}\n"
        f"nothing of ours was set; see {failure.log}, then run the same command again"
    )
