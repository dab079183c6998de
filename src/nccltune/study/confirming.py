"""The launches of a confirmation, measured and recorded, so that it can go on later."""

from __future__ import annotations

import contextlib
import secrets
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from nccltune.errors import NccltuneError, StudyError
from nccltune.launch.protocol import Launcher
from nccltune.launch.stopping import StopFlag
from nccltune.launch.turns import Turns
from nccltune.output.verdicts import not_proven, one_by_one
from nccltune.space import ResolvedSpace
from nccltune.stats.noise import launch_spread, window_spread, windows_needed
from nccltune.study.blocks import DROPPING, FILES, CandidateFailed, Launch, recorded
from nccltune.study.budget import Budget
from nccltune.study.confirm import Confirmation
from nccltune.study.effects import acting
from nccltune.study.files_check import through_files
from nccltune.study.live_group import Subject
from nccltune.study.measuring import Measurer
from nccltune.study.proving import prove
from nccltune.study.records import Compared, Measurement, larger_winner
from nccltune.study.sampling.estimates import candidates
from nccltune.study.store import Store
from nccltune.study.time_plan import PLAIN_MORE, costs

NOISE_LAUNCHES = 6
"""Fresh launches of the baseline, the first trial included."""
_NOTHING = 0.1  # seconds


class Listener(Protocol):
    def progress(self, message: Mapping[str, Any]) -> None: ...
    def launch_ends(self, launch: Launch, measurement: Measurement) -> None: ...


@dataclass
class Launches:
    """Called with the launches of a block, gives their speeds: from the records, or by measuring
    them now, in turn where that can be done.
    """

    store: Store
    measurer: Measurer
    budget: Budget
    listener: Listener
    stop: StopFlag
    plain: Measurer
    """By plain torchrun commands."""
    windows: float = 1.0
    """Of a launch, as times those of the search."""
    out_of_time: list[str] = field(default_factory=list)
    """Comparisons that were not ended for want of time."""
    turns: Turns = field(default_factory=Turns)
    run: str = field(default_factory=lambda: secrets.token_hex(4))

    def __call__(self, launches: Sequence[Launch]) -> list[float] | None:
        """Samples/s; None when the time budget is spent, or plain commands do not work here. Raises
        CandidateFailed, StudyError when the baseline fails, Interrupted.
        """
        known = recorded(self.store.measurements)(launches)
        if known is not None:
            return known
        self.stop.check()
        plain = launches[0].comparison == FILES
        more = plain_more(self.measurer.launcher, self.plain.launcher)
        cost = costs(self.store.measurements, self.windows, more)
        if cost and not self.budget.fits_launch(cost.of(launches) + cost.kept(launches[0])):
            self.out_of_time.append(launches[0].comparison)
            return None
        (self.measurer if plain else self.plain).close()  # it would share the devices
        measurer = self.plain if plain else self.measurer
        try:
            subjects = [self._subject(launch) for launch in launches]
        except NccltuneError:  # no shell, say: nothing is known of the files
            return None
        began = time.monotonic()
        possible = self.turns.refused is None and len(subjects) == 2
        tried = possible and measurer.can_take_turns(*subjects)
        in_turn = self._in_turn(measurer, launches, subjects) if tried else None
        if in_turn is not None:
            return in_turn
        try:
            return self._one_by_one(measurer, launches, subjects, time.monotonic() - began)
        except CandidateFailed:
            if tried:
                self.turns.excuse()
            raise

    def _subject(self, launch: Launch) -> Subject:
        given = None
        if launch.comparison == FILES and launch.side == "candidate":
            given = through_files(self.measurer.effective(launch.configuration))
        place = Compared(
            launch.comparison, launch.block, launch.side, launch.limit, launch.of, self.run
        )
        return Subject(
            configuration=launch.configuration,
            stage=launch.stage,
            origin=launch.comparison,
            trial=launch.trial,
            purpose="confirm",
            fresh=True,
            compared=place,
            given=given,
        )

    def _in_turn(
        self, measurer: Measurer, launches: Sequence[Launch], subjects: Sequence[Subject]
    ) -> list[float] | None:
        """None where the two cannot take turns."""
        one, other = map(_taking_turns, subjects)
        pair = self.turns.attempt(lambda: measurer.take_turns(one, other, self.listener.progress))
        if pair is None:
            return None
        for launch, measurement in zip(launches, pair, strict=True):
            self.store.add_extra(measurement)
            self.listener.launch_ends(launch, measurement)
        return [measurement.value for measurement in pair if measurement.value is not None]

    def _one_by_one(
        self,
        measurer: Measurer,
        launches: Sequence[Launch],
        subjects: Sequence[Subject],
        lost: float,
    ) -> list[float] | None:
        """`lost`: seconds that an attempt to take turns took."""
        speeds = []
        for launch, subject in zip(launches, subjects, strict=True):
            self.stop.check()
            measurement, failure = measurer.measure(subject, self.listener.progress)
            if lost >= _NOTHING:
                spent = {**measurement.seconds, "failed before": round(lost, 3)}
                measurement, lost = replace(measurement, seconds=spent), 0.0
            self.store.add_extra(measurement)
            self.listener.launch_ends(launch, measurement)
            if failure is not None and launch.side == "baseline" and launch.trial == 0:
                if launch.comparison == FILES:
                    return None  # plain commands do not work here: nothing is known of the files
                raise StudyError(
                    f"the baseline failed in the confirmation ({failure.kind}): "
                    f"{failure.message}\nsee {failure.log}, then run the same command again: it "
                    "goes on from here"
                )
            if failure is not None:
                side = "baseline" if launch.side == "baseline" else "candidate"
                raise CandidateFailed(failure.message, side)
            assert measurement.value is not None
            speeds.append(measurement.value)
        return speeds


def _taking_turns(subject: Subject) -> Subject:
    assert subject.compared is not None
    return replace(subject, compared=replace(subject.compared, turns=True))


def plain_more(launcher: Launcher, plain: Launcher) -> float:
    """Seconds that a plain torchrun launch takes longer than one of the launcher."""
    return 0.0 if plain.name == launcher.name else PLAIN_MORE


def confirm_results(
    measurer: Measurer,
    budget: Budget,
    listener: Listener,
    stop: StopFlag,
    space: ResolvedSpace,
    limit: int,
    plain: Launcher,
    seed: int = 0,
    sampler: str = "tpe",
) -> list[str]:
    """Measure what the answers of the study need, as far as time goes. `plain` starts ranks by
    plain torchrun commands, for the last block. Returns what the user should know: why launches did
    not take turns, why NCCL's log proves nothing.

    Raises: StudyError when the baseline fails, Interrupted.
    """
    store = measurer.store
    noise = store.noise()
    if len(noise) < NOISE_LAUNCHES:
        return []
    repeated = [m for m in store.measurements if m.purpose == "noise"]
    windows = _as_time_allows(measurer, repeated, budget, plain)
    long = _with_windows(measurer, windows)
    commands = replace(long, launcher=plain, cold_starts=True, disturbed=[])
    with contextlib.ExitStack() as stack:
        for each in (long, commands):
            stack.callback(measurer.disturbed.extend, each.disturbed)
            stack.callback(each.close)
        times = windows / measurer.settings.windows
        launches = Launches(store, long, budget, listener, stop, commands, times)
        trials = acting(store.trials, store.measurements, space)
        ranked = candidates(trials, store.measurements, space, sampler)
        confirmation = Confirmation(space, ranked, noise, limit, launches, seed)
        own = confirmation.own_batch()
        larger = larger_winner(trials)
        if larger is not None:
            confirmation.larger_batch(own, larger)
        unproven = None
        if own.faster and own.trial is not None:
            commands.close()
            long.close()
            unproven = prove(long, budget, stop, listener.progress, own.configuration, own.trial)
    refused = launches.turns.refused
    notes = [] if refused is None else [one_by_one(refused)]
    notes += _left_out(launches.out_of_time)
    return notes if unproven is None else [*notes, not_proven(unproven)]


def _left_out(comparisons: Sequence[str]) -> list[str]:
    """What was not found out for want of time; the rest is said with the result."""
    notes = []
    if "finalists" in comparisons:
        notes.append("no time to launch the fastest few anew: the likeliest stands for them")
    names = dict.fromkeys(n.removeprefix(DROPPING) for n in comparisons if n.startswith(DROPPING))
    if names:
        notes.append(
            f"no time to find out which settings pay ({', '.join(names)}): all of them are kept; "
            "the same command with more time goes on"
        )
    return notes


def _as_time_allows(
    measurer: Measurer, noise: Sequence[Measurement], budget: Budget, plain: Launcher
) -> int:
    """Windows of a launch: as many as are wanted, but not more than leave time for a verdict."""
    usual, more = measurer.settings.windows, plain_more(measurer.launcher, plain)
    for windows in range(windows_wanted(measurer, noise), usual, -1):
        cost = costs(measurer.store.measurements, windows / usual, more)
        if cost is None or budget.fits_launch(cost.verdict):
            return windows
    return usual


def windows_wanted(measurer: Measurer, noise: Sequence[Measurement]) -> int:
    """So many that they add little to the spread of launches."""
    spread = launch_spread([[m.value for m in noise if m.value is not None]])
    inside = [window_spread(_rates(m)) for m in noise if m.result is not None]
    usual = measurer.settings.windows
    return windows_needed(spread, statistics.median(inside), usual) if inside else usual


def _with_windows(measurer: Measurer, windows: int) -> Measurer:
    """A measurer whose launches have so many."""
    usual = measurer.settings.windows
    longest = measurer.settings.max_measure_seconds * windows / usual
    settings = replace(measurer.settings, windows=windows, max_measure_seconds=longest)
    return replace(measurer, settings=settings, disturbed=[])


def _rates(measurement: Measurement) -> list[float]:
    assert measurement.result is not None
    counting = [w for w in measurement.result["windows"] if w["counts"]]
    return [w["steps"] / max(w["rank_seconds"]) for w in counting]
