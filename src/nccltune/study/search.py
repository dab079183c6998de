"""The search: ask for a configuration, measure it in a worker group, record it, tell, repeat."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from nccltune.errors import StudyError
from nccltune.launch.protocol import Failure
from nccltune.launch.stopping import StopFlag
from nccltune.output import words
from nccltune.stats.noise import noise_threshold
from nccltune.study.budget import FLOOR_TRIALS, Budget, launch_seconds
from nccltune.study.confirm import Answer
from nccltune.study.confirming import NOISE_LAUNCHES, windows_wanted
from nccltune.study.live_group import Subject
from nccltune.study.measuring import Measurer
from nccltune.study.partners import Alone, Elsewhere, Partners, Wanted
from nccltune.study.planner import Next, Planner
from nccltune.study.pruning import Pruning
from nccltune.study.records import AGAIN, Trial, best_of
from nccltune.study.store import Store
from nccltune.study.time_plan import Costs, costs, reserve

Ending = Literal["trials", "time", "exhausted", "settled"]
POLL_SECONDS = 2.0
"""Between two looks at what other tuners have finished."""
QUIET_SECONDS, QUIET_LAUNCHES = 90.0, 5.0
"""More than a tuner that is lost may be silent, and so many launches of the baseline."""


class Reporter(Protocol):
    """Told what happens while it happens; decides itself how to show it."""

    def trial_begins(self, number: int) -> None: ...
    def progress(self, message: Mapping[str, Any]) -> None: ...
    def noise(self, speeds: Sequence[float], wanted: int) -> None: ...
    def no_confirmation(self, seconds: float) -> None: ...
    def trial_ends(self, trial: Trial, failure: Failure | None, log: Path | None) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass
class Search:
    """A study under way. `run` goes on from what the store holds."""

    store: Store
    planner: Planner
    measurer: Measurer
    budget: Budget
    reporter: Reporter
    stop: StopFlag
    settle: bool = True
    """Whether the search ends when more trials are unlikely to gain more than noise hides."""

    confirm: bool = False
    """The baseline is launched anew some times, to know the noise, and time kept for the end."""

    narrow: Callable[[], Collection[str]] = tuple
    """Asked once the noise is known: parameters that cannot win more than that."""
    pruning: Pruning = field(default_factory=Pruning)
    """What ends a hopeless trial early."""

    plain_more: float = 0.0
    """Seconds that a plain torchrun launch takes longer than one of the search."""

    diagnoses: bool = True
    """Whether `narrow` launches a diagnosis."""

    known: Callable[[], Answer | None] = lambda: None
    """What the records say of the result."""

    partners: Partners | None = None
    """The other tuners on the study; None: there is none."""
    _narrowed: bool = False
    _waits: str = ""

    def run(self) -> Ending:
        """Measure until trials or time are spent or nothing new is left to propose.

        Raises: StudyError when the baseline fails; Interrupted.
        """
        try:
            ending = self._run()
            self._partners.at_work(False)
            return ending
        finally:
            self.measurer.close()
            self.planner.close()

    def _run(self) -> Ending:
        while True:
            self.stop.check()
            self.catch_up()
            all_taken = self._partners.taken() >= self.budget.trials
            # Of several tuners only the one that confirms needs to know the noise then.
            measures = self.partners is None or not all_taken
            if self.store.trials and measures and self._wants_noise():
                self._measure_noise()
                continue
            if all_taken:
                if self._all_in(over=True):
                    return "trials"
                continue
            if not self.budget.fits(self.store.trials):
                self._say_what_is_kept()
                return "time"
            if not self.store.trials and self._waited(self._partners.elsewhere()):  # the baseline
                continue
            if self.store.trials and self.confirm and not self._narrowed:
                self._narrowed = True
                self.measurer.close()  # the diagnosis has ranks of its own
                self.planner.leave_out(self.narrow())
                self.planner.know_noise(*self._noise())
            self.planner.elsewhere = others = self._partners.elsewhere()
            self.budget.tuners = 1 + len({each.tuner for each in others})
            following = self.planner.next(self.store.trials, self.budget, self.measurer.suits)
            if following is not None:
                self._partners.at_work(True)
                self._waits = ""
                self._run_trial(following)
            elif self._all_in(over=False):
                return "exhausted" if self.planner.settled is None else "settled"

    @functools.cached_property
    def _partners(self) -> Partners:
        return self.partners or Alone(self.store)

    def catch_up(self) -> bool:
        """What others have finished counts as if it were measured here. Whether there was any."""
        for text in self._partners.news():
            self.reporter.note(text)
        found = self._partners.catch_up()
        for trial in found:
            self.planner.tell(trial, None)
            self.reporter.trial_ends(trial, None, None)
        return bool(found)

    def _all_in(self, *, over: bool) -> bool:
        """Whether no other tuner is at work, and all that they have finished is known. `over`: no
        trial is left for any of them.
        """
        self._partners.at_work(False)
        others = self._partners.elsewhere()
        if self._waited(others):
            return False
        if not over and self._partners.others_at_work():
            self._wait("waiting for other tuners, which still find something to try")
            return False
        return not self.catch_up()

    def _waited(self, others: Sequence[Elsewhere]) -> bool:
        """Whether others are at trials that have to be waited for; waits a moment if so."""
        if others:
            trials = "a trial" if len(others) == 1 else f"{len(others)} trials"
            self._wait(f"waiting for {trials} of other tuners")
        return bool(others)

    def _wait(self, why: str) -> None:
        if why != self._waits:
            self._waits = why
            self.measurer.close()  # idle ranks keep memory, and a core busy
            self.reporter.note(why)
        until = time.monotonic() + POLL_SECONDS
        while time.monotonic() < until:
            self.stop.check()
            time.sleep(0.1)

    @property
    def quiet_seconds(self) -> float:
        """The longest wait for other tuners to end what they are at."""
        cost = launch_seconds(self.store.measurements) or 0.0
        return QUIET_SECONDS + QUIET_LAUNCHES * cost

    def wait_for_quiet(self) -> bool:
        """Wait until no other tuner measures anything; whether it has come to that."""
        until = time.monotonic() + self.quiet_seconds
        while self._partners.others_at_work() or self._partners.elsewhere():
            if time.monotonic() > until:
                return False
            self._wait("waiting until no other tuner measures any more")
        return True

    def complete_noise(self) -> None:
        """Launch the baseline as often as a confirmation needs, if the search has not."""
        while self._wants_noise():
            self.stop.check()
            self._measure_noise()
        self.measurer.close()

    def _wants_noise(self) -> bool:
        """Whether the baseline is launched once more. Not where there is no time to confirm
        anything: the result then says so.
        """
        if not self.confirm:
            return False
        found, noise = self.store.measurements, NOISE_LAUNCHES - len(self.store.noise())
        if (shortest := costs(found, 1.0, self.plain_more)) is None:
            return noise > 0
        if not self.budget.reserved:  # once a run
            left = max(0, self.budget.trials - self._partners.taken())
            answer = self.known()
            settled = answer is not None and answer.settled and answer.trial is not None
            needed = self._needed(shortest, noise, left, answer)
            if not self.budget.fits_launch(needed) and (left or not settled):
                return self._give_up_confirming(needed, tell=not settled)
        elif noise > 0 and not self.budget.fits_launch(shortest.launch):
            return self._give_up_confirming(noise * shortest.launch + shortest.verdict)
        usual = shortest
        if noise <= 0:
            repeated = [m for m in found if m.purpose == "noise"]
            windows = windows_wanted(self.measurer, repeated) / self.measurer.settings.windows
            usual = costs(found, windows, self.plain_more) or shortest
        self.budget.reserved = reserve(self.budget, shortest, usual)
        return noise > 0

    def _needed(self, cost: Costs, noise: int, left: int, answer: Answer | None) -> float:
        """Seconds that a verdict takes from here, without what is recorded. `left`: trials."""
        floor = max(0, FLOOR_TRIALS + 1 - len(self.store.trials))
        verdict = None if answer is None or answer.settled else answer.verdict
        made = 0 if verdict is None else 2 * verdict.launches
        diagnosis = self.diagnoses and noise > 0
        whole = cost.begun_with(max(0, noise), min(floor, left), diagnosis=diagnosis)
        return whole - made * cost.launch

    def _give_up_confirming(self, needed: float, *, tell: bool = True) -> Literal[False]:
        """`tell`: not where a verdict is recorded, which stays."""
        self.confirm = False
        if tell:
            self.reporter.no_confirmation(needed)
        return False

    def _say_what_is_kept(self) -> None:
        left = self.budget.remaining()
        if left is not None and self.budget.reserved and left >= self.budget.reserved:
            kept = words.duration(left)
            self.reporter.note(f"no further trial: the {kept} left are kept for the confirmation")

    def _measure_noise(self) -> None:
        """The baseline once more, in a fresh launch."""
        baseline = self.store.trials[0]
        subject = Subject(baseline.parameters, "search", "baseline", 0, purpose="noise", fresh=True)
        measurement, failure = self.measurer.measure(subject, self.reporter.progress)
        if failure is not None:
            raise StudyError(_baseline_failed(failure, "when it was repeated"))
        self.store.add_extra(measurement)
        self.reporter.noise(self.store.noise(), NOISE_LAUNCHES)

    def _noise(self) -> tuple[list[tuple[float, int]], float | None]:
        """Launches of the baseline beside trial 0, and the smallest gain that can be shown."""
        repeats = [
            (m.value, m.launch)
            for m in self.store.measurements
            if m.purpose == "noise" and m.value is not None and m.tuner is None
        ]
        speeds = self.store.noise()
        known = self.settle and len(speeds) > 1
        return repeats, noise_threshold([speeds]) if known else None

    def _run_trial(self, following: Next) -> None:
        effect = self.planner.effect(following.configuration)
        wanted = Wanted(following.configuration, effect, following.stage, following.origin)
        number = self._partners.claim(wanted, self.budget.trials)
        if number is None:  # another tuner was first
            self.planner.hold(following)
            return
        self.reporter.trial_begins(number)
        incumbent = best_of(self.store.trials, "search")
        compares = incumbent is not None and following.stage == "search"
        subject = Subject(
            configuration=following.configuration,
            stage=following.stage,
            origin=following.origin,
            trial=number,
            fresh=following.origin == AGAIN,
            cut_below=self.pruning.cut_below(incumbent.value) if incumbent and compares else None,
            judge=self.pruning.judge(self.store.measurements) if compares else None,
        )
        measurement, failure = self.measurer.measure(subject, self.reporter.progress)
        if number == 0 and failure is not None:
            raise StudyError(_baseline_failed(failure))
        if not self._partners.publish(measurement):
            self.measurer.close()  # its launch is on no record
            self.planner.hold(following)
            self.reporter.note(
                f"trial {number} does not count: this tuner was not heard of for so long that "
                "others may measure it"
            )
            return
        trial = self.store.add(measurement)
        self.planner.tell(trial, following)
        log = None if failure is None or failure.log is None else Path(failure.log)
        self.reporter.trial_ends(trial, failure, log)


def _baseline_failed(failure: Failure, when: str = "") -> str:
    tail = f"{failure.excerpt}\n" if failure.tail else ""
    # Of a script that was over too soon the message says what to run.
    then = "" if failure.kind == "ended" else ", then run the same command again"
    return (
        f"the baseline itself failed{when and f' {when}'} ({failure.kind}): {failure.message}\n"
        f"{tail}nothing of ours was set; see {failure.log}{then}"
    )
