"""Records the landscape of a search space on this machine: many configurations, each measured
shortly in live worker groups, so that samplers can be compared later without the machine.

    .venv/bin/python benchmarks/record_landscape.py --out FILE --minutes 5 [--points N]
        [--repeats 14] [--repeat-launches 6] [--seed 0] -- SEARCH OPTIONS

SEARCH OPTIONS are those of `nccltune search` that describe the job and the space. At first each
launch has an environment of its own, drawn at random, and in it the default and about nine other
configurations in random order. In the second half of the time (up to two thirds, where the repeats
need that much) launches that repeat some of them, the default and fast and slow ones, take turns
with new ones as time allows. A larger batch is no point: samples/s at another batch size do not
compare.

FILE has a JSON line for each measurement, written at once: `launch` (the number of the worker
group), each parameter with its value (null: unset), `windows` (samples/s), `setup_s` (build, first
steps, checks), `warm_s`, `measure_s`, `launch_s` (the start of the group: in its first line, else
0), and `failed` with the kind of the failure where there was one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shlex
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from landscape_points import (
    GROUP,
    Configuration,
    Costs,
    Point,
    Source,
    choose,
    speeds,
)

from nccltune.cli import tables
from nccltune.cli.again import options_again
from nccltune.cli.cache import cache_folder
from nccltune.cli.first_launch import first_launch
from nccltune.cli.speaking import say, tell
from nccltune.cli.starting import Start, end_old, plain_launcher, started, tell_setting
from nccltune.cli.studying import settings_for
from nccltune.errors import Interrupted, NccltuneError, StudyError, UsageError
from nccltune.launch.leftovers import logs_folder
from nccltune.launch.stopping import StopFlag
from nccltune.machine.health import read, taints
from nccltune.space import (
    changes,
    key,
)
from nccltune.stats.noise import launch_spread
from nccltune.study.folder import StudyPaths
from nccltune.study.live_group import Subject
from nccltune.study.measuring import Measurer
from nccltune.study.options import SearchOptions
from nccltune.study.records import Measurement
from nccltune.study.store import Store
from nccltune.study.survey import nccl_version, refuse_busy, refuse_empty, resolve_space

DEFAULT_LAUNCHES = 6  # of the default at least
A_PLACE = 4  # repeated configurations of an environment, where launches are cheap
MOST_KEPT = 2 / 3  # of the time, for repeats
SLACK = 1.05  # repeats are planned to take so much more than they cost so far
HOPELESS = 2  # failures of an environment without a success: the rest of a launch is left out

Row = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """What was asked for. `points`: most distinct configurations, None for as many as fit."""

    minutes: float
    points: int | None = None
    repeats: int = 14
    launches: int = 6
    seed: int = 0


class Recorder:
    """Measures by the clock and writes each row as it comes."""

    def __init__(
        self, measurer: Measurer, source: Source, wanted: Wanted, out: TextIO, stop: StopFlag
    ) -> None:
        self._measurer, self._source, self._wanted = measurer, source, wanted
        self._out, self._stop = out, stop
        self._draw = random.Random(f"order {wanted.seed}")
        self._default = key(source.default)
        self._bases: dict[str, Configuration] = {}
        self._numbers: dict[int, int] = {}  # the store's numbers of launches, and ours
        self._repeated: list[str] = []
        self._disturbed: list[str] = []
        self._began = time.monotonic()
        self._known: dict[str, Configuration] = {self._default: source.default}
        self.points: list[Point] = []
        self.costs = Costs()

    def record(self) -> None:
        """Returns when the time is over, or nothing is left to measure.

        Raises: StudyError where the default itself fails, Interrupted.
        """
        self._began = time.monotonic()
        self._warm_up()
        while self._left() > (keep := self._kept()):
            new = self._new_launch()
            if new is None or not self._launch(new, "new", keep=keep):
                break
        self._repeated = self._chosen()
        say(f"{len(self._repeated)} of {len(self.measured)} configurations are repeated")
        while (following := self._next_launch()) is not None:
            if not self._launch(*following):
                break

    @property
    def measured(self) -> set[str]:
        """The names of the configurations that have rows."""
        return {point.name for point in self.points}

    def _kept(self) -> float:
        """Seconds of the end that launches of new configurations leave alone: half of the time, or
        what the repeats will take, at two environments at least where there are several.
        """
        whole, places = 60 * self._wanted.minutes, min(2, len({p.place for p in self.points}))
        repeats = self.costs.of_repeats(self._wanted.repeats, self._wanted.launches, max(1, places))
        return max(whole / 2, min(MOST_KEPT * whole, SLACK * repeats))

    def _warm_up(self) -> None:
        """The default once, unrecorded, in a group of its own: the first launch of all reads files
        from the disk, and its times are the limits of all later ones.
        """
        measurement = self._measured(self._source.default)
        if (failure := measurement.failure) is not None:
            tail = "\n".join(f"  | {line}" for line in failure["tail"][-8:])
            log = self._measurer.store.paths.folder / (failure["log"] or "")
            raise StudyError(
                f"the default itself fails ({failure['kind']}): {failure['message']}\n{tail}\n"
                f"nothing of ours was set; see {log}"
            )
        self._disturbed.clear()

    def _new_launch(self) -> list[Configuration] | None:
        """The default of an environment and what is new there; None when nothing new is left."""
        most = self._wanted.points
        measured = self.measured
        room = GROUP if most is None else min(GROUP, most - len(measured))
        if room <= 0:
            return None
        fresh = self._source.default if not self._bases else None
        fresh = fresh or self._source.environment(self._bases)
        visits = {
            p: len({x.launch for x in self.points if x.place == p})
            for p in self._bases
            if not self._fails_at(p)
        }
        known = [self._bases[p] for p in sorted(visits, key=lambda p: visits[p])]
        for base in known if fresh is None else [fresh]:
            place, is_new = self._source.place(base), key(base) not in measured
            count = min(GROUP - 1, room - is_new)
            others = self._source.beside(base, measured, count)
            if others or is_new:
                self._bases[place] = base
                return [base, *others]
        return None

    def _next_launch(self) -> tuple[list[Configuration], str] | None:
        """A launch that repeats, or a new one: at random, so that both are spread over the time,
        and the new ones only of the time that the repeats leave.
        """
        lacking = self._lacking(self._repeated)
        if not lacking and len(self._repeated) < self._wanted.repeats:
            more = [name for name in self._chosen() if name not in self._repeated]
            self._repeated += more[: self._wanted.repeats - len(self._repeated)]
            lacking = self._lacking(self._repeated)
        spare = self._left() - self.costs.of(counts.values() for counts in lacking.values())
        affords = spare > self.costs.launch + GROUP * self.costs.measurement
        if not lacking or (affords and self._draw.random() < spare / self._left()):
            if (new := self._new_launch()) is not None:
                return new, "new"
        if not lacking:
            return None
        place = max(lacking, key=lambda p: (max(lacking[p].values()), sum(lacking[p].values())))
        names = sorted(lacking[place], key=lambda name: -lacking[place][name])[:GROUP]
        return [self._known[name] for name in names], "repeats"

    def _lacking(self, names: Iterable[str]) -> dict[str, dict[str, int]]:
        """By place, how many launches these configurations lack; only what lacks any."""
        done: dict[str, set[int]] = {}
        for point in self.points:  # failed ones too, or they would be tried for ever
            done.setdefault(point.name, set()).add(point.launch)
        found: dict[str, dict[str, int]] = {}
        for name in names:
            least = DEFAULT_LAUNCHES if name == self._default else 0
            lacks = max(self._wanted.launches, least) - len(done.get(name, ()))
            if lacks > 0:
                place = self._source.place(self._known[name])
                found.setdefault(place, {})[name] = lacks
        return found

    def _chosen(self) -> list[str]:
        """As many as can be repeated in the time left, at as many places as that allows."""
        places, left = len({point.place for point in self.points}), self._left()
        names = [self._default]
        for count in range(self._wanted.repeats, 0, -1):
            most = min(places, math.ceil(count / A_PLACE))
            for several in range(most, min(2, most) - 1, -1):
                names = choose(self.points, self._default, count, several)
                lacking = self._lacking(names).values()
                if SLACK * self.costs.of(counts.values() for counts in lacking) <= left:
                    return names
        return names

    def _launch(self, configurations: list[Configuration], why: str, *, keep: float = 0.0) -> bool:
        """Measure these in one launch in random order; nothing that is expected to take more than
        what is left but for `keep` seconds. Returns whether all were measured.
        """
        self._draw.shuffle(configurations)
        if not self.points:  # a recording without the default would be of no use
            configurations.sort(key=lambda each: key(each) != self._default)
        began = time.monotonic()
        self._measurer.close()
        for number, configuration in enumerate(configurations):
            cost = self.costs.measurement + (0.0 if number else self.costs.launch)
            if self._left() - keep < cost:
                return False
            self._write(self._measured(configuration))
            now = time.monotonic()
            (self.costs.others if number else self.costs.firsts).append(now - began)
            began = now
            if self._fails_at(self.points[-1].place):
                break
        self._say_launch(why, number + 1)
        return True

    def _fails_at(self, place: str) -> bool:
        """Whether the process environment itself is to blame: nothing has worked in it."""
        found = [point.speed for point in self.points if point.place == place]
        return len(found) >= HOPELESS and all(speed is None for speed in found)

    def _measured(self, configuration: Configuration) -> Measurement:
        self._stop.check()
        store = self._measurer.store
        subject = Subject(configuration, "search", "landscape", len(store.trials))
        # Not by the measurer, which would measure again: rows are what a moment gives.
        before = read(self._measurer.gpus)
        measurement, _ = self._measurer.measure(subject, lambda _: None)
        after, ours = read(self._measurer.gpus), self._measurer.memory_is_ours
        self._disturbed += taints(before, after, allow_busy=not ours)[:1]
        store.add(measurement)
        return measurement

    def _write(self, measurement: Measurement) -> None:
        first = measurement.launch not in self._numbers
        launch = self._numbers.setdefault(measurement.launch, len(self._numbers))
        row = row_of(measurement, self._source.names, launch, first=first)
        self._out.write(json.dumps(row) + "\n")
        self._out.flush()
        name = key(measurement.configuration)
        self._known.setdefault(name, measurement.configuration)
        speed = statistics.median(row["windows"]) if row["windows"] else None
        place = self._source.place(measurement.configuration)
        self.points.append(Point(name, place, launch, speed))
        if "failed" in row:
            say(f"failed ({row['failed']}): {self._text(name)}")

    def _left(self) -> float:
        return self._began + 60 * self._wanted.minutes - time.monotonic()

    def _text(self, name: str) -> str:
        """What a configuration sets."""
        changed = changes(self._known[name], self._source.default)
        return " ".join(f"{n}={json.dumps(v)}" for n, v in changed.items()) or "default"

    def _say_launch(self, why: str, count: int) -> None:
        best = max(speeds(self.points).values(), default=math.nan)
        spent = self._wanted.minutes - self._left() / 60
        place = json.loads(self.points[-1].place)
        where = " ".join(f"{n}={v}" for n, v in place.items()) or "nothing set at the start"
        say(
            f"{spent:4.1f} of {self._wanted.minutes:g} min  launch {self.points[-1].launch} "
            f"({why}): {count} measured, {where}; fastest so far {best:.6g} samples/s"
        )

    def summary(self) -> list[str]:
        """What was recorded, line by line."""
        found, launches = speeds(self.points), {point.launch for point in self.points}
        places = {point.place for point in self.points}
        spent = self._wanted.minutes - self._left() / 60
        lines = [
            f"points {len(self.measured)}, environments {len(places)}, measurements "
            f"{len(self.points)}, launches {len(launches)}, minutes {spent:.1f}"
        ]
        if failed := sum(point.speed is None for point in self.points):
            lines.append(f"{failed} of the measurements failed")
        if self._disturbed:
            count = len(self._disturbed)
            lines.append(f"{count} of the measurements were disturbed: {self._disturbed[0]}")
        if self._default in found:
            lines.append(f"default  {found[self._default]:.6g} samples/s")
        if found:
            best = max(found, key=lambda name: found[name])
            lines.append(f"fastest  {found[best]:.6g} samples/s  {self._text(best)}")
        return lines + self._repeats_told(found)

    def _repeats_told(self, found: Mapping[str, float]) -> list[str]:
        runs: dict[str, dict[int, float]] = {}
        for point in self.points:
            if point.speed is not None:
                runs.setdefault(point.name, {})[point.launch] = point.speed
        several = {name: list(run.values()) for name, run in runs.items() if len(run) > 1}
        if not several:
            return ["no configuration was measured in two launches: give more --minutes"]
        whole = [n for n in several if len(several[n]) >= self._wanted.launches]
        lines = [
            f"repeated in 2 launches or more: {len(several)} configurations, {len(whole)} of them "
            f"in {self._wanted.launches} or more; spread of one launch "
            f"{100 * launch_spread(list(several.values())):.2f} %"
        ]
        for name in sorted(several, key=lambda name: -found[name]):
            lines.append(
                f"  {100 * launch_spread([several[name]]):6.2f} %  {len(several[name]):2} launches"
                f"  {found[name]:10.6g} samples/s  {self._text(name)}"
            )
        asked = min(self._wanted.repeats, len(found))
        if len(whole) < asked or self._lacking([self._default]):
            lines.append(
                f"fewer repeats than asked for: {asked} configurations in {self._wanted.launches} "
                "launches did not fit; give more --minutes"
            )
        return lines


def row_of(measurement: Measurement, names: Iterable[str], launch: int, *, first: bool) -> Row:
    """A line of the file. `first`: of its launch, whose start it carries."""

    def spent(*phases: str) -> float:
        return round(sum(measurement.seconds.get(phase, 0.0) for phase in phases), 3)

    windows = [] if measurement.result is None else measurement.result["windows"]
    rates = [w["samples"] / max(w["rank_seconds"]) for w in windows if w["counts"]]
    row: Row = {
        "launch": launch,
        **{name: measurement.configuration[name] for name in names},
        "windows": [float(f"{rate:.6g}") for rate in rates],
        "setup_s": spent("build", "first_step", "check"),
        "warm_s": spent("warmup"),
        "measure_s": spent("measure"),
        "launch_s": spent("host", "start") if first else 0,
    }
    if measurement.failure is not None:
        row["failed"] = measurement.failure["kind"]
    return row


def run(options: SearchOptions, wanted: Wanted, out: Path) -> None:
    """Record into a new file. Raises NccltuneError."""
    end_old()
    with logs_folder() as logs, started(options, cache_folder()) as start:
        tell_setting(start.found)
        if not options.allow_busy:
            refuse_busy(start.found.gpus)
        refuse_empty(resolve_space(start.found, None))  # a mistake is told before anything
        measurer = measurer_for(start, logs)
        source = Source(measurer.space, lambda c: measurer.effective(c).process_env, wanted.seed)
        if not source.names:
            raise UsageError("nothing to record: no parameter but batch_size is searched")
        with out.open("x") as file:
            recorder = Recorder(measurer, source, wanted, file, start.stop)
            try:
                recorder.record()
            finally:
                measurer.close()
                if not recorder.points:
                    out.unlink()
                tell("\n".join(recorder.summary() if recorder.points else ["nothing was recorded"]))
        for note in dict.fromkeys(start.launcher.warnings):
            say(f"note: {note}")


def measurer_for(start: Start, logs: Path) -> Measurer:
    """As a search has it, after its first launch. Its own records go to `logs`."""
    found = start.found
    plain = plain_launcher(start.launcher, start.stop)
    probe = first_launch(found, start.launcher, plain, logs / "probe", cache_folder())
    space = resolve_space(found, probe)
    refuse_empty(space)
    say(tables.space_text(space))
    paths = StudyPaths(logs / "landscape")
    paths.folder.mkdir()
    return Measurer(
        store=Store(paths),
        launcher=start.launcher,
        task=found.task,
        space=space,
        nccl=nccl_version(found, probe),
        config_fields=frozenset(found.job["nccl_config_fields"]),
        settings=settings_for(found.options.measure_seconds),
        site=found.site,
        memory_is_ours=not found.options.allow_busy,
        gpus=found.gpus,
    )


def parse(arguments: Sequence[str]) -> tuple[SearchOptions, Wanted, Path]:
    """Raises UsageError; ends the process where argparse does."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a new file")
    parser.add_argument("--minutes", type=float, required=True, help="of measuring, at most")
    parser.add_argument("--points", type=int, metavar="N", help="most configurations")
    parser.add_argument("--repeats", type=int, default=14, help="configurations to repeat")
    parser.add_argument("--repeat-launches", type=int, default=6, help="launches of each of them")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    own, dashes, job = list(arguments), "--" in arguments, []
    if dashes:
        at = own.index("--")
        own, job = own[:at], own[at + 1 :]
    given = parser.parse_args(own)
    if not 0 < given.minutes < math.inf:
        raise UsageError(f"--minutes must be a number above 0, got {given.minutes}")
    for name in ("points", "repeats", "repeat_launches"):
        if (value := getattr(given, name)) is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be 1 or more, got {value}")
    options = options_again(shlex.join(["nccltune", "search", *job]))
    if options.script:
        raise UsageError("only nccltune's own job can be recorded: a script has no live group")
    if given.out.exists() or not os.access(given.out.absolute().parent, os.W_OK):
        raise UsageError(f"--out {given.out}: is there already, or cannot be made there")
    wanted = Wanted(given.minutes, given.points, given.repeats, given.repeat_launches, given.seed)
    return options, wanted, given.out


def main() -> int:
    """Returns the exit code, as that of nccltune."""
    try:
        run(*parse(sys.argv[1:]))
    except Interrupted as error:
        say(f"{error}; what was measured is in the file")
        return error.exit_code
    except NccltuneError as error:
        say(f"error: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
