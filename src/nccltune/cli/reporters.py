"""Progress on stderr: a bar with a line a trial on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from nccltune.cli.speaking import say
from nccltune.cli.tables import harmless
from nccltune.launch.protocol import Failure
from nccltune.output import verdicts, words
from nccltune.space import ResolvedSpace, changes
from nccltune.stats.noise import noise_threshold
from nccltune.study.blocks import Launch
from nccltune.study.budget import Budget
from nccltune.study.records import AGAIN, Measurement, Trial, best_of
from nccltune.study.store import Store

_MUCH = 0.1

_PHASES = {
    "host": "starting a warm host",
    "start": "starting ranks",
    "build": "building",
    "first_step": "first steps",
    "check": "checking collectives",
    "warmup": "warming up",
    "measure": "measuring",
    "wait": "measuring in turn",
    "verify": "checking parameters",
}


@contextlib.contextmanager
def open_reporter(
    store: Store, space: ResolvedSpace, budget: Budget, limit: int, nodes: Sequence[str] = ()
) -> Iterator[PlainReporter | BarReporter]:
    """`nodes`: names of those that ranks are on."""
    console = harmless(Console(stderr=True, highlight=False, soft_wrap=True))
    if not console.is_terminal:
        yield PlainReporter(store, space, budget, limit, nodes)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield BarReporter(store, space, budget, limit, progress, nodes)


class PlainReporter:
    """One line for each trial that ends."""

    def __init__(
        self,
        store: Store,
        space: ResolvedSpace,
        budget: Budget,
        limit: int,
        nodes: Sequence[str] = (),
    ) -> None:
        self._store, self._space, self._budget, self._limit = store, space, budget, limit
        self._nodes = nodes

    def trial_begins(self, number: int) -> None:
        if number == 0:
            say("measuring the baseline")

    def progress(self, message: Mapping[str, Any]) -> None:
        return

    def noise(self, speeds: Sequence[float], wanted: int) -> None:
        if len(speeds) == wanted:
            self.note(verdicts.noise_line(noise_threshold([speeds]), wanted, self._limit))

    def no_confirmation(self, seconds: float) -> None:
        whole = words.duration(1.1 * (self._budget.spent + seconds))
        self.note(
            f"note: a few trials and a confirmation take about {words.duration(seconds)} more "
            "here, which the time budget does not leave: the result will be marked not confirmed "
            f"(a --time-budget of {whole} would probably do)"
        )

    def launch_ends(self, launch: Launch, measurement: Measurement) -> None:
        self.note(launch_line(launch, measurement))

    def trial_ends(self, trial: Trial, failure: Failure | None, log: Path | None) -> None:
        line = trial_line(self._store, self._space, self._budget, trial, failure)
        self.note(f"{line}{_slowest(self._store.measurement(trial), self._nodes)}")

    def note(self, text: str) -> None:
        say(text)


class BarReporter(PlainReporter):
    """The same lines above a bar that shows the best so far, failures and the time left."""

    def __init__(
        self,
        store: Store,
        space: ResolvedSpace,
        budget: Budget,
        limit: int,
        progress: Progress,
        nodes: Sequence[str] = (),
    ) -> None:
        super().__init__(store, space, budget, limit, nodes)
        self._bar = progress
        self._task = progress.add_task(
            "starting", total=budget.trials, completed=len(store.trials), detail=""
        )
        self._phase = ""

    def trial_begins(self, number: int) -> None:
        self._phase = _PHASES["start"]
        self._update()

    def progress(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "phase":
            self._phase = _PHASES.get(message["phase"], message["phase"])
            self._update()

    def trial_ends(self, trial: Trial, failure: Failure | None, log: Path | None) -> None:
        super().trial_ends(trial, failure, log)
        self._phase = ""
        self._update()

    def note(self, text: str) -> None:
        self._bar.console.print(Text(text))

    def _update(self) -> None:
        trials = self._store.trials
        best = best_of(trials, "search")
        parts = [f"{len(trials)}/{self._budget.trials}"]
        if best is not None:
            gain = words.difference(best.value, trials[0].value)
            parts.append(f"best {words.samples(best.value)} samples/s ({gain})")
        failed = sum(t.state == "failed" for t in trials)
        parts.append(f"{failed} failed")
        left = self._budget.forecast(trials)
        parts.append(f"{words.duration(left)} left" if left is not None else "time left unknown")
        self._bar.update(
            self._task,
            completed=len(trials),
            description=f"trial {len(trials)}: {self._phase}" if self._phase else "next trial",
            detail="  ".join(parts),
        )


def _slowest(measurement: Measurement, nodes: Sequence[str]) -> str:
    """The rank that the others wait for, where that costs much of a step."""
    found = (measurement.result or {}).get("slowest")
    if found is None or not nodes or found["behind"] < _MUCH:
        return ""
    more = f"others wait {found['behind']:.0%} of each step for it"
    return f"  slowest: rank {found['rank']} on node {nodes[found['node']]} ({more})"


def launch_line(launch: Launch, measurement: Measurement) -> str:
    """One launch of the confirmation in one line."""
    head = f"confirm    {launch.comparison}, launch {launch.block + 1} of at most {launch.limit}"
    side = launch.side if launch.side in ("baseline", "candidate") else f"trial {launch.side}"
    if measurement.failure is not None:
        return f"{head}, {side}  failed: {measurement.failure['kind'].replace('_', ' ')}"
    return f"{head}, {side}  {words.samples(measurement.value)} samples/s"


def trial_line(
    store: Store, space: ResolvedSpace, budget: Budget, trial: Trial, failure: Failure | None
) -> str:
    """One trial in one line, fields in a fixed order."""
    if trial.number == 0:
        result = store.measurement(trial).result or {}
        waiting = result.get("data_wait_share", 0.0)
        steady = "" if result.get("steady") else "  (never steady)"
        return (
            f"baseline   {words.samples(trial.value)} samples/s  "
            f"{1000 * result.get('step_seconds', 0):.1f} ms/step, {100 * waiting:.0f}% of it "
            f"waiting for data{steady}"
        )
    by = store.measurement(trial).tuner
    whose = "" if by is None else f"  by tuner {by}"
    head = _head(store, budget, trial)
    settings = words.settings(changes(trial.parameters, space.baseline))
    left = budget.forecast(store.trials)
    tail = f"{_why(store, trial)}{whose}"
    tail += f"  {words.duration(left)} left" if left is not None else ""
    if trial.state == "failed":
        reason = failure.message if failure is not None else ""
        rank = "" if failure is None or failure.rank is None else f" (rank {failure.rank})"
        log = "" if failure is None or failure.log is None else f"  see {_short(failure.log)}"
        kind = (trial.failure or "failed").replace("_", " ")
        return f"{head}  failed: {kind}{rank}: {reason[:200]}  {settings}{log}{tail}"
    gain = words.difference(trial.value, store.trials[0].value)
    mark = "  cut early" if trial.state == "pruned" else ""
    return (
        f"{head}  {words.samples(trial.value):>7} samples/s  {gain:>6} vs baseline{mark}  "
        f"{settings}{tail}"
    )


def _head(store: Store, budget: Budget, trial: Trial) -> str:
    """The number of the trial, which counts from the baseline's 0, and how many are there by now.
    Numbers of several tuners have gaps.
    """
    done = next(n for n, each in enumerate(store.trials, 1) if each.number == trial.number)
    width = len(str(budget.trials))
    return f"trial {trial.number:>{width}} ({done:>{width}}/{budget.trials})"


def _why(store: Store, trial: Trial) -> str:
    """Where its configuration comes from, unless the sampler has just thought of it."""
    if trial.origin == "sampler":
        return ""
    if trial.origin != AGAIN:
        return f"  ({trial.origin})"
    first = next(each for each in store.trials if each.parameters == trial.parameters)
    return f"  (trial {first.number} measured again)"


def _short(path: str) -> str:
    """Relative to where the user is, if that is shorter."""
    with contextlib.suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return path
