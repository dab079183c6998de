"""Whether the verdict can be trusted: the tuner's own decision on simulated launches, whose true
ratio is known.

    .venv/bin/python benchmarks/trust.py [--quick] [--landscape FILE] [--json FILE|-]

A run is what the product does: 6 launches of the baseline say what the smallest gain is, then
blocks of one launch a side, in random order, at most 12, until the verdict is clear. A row is a law
that the launches follow, with as many runs where both sides are the same as runs where the
candidate gains twice the smallest gain that its run has stated. Launches follow one another in
time, so a drift goes through all of them. The last row draws launches from the recorded repeats of
the default in a landscape file. Exit code 1, with a sentence for each, when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from nccltune.stats.noise import noise_threshold
from nccltune.stats.verdict import MOST, Block, Verdict, baseline_first, settle

HERE = Path(__file__).resolve().parent
LANDSCAPE = HERE / "landscapes/h200x2-socket-resnet50.jsonl"
RUNS = 2000
NOISE_LAUNCHES = 6
GAIN = 2.0  # times the smallest gain stated
SPEED = 2500.0

FALSE_AT_MOST = 0.05
COVERED_AT_LEAST = 0.93
FOUND_AT_LEAST = 0.90
PROMISED_AT_MOST = 1.10
SMALLEST_AT_MOST = {"spread 1 %": 0.025, "spread 5 %": 0.12}

Decide = Callable[[Callable[[int], Block | None], Sequence[Sequence[float]], int], Verdict]


@dataclass(frozen=True)
class Law:
    """How launches of one configuration differ. Numbers are of the logarithm of the speed; those
    that are given act together.
    """

    name: str
    spread: float = 0.0
    """Standard deviation of a launch."""
    freedom: int | None = None
    """Student's t with so many degrees of freedom, scaled to `spread`; None: a normal law."""
    slope: float = 0.0
    """Linear drift from one launch to the next, up or down."""
    step: float = 0.0
    """Random walk: standard deviation of a step, from one launch to the next."""
    slow_share: float = 0.0
    slow_by: float = 0.0
    """So many of the launches, of either side, are slower by this fraction."""
    candidate_share: float = 0.0
    candidate_by: float = 0.0
    """The same for launches of the candidate alone; its mean is kept."""
    recorded: tuple[float, ...] = ()
    """Factors that launches are drawn from."""
    quick: bool = False

    def launches(self, draw: random.Random, count: int) -> list[float]:
        """Factors on the speed of launches that follow one another in time."""
        slope = self.slope * draw.choice((-1, 1))
        wandered = 0.0
        found = []
        for number in range(count):
            wandered += draw.gauss(0, self.step) if self.step else 0.0
            factor = math.exp(self._launch(draw) + slope * number + wandered)
            if self.slow_share and draw.random() < self.slow_share:
                factor *= 1 - self.slow_by
            found.append(factor)
        return found

    def candidate(self, draw: random.Random) -> float:
        """A further factor on the speed of a launch of the candidate, with the mean 1."""
        if not self.candidate_share:
            return 1.0
        factor = 1 - self.candidate_by if draw.random() < self.candidate_share else 1.0
        return factor / (1 - self.candidate_share * self.candidate_by)

    @property
    def one_law(self) -> bool:
        """Whether both sides follow the same law."""
        return not self.candidate_share

    def _launch(self, draw: random.Random) -> float:
        if self.recorded:
            return math.log(draw.choice(self.recorded))
        if self.freedom is None:
            return draw.gauss(0, self.spread)
        squares = draw.gammavariate(self.freedom / 2, 2)
        unit = math.sqrt(self.freedom / (self.freedom - 2))
        return self.spread / unit * draw.gauss(0, 1) / math.sqrt(squares / self.freedom)


LAWS = (
    Law("spread 0.5 %", spread=0.005),
    Law("spread 1 %", spread=0.01, quick=True),
    Law("spread 2 %", spread=0.02),
    Law("spread 5 %", spread=0.05, quick=True),
    Law("drift, linear", spread=0.01, slope=0.002, quick=True),  # 6 % in the 30 launches of a run
    Law("drift, random walk", spread=0.01, step=0.005),
    Law("bimodal, half 3 % slower", spread=0.005, slow_share=0.5, slow_by=0.03, quick=True),
    Law("bimodal, a quarter 5 % slower", spread=0.005, slow_share=0.25, slow_by=0.05),
    Law("1 % outliers", spread=0.01, slow_share=0.01, slow_by=0.25),
    Law("heavy tails", spread=0.01, freedom=3, quick=True),
    Law("candidate alone bimodal", spread=0.01, candidate_share=0.5, candidate_by=0.03, quick=True),
)


@dataclass(frozen=True)
class Row:
    """What came of the runs of a law: shares of runs, unless said otherwise. None where a row is
    not judged by it.
    """

    law: str
    runs: int
    smallest_gain: float
    """As the runs have stated it: the mean, and what one run in ten exceeds."""
    smallest_gain_p90: float
    false_verdicts: float
    within_noise: float
    coverage_same: float | None
    coverage_gain: float | None
    power: float | None
    promised_over_true: float | None
    launches_same: float
    """Of each side, the mean."""
    launches_gain: float | None


@dataclass(frozen=True)
class Run:
    stated: float
    true: float
    verdict: Verdict

    @property
    def covered(self) -> bool:
        low, high = self.verdict.low, self.verdict.high
        return low is not None and high is not None and low <= self.true <= high


def simulate(law: Law, multiple: float, draw: random.Random, decide: Decide = settle) -> Run:
    """One comparison whose true gain is `multiple` times the smallest gain stated."""
    factors = [SPEED * factor for factor in law.launches(draw, NOISE_LAUNCHES + 2 * MOST)]
    noise = [factors[:NOISE_LAUNCHES]]
    stated, seed = noise_threshold(noise), str(draw.random())
    true = 1 + multiple * stated

    def measure(number: int) -> Block:
        first = NOISE_LAUNCHES + 2 * number
        theirs = first if baseline_first(seed, number) else first + 1
        ours = 2 * first + 1 - theirs
        return factors[theirs], factors[ours] * true * law.candidate(draw)

    return Run(stated, true, decide(measure, noise, MOST))


def examine(law: Law, runs: int = RUNS, decide: Decide = settle) -> Row:
    """The same numbers each time: the law's name is the seed."""
    draw = random.Random(law.name)
    same = [simulate(law, 0.0, draw, decide) for _ in range(runs)]
    gain = [simulate(law, GAIN, draw, decide) for _ in range(runs)] if law.one_law else []
    found = [run for run in gain if run.verdict.word == "FASTER"]
    stated = [run.stated for run in same]
    return Row(
        law=law.name,
        runs=runs,
        smallest_gain=statistics.fmean(stated),
        smallest_gain_p90=statistics.quantiles(stated, n=10)[-1],
        false_verdicts=_share([run.verdict.word in ("FASTER", "SLOWER") for run in same]),
        within_noise=_share([run.verdict.word == "WITHIN_NOISE" for run in same]),
        coverage_same=_share([run.covered for run in same]) if law.one_law else None,
        coverage_gain=_share([run.covered for run in gain]) if gain else None,
        power=len(found) / len(gain) if gain else None,
        promised_over_true=(
            statistics.fmean((run.verdict.gain or 0.0) / (run.true - 1) for run in found)
            if found
            else None
        ),
        launches_same=statistics.fmean(run.verdict.launches for run in same),
        launches_gain=statistics.fmean(run.verdict.launches for run in gain) if gain else None,
    )


def _share(answers: Sequence[bool]) -> float:
    return sum(answers) / len(answers)


def missed(rows: Sequence[Row]) -> list[str]:
    """A sentence for each bar that a row misses."""
    found = []
    for row in rows:
        name = row.law
        if row.false_verdicts > FALSE_AT_MOST:
            found.append(
                f"{name}: {row.false_verdicts:.1%} of comparisons of a configuration with itself "
                f"gave a difference, allowed are {FALSE_AT_MOST:.0%}"
            )
        for where, covered in (("no gain", row.coverage_same), ("a gain", row.coverage_gain)):
            if covered is not None and covered < COVERED_AT_LEAST:
                found.append(
                    f"{name}: with {where} the interval covered the true ratio in {covered:.1%}, "
                    f"wanted are {COVERED_AT_LEAST:.0%}"
                )
        if row.power is not None and row.power < FOUND_AT_LEAST:
            found.append(
                f"{name}: a gain of {GAIN:g} times the smallest was found in {row.power:.1%}, "
                f"wanted are {FOUND_AT_LEAST:.0%}"
            )
        if row.promised_over_true is not None and row.promised_over_true > PROMISED_AT_MOST:
            found.append(
                f"{name}: the gain printed is {row.promised_over_true:.3f} times the true one, "
                f"allowed are {PROMISED_AT_MOST:g}"
            )
        smallest = SMALLEST_AT_MOST.get(name)
        if smallest is not None and row.smallest_gain > smallest:
            found.append(
                f"{name}: the smallest gain is {row.smallest_gain:.2%}, allowed are {smallest:.1%}"
            )
    return found


def launch_factors(path: Path) -> tuple[float, ...]:
    """What launches of the default process environment differ by, from a landscape file: for each
    configuration that several of them measured, the mean rate of a launch over that of all.

    Raises: ValueError, in one line, when the file is damaged or has no repeated default.
    """
    rates: dict[tuple[str, str], dict[int, list[float]]] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
            default = all(row[name] is None for name in ("nsocks", "nthreads", "buffsize"))
            configuration = (json.dumps(row["algo"]), json.dumps(row["bucket_cap_mb"]))
            launch, windows = row["launch"], row["windows"]
        except KeyError as error:
            raise ValueError(f"{where}: no {error.args[0]}") from error
        except (ValueError, TypeError) as error:
            raise ValueError(f"{where}: not a row of a landscape") from error
        if type(launch) is not int:
            raise ValueError(f"{where}: launch must be a number")
        if not isinstance(windows, list) or not windows or not all(map(_is_rate, windows)):
            raise ValueError(f"{where}: windows must be rates above 0")
        if default:
            rates.setdefault(configuration, {}).setdefault(launch, []).extend(windows)
    factors: list[float] = []
    for launches in rates.values():
        if len(launches) > 1:
            means = [statistics.fmean(windows) for windows in launches.values()]
            factors += [mean / statistics.fmean(means) for mean in means]
    if not factors:
        raise ValueError(
            f"{path}: the default (nsocks, nthreads and buffsize null) is not repeated: "
            "two launches at least have to measure the same configuration"
        )
    return tuple(factors)


def _is_rate(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and value > 0


def summary(rows: Sequence[Row]) -> dict[str, float | None]:
    """The worst of all rows, for each of the bars."""
    covered = [c for row in rows for c in (row.coverage_same, row.coverage_gain) if c is not None]
    powers = [row.power for row in rows if row.power is not None]
    promised = [row.promised_over_true for row in rows if row.promised_over_true is not None]
    return {
        "false_verdict_rate_max": max(row.false_verdicts for row in rows),
        "coverage_min": min(covered, default=None),
        "power_min": min(powers, default=None),
        "promised_over_true_max": max(promised, default=None),
    }


HEADS = (
    "launches follow|smallest gain|false|within|covered||power|promised|launches|".split("|"),
    "|mean, 90th pct|verdicts|noise|no gain|gain||/ true|no gain|gain".split("|"),
)


def table(rows: Sequence[Row]) -> str:
    lines = [list(head) for head in HEADS]
    for row in rows:
        lines.append(
            [
                row.law,
                f"{row.smallest_gain:.2%}, {row.smallest_gain_p90:.2%}",
                f"{row.false_verdicts:.2%}",
                f"{row.within_noise:.1%}",
                _shown(row.coverage_same, ".1%"),
                _shown(row.coverage_gain, ".1%"),
                _shown(row.power, ".1%"),
                _shown(row.promised_over_true, ".3f"),
                f"{row.launches_same:.1f}",
                _shown(row.launches_gain, ".1f"),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = [text.rjust(width) for text, width in zip(line, widths, strict=True)]
    return "  ".join([line[0].ljust(widths[0]), *cells[1:]]).rstrip()


def _rounded(row: Row) -> dict[str, Any]:
    return {name: _round(value) for name, value in asdict(row).items()}


def _round(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer laws, as many runs of each")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"runs of a setting ({RUNS})")
    parser.add_argument(
        "--landscape",
        type=Path,
        default=LANDSCAPE,
        metavar="FILE",
        help="draw launches from this recorded landscape",
    )
    parser.add_argument("--json", metavar="FILE|-", help="figures and rows as JSON")
    args = parser.parse_args()
    if args.runs < 2:
        parser.error("--runs must be 2 at least")
    try:
        factors = launch_factors(args.landscape)
    except (OSError, ValueError) as error:
        print(f"trust.py: {error}", file=sys.stderr)
        return 2
    laws = [law for law in LAWS if law.quick or not args.quick]
    laws.append(Law(f"recorded: {args.landscape.stem}", recorded=factors))
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(laws))) as processes:
        rows = list(processes.map(examine, laws, [args.runs] * len(laws)))
    print(table(rows), file=sys.stderr)
    complaints = missed(rows)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    if args.json:
        document = {
            **{name: _round(value) for name, value in summary(rows).items()},
            "missed": complaints,
            "date": date.today().isoformat(),
            "noise_launches": NOISE_LAUNCHES,
            "launches_at_most": MOST,
            "gain": GAIN,
            "rows": [_rounded(row) for row in rows],
        }
        text = json.dumps(document, indent=1)
        print(text) if args.json == "-" else Path(args.json).write_text(text + "\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
