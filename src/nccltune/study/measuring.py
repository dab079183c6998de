"""One configuration measured in a worker group, and the record of it."""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from packaging.version import Version

from nccltune.launch.environment import refuse_overrides
from nccltune.launch.nccl_logs import NcclLogs
from nccltune.launch.protocol import Failure, Group, Launcher, Limits, Outcome, Progress
from nccltune.launch.ssh import FOLDERS
from nccltune.launch.turns import NoTurns, Side, take_turns
from nccltune.machine.gpus import Gpu
from nccltune.machine.health import Reading, taints
from nccltune.nccl.site import SiteVariable
from nccltune.space import ResolvedSpace, Value
from nccltune.study.budget import limits_from, patient
from nccltune.study.checking import checked, usual_loss
from nccltune.study.definition import Task
from nccltune.study.effective import Effective, effective, loads_beside, request_for
from nccltune.study.live_group import LiveGroup, Subject
from nccltune.study.records import Measurement, State
from nccltune.study.store import Store
from nccltune.worker.spec import Settings

REPEATS = 5
"""Disturbed measurements that a run repeats: on a machine that is always busy it is no help."""


@dataclass
class Measurer:
    """Measures subjects one after another, in the live worker group where that suits."""

    store: Store
    launcher: Launcher
    task: Task
    space: ResolvedSpace
    nccl: Version | None
    config_fields: frozenset[str]
    settings: Settings
    site: Mapping[str, SiteVariable] = field(default_factory=dict)
    memory_is_ours: bool = True
    """False where others use the GPUs too: memory in use says nothing of our ranks then."""
    node_words: Mapping[str, int] = field(default_factory=dict)
    """Names and addresses of the nodes that ranks are on; records number the nodes instead."""
    private: Mapping[str, str] = field(default_factory=dict)
    """Paths of this machine, and what stands for them in records that others may read."""
    health: Callable[[], Reading] | None = None
    """Read around each measurement."""
    disturbed: list[str] = field(default_factory=list)
    """What disturbed measurements of this run; each was repeated, as long as that was of use."""
    gpus: Sequence[Gpu] = ()
    cold_starts: bool = False
    """Ranks start in another way than those of the baseline did, which may take longer."""
    tuning_log: bool = False
    """NCCL logs how it runs each collective: speeds mean nothing then."""
    _live_group: LiveGroup | None = None
    _opened: int = 0

    def measure(self, subject: Subject, progress: Progress) -> tuple[Measurement, Failure | None]:
        """One configuration, in the live worker group where its process environment is the same.

        A failure in ranks that have measured something before may be theirs, and one that came with
        the end of the warm host is the host's: it counts only when it comes again in new ranks.
        The record is not in the store yet.
        """
        given = self._given(subject)
        refuse_overrides(self.site, given.communicator_env)

        def again(why: str) -> tuple[Measurement, Outcome]:
            lost = round(measurement.spent, 3)
            repeated, ended = self._measure_once(subject, given, progress)
            return replace(repeated, seconds={**repeated.seconds, why: lost}), ended

        measurement, outcome = self._measure_once(subject, given, progress)
        if measurement.taints and outcome.failure is None and len(self.disturbed) < REPEATS:
            self.disturbed.append(measurement.taints[0])
            measurement, outcome = again("disturbed before")
        used = self._live_group is not None and self._live_group.measured > 1
        if outcome.failure is not None and (used or outcome.host_lost):
            measurement, outcome = again("failed before")
        return measurement, outcome.failure

    def _measure_once(
        self, subject: Subject, given: Effective, progress: Progress
    ) -> tuple[Measurement, Outcome]:
        began = time.monotonic()
        live, closing = self._group_for(given, fresh=subject.fresh)
        log = NcclLogs(live.log_dir)
        message = self._request(subject, given)
        before = self.health() if self.health else None
        limits = self._limits(given)
        outcome = self._checked(live.request(message, limits, progress, subject.judge), given)
        found = self._taints(before)
        live.measured += 1
        given_back = outcome.result is None or live.gave_memory_back(outcome.result)
        if self.memory_is_ours and not given_back:
            closing += self._close_timed()
        seconds = {**outcome.seconds, "close": round(closing, 3)}
        spent = time.monotonic() - began
        seconds["other"] = round(max(0.0, spent - sum(seconds.values())), 3)
        record = self._record(subject, live.launch, given, outcome, seconds, log)
        return replace(record, taints=found), outcome

    def can_take_turns(self, first: Subject, second: Subject) -> bool:
        """Whether the two may be measured in turn, in worker groups that are alive together."""
        if self.task.script is not None:
            return False  # two runs of it can be in each other's way
        return not any(loads_beside(self._given(subject)) for subject in (first, second))

    def take_turns(
        self, first: Subject, second: Subject, progress: Progress
    ) -> tuple[Measurement, Measurement]:
        """Both, in fresh worker groups that measure in turn; the first is opened first. The records
        are not in the store yet.

        Raises: NoTurns when one of them fails or memory is short, Interrupted.
        """
        self.close()
        pair = self._take_turns_once((first, second), progress)
        if pair[0].taints and len(self.disturbed) < REPEATS:
            self.disturbed.append(pair[0].taints[0])
            lost = {"disturbed before": round(sum(m.spent for m in pair), 3) / 2}
            one, other = self._take_turns_once((first, second), progress)
            pair = (
                replace(one, seconds={**one.seconds, **lost}),
                replace(other, seconds={**other.seconds, **lost}),
            )
        return pair

    def _take_turns_once(
        self, subjects: tuple[Subject, Subject], progress: Progress
    ) -> tuple[Measurement, Measurement]:
        began = time.monotonic()
        givens = [self._given(subject) for subject in subjects]
        opened: list[LiveGroup] = []

        def opener(given: Effective) -> Callable[[], Group]:
            def open_group() -> Group:
                opened.append(LiveGroup.open(self.launcher, self.store, given, len(opened)))
                self._opened += 1
                return opened[-1].group

            return open_group

        for given in givens:
            refuse_overrides(self.site, given.communicator_env)
        sides = [
            Side(
                opener(given),
                {**self._request(subject, given, later), "turns": True},
                self._limits(given),
            )
            for later, (subject, given) in enumerate(zip(subjects, givens, strict=True))
        ]
        before = self.health() if self.health else None
        found: tuple[str, ...] = ()

        def look() -> None:  # before they end: what they used may be gone with them
            nonlocal found
            found = self._taints(before)

        ended = take_turns(sides, self.gpus, progress, look)
        outcomes = [self._checked(*each) for each in zip(ended, givens, strict=True)]
        for outcome in outcomes:
            if outcome.failure is not None:
                raise NoTurns(outcome.failure.message)
        spent = [sum(o.seconds.values()) - o.seconds.get("wait", 0.0) for o in outcomes]
        other = max(0.0, time.monotonic() - began - sum(spent)) / 2
        one, two = (
            replace(
                self._record(
                    subject,
                    live.launch,
                    given,
                    outcome,
                    {**outcome.seconds, "other": round(other, 3)},
                    NcclLogs(live.log_dir, whole=True),
                    later,
                ),
                taints=found,
            )
            for later, (subject, given, live, outcome) in enumerate(
                zip(subjects, givens, opened, outcomes, strict=True)
            )
        )
        return one, two

    @property
    def _baseline(self) -> Measurement | None:
        return self.store.measurement(self.store.trials[0]) if self.store.trials else None

    def _checked(self, outcome: Outcome, given: Effective) -> Outcome:
        """Synthetic data are the same each time; of others each measurement has its own order."""
        if self.task.workload.data != "synthetic" or given.batch_size != self.task.batch_size:
            return checked(outcome)
        baseline = [m for m in self.store.measurements if m.trial == 0 and m.purpose != "diagnose"]
        return checked(outcome, usual_loss([m.result for m in baseline if m.result is not None]))

    def _limits(self, given: Effective) -> Limits:
        baseline = self._baseline
        factor = given.batch_size / self.task.batch_size
        limits = limits_from(baseline, factor, cold=self.cold_starts or self._opened <= 1)
        return limits if self.task.script is None else patient(limits)

    def _taints(self, before: Reading | None) -> tuple[str, ...]:
        if self.health is None or before is None:
            return ()
        return taints(before, self.health(), allow_busy=not self.memory_is_ours)

    def _group_for(self, given: Effective, *, fresh: bool) -> tuple[LiveGroup, float]:
        """The group to measure in, and the seconds it took to end the one before."""
        live = self._live_group
        once = fresh or self.task.script is not None
        if live is not None and live.serves(given) and not (once and live.measured):
            return live, 0.0
        closing = self._close_timed()
        self._live_group = live = LiveGroup.open(
            self.launcher, self.store, given, tuning_log=self.tuning_log
        )
        self._opened += 1
        return live, closing

    def suits(self, configuration: Mapping[str, Value]) -> bool:
        """Whether the live group can measure that too, so that it costs no launch."""
        live = self._live_group
        if live is None or self.task.script is not None:  # a script is measured once a launch
            return False
        return live.serves(self.effective(configuration))

    def _close_timed(self) -> float:
        began = time.monotonic()
        self.close()
        return time.monotonic() - began

    def close(self) -> None:
        """End the live group, if there is one."""
        if self._live_group is not None:
            self._live_group.group.close()
            self._live_group = None

    def _given(self, subject: Subject) -> Effective:
        return subject.given or self.effective(subject.configuration)

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
        hosts = {word: f"node {at}" for word, at in self.node_words.items()}
        text = FOLDERS.sub("FOLDER", text)
        return _without(text, paths, {**hosts, os.uname().nodename: "HOST"})

    def _public_facts(self, nccl: Mapping[str, Any]) -> dict[str, Any]:
        return {**nccl, "warnings": [self._public(text) for text in nccl["warnings"]]}

    def _request(self, subject: Subject, given: Effective, later: int = 0) -> dict[str, Any]:
        name = self.store.next_id(later)
        settings = replace(self.settings, cut_below=subject.cut_below)
        seed = zlib.crc32(name.encode())
        script = self.task.script
        if script is not None:
            factor = given.batch_size / self.task.batch_size
            asked = script.request(given.ddp, given.loader, factor)
            return {"type": "measure", "id": name, "settings": asdict(settings), **asked}
        request = request_for(given, self.task, settings, id=name, data_seed=seed)
        return {"type": "measure", **asdict(request)}

    def _record(
        self,
        subject: Subject,
        launch: int,
        given: Effective,
        outcome: Outcome,
        seconds: Mapping[str, float],
        logs: NcclLogs,
        later: int = 0,
    ) -> Measurement:
        """`later`: so many other records of ours come before this one and are not in the store."""
        nccl = logs.facts({*given.env, *self.site})
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
            id=self.store.next_id(later),
            launch=launch,
            launcher=self.launcher.name,
            purpose=subject.purpose,
            trial=subject.trial,
            stage=subject.stage,
            origin=subject.origin,
            configuration=dict(subject.configuration),
            effective=given.to_dict(),
            state=state,
            value=None if outcome.result is None else outcome.result["samples_per_second"],
            result=outcome.result,
            failure=failure,
            nccl=None if nccl is None else self._public_facts(nccl),
            utilization=outcome.utilization,
            seconds=seconds,
            compared=subject.compared,
        )


def _without(text: str, paths: Mapping[str, str], hosts: Mapping[str, str]) -> str:
    for path, name in paths.items():
        text = text.replace(path, name)
    # The longest first: one may be the beginning of another. "node n1" is "node 1" then.
    for host, name in sorted(hosts.items(), key=lambda each: -len(each[0])):
        text = re.sub(rf"(\bnode )?\b{re.escape(host)}\b", name, text)
    return text
