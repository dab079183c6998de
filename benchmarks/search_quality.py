"""How soon samplers find good settings: replays of landscapes, recorded and made up.

    .venv/bin/python benchmarks/search_quality.py [--seeds 200] [--landscape FILE ...]
        [--sampler NAME ...] [--json FILE|-] [--quick] [--keep FOLDER]

Every sampler begins at the default configuration and has the same rules (quality/replay.py) and,
for a seed, the same luck. Regret is how much slower than the best configuration the answer of the
search truly is. The rows: `guided` as `nccltune search` has it; `guided-no-presets` without presets
and without a word about which parameters act together; `guided-best-value` with the highest
measured value as its answer, as the others have; `guided-disguised` is `guided-no-presets` with
parameters renamed and everything in another order. The exit code is 1 when a bar is missed (listed
at the end). `--keep` writes regrets by seed and reads again what is there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from quality.landscapes import Landscape, recorded
from quality.ours import Guided, disguised
from quality.peers import PEERS
from quality.replay import Searcher, replay
from quality.synthetic import KINDS, synthetic

TRIALS = (10, 20, 40)
SEEDS = 200
FIRST = 1000  # the sampler was worked out on the first two hundred
QUICK_SEEDS = 6
RECORDED = Path(__file__).resolve().parent / "landscapes"
POOR = 0.03  # regret of random above which guided has to halve it at 20 trials

Make = Callable[[Landscape, int], Searcher]
OURS: Mapping[str, Make] = {
    "guided": partial(Guided, presets=True),
    "guided-no-presets": partial(Guided, presets=False),
    "guided-best-value": partial(Guided, presets=True, recommends=False),
    "guided-disguised": lambda landscape, seed: Guided(landscape, seed, presets=False),
}
SAMPLERS: Mapping[str, Make] = {**OURS, **PEERS}


@dataclass(frozen=True)
class Runs:
    """Replays of one sampler on one landscape, a row a seed. Shapes (seeds, trials)."""

    regret: NDArray[np.float64]
    seconds: NDArray[np.float64]

    def at_trial(self, trials: int) -> NDArray[np.float64]:
        return np.asarray(self.regret[:, trials - 1])

    def at_seconds(self, seconds: float) -> NDArray[np.float64]:
        """Regret of the last answer that was there by then; the default's before any."""
        done = np.maximum((self.seconds <= seconds).sum(axis=1) - 1, 0)
        return np.asarray(self.regret[np.arange(len(done)), done])


def _landscape(source: str, seed: int) -> Landscape:
    """`source` is the path of a recording or the name of a kind."""
    return synthetic(source, seed) if source in KINDS else _recorded(source)


_READ: dict[str, Landscape] = {}


def _recorded(path: str) -> Landscape:
    if path not in _READ:
        _READ[path] = recorded(Path(path))
    return _READ[path]


def _one(source: str, sampler: str, seed: int) -> tuple[list[float], list[float]]:
    landscape = _landscape(source, seed)
    if sampler == "guided-disguised":
        landscape = disguised(landscape, seed)
    steps = replay(landscape, SAMPLERS[sampler](landscape, seed), max(TRIALS), seed)
    steps += [steps[-1]] * (max(TRIALS) - len(steps))  # it had no more to propose
    return [s.regret for s in steps], [s.seconds for s in steps]


def run(
    pool: ProcessPoolExecutor, source: str, sampler: str, seeds: int, keep: Path | None
) -> Runs:
    file = None if keep is None else keep / f"{Path(source).stem}.{sampler}.{seeds}.json"
    if file is not None and file.exists():
        rows = json.loads(file.read_text())
    else:
        rows = list(pool.map(partial(_one, source, sampler), range(FIRST, FIRST + seeds)))
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(rows))
    return Runs(np.array([r for r, _ in rows]), np.array([s for _, s in rows]))


# What is told.

Row = dict[str, Any]


def rows_of(name: str, runs: Mapping[str, Runs], budgets: Sequence[float]) -> list[Row]:
    """By trials, and by the seconds that random search needs for as many on average."""
    found = []
    for sampler, each in runs.items():
        for trials in TRIALS:
            found.append(_row(name, sampler, each.at_trial(trials), trials=trials))
        for seconds in budgets:
            regret = each.at_seconds(seconds)
            found.append(_row(name, sampler, regret, trials=None, seconds=round(seconds, 1)))
    return found


def _row(name: str, sampler: str, regret: NDArray[np.float64], **where: Any) -> Row:
    return {
        "landscape": name,
        "sampler": sampler,
        **where,
        "mean_regret": round(float(regret.mean()), 5),
        "se": round(_error(regret), 5),
        "p90_regret": round(float(np.quantile(regret, 0.9)), 5),
    }


def _error(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def _budgets(runs: Mapping[str, Runs]) -> list[float]:
    usual = runs.get("random")
    if usual is None:
        return []
    return [float(usual.seconds[:, trials - 1].mean()) for trials in TRIALS]


def misses(name: str, runs: Mapping[str, Runs], budgets: Sequence[float]) -> tuple[list[str], int]:
    """The bars that this landscape misses, and at how many places guided beats every peer."""
    if "guided" not in runs:
        return [], 0
    found, wins = [], 0
    peers = [p for p in PEERS if p in runs]
    places: list[tuple[str, Callable[[Runs], NDArray[np.float64]]]] = [
        *((f"{t} trials", partial(_at_trial, trials=t)) for t in TRIALS),
        *((f"{s:.0f} s", partial(_at_seconds, seconds=s)) for s in budgets),
    ]
    for where, regret in places:
        best = min(peers, key=lambda p: float(regret(runs[p]).mean()), default=None)
        for peer in peers:
            difference = regret(runs["guided"]) - regret(runs[peer])
            if difference.mean() > 2 * _error(difference):
                found.append(
                    f"{name}, {where}: guided is {100 * difference.mean():.2f} % worse than {peer}"
                )
            elif peer == best and difference.mean() < -2 * _error(difference):
                wins += 1
    if "random" in runs:
        random, ours = (runs[s].at_trial(20).mean() for s in ("random", "guided"))
        if random > POOR and ours > random / 2:
            found.append(
                f"{name}, 20 trials: guided {100 * ours:.2f} %, more than half of random's "
                f"{100 * random:.2f} %"
            )
    return found + _unfair(name, runs), wins


def _unfair(name: str, runs: Mapping[str, Runs]) -> list[str]:
    """Whether names or orders matter to the sampler, and whether it needs its presets."""
    found = []
    plain = runs.get("guided-no-presets")
    if plain is None:
        return []
    for trials in TRIALS:
        if "guided-disguised" in runs:
            other = runs["guided-disguised"].at_trial(trials)
            error = float(np.hypot(_error(other), _error(plain.at_trial(trials))))
            apart = float(other.mean() - plain.at_trial(trials).mean())
            if abs(apart) > 3 * error:
                found.append(f"{name}, {trials} trials: disguised is {100 * apart:+.2f} % apart")
        for peer in ("random", "tpe"):
            if peer in runs:
                difference = plain.at_trial(trials) - runs[peer].at_trial(trials)
                if difference.mean() > 2 * _error(difference):
                    found.append(f"{name}, {trials} trials: worse than {peer} without presets")
    return found


def _at_trial(runs: Runs, trials: int) -> NDArray[np.float64]:
    return runs.at_trial(trials)


def _at_seconds(runs: Runs, seconds: float) -> NDArray[np.float64]:
    return runs.at_seconds(seconds)


def table(name: str, rows: Sequence[Row]) -> str:
    """Mean regret in percent (standard error), a line a sampler."""
    places = list(dict.fromkeys((r["trials"], r.get("seconds")) for r in rows))
    heads = [f"{t} trials" if t else f"{s:.0f} s" for t, s in places]
    lines = [
        f"{name}: mean regret in %, standard error",
        " " * 20 + "".join(f"{h:>15}" for h in heads),
    ]
    for sampler in dict.fromkeys(r["sampler"] for r in rows):
        cells = [
            f"{100 * r['mean_regret']:9.2f} ({100 * r['se']:.2f})"
            for r in rows
            if r["sampler"] == sampler
        ]
        lines.append(f"{sampler:20}" + "".join(f"{cell:>15}" for cell in cells))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    sources = [str(f) for f in asked.landscape] or [
        *map(str, sorted(RECORDED.glob("*.jsonl"))),
        *KINDS,
    ]
    samplers = asked.sampler or [s for s in SAMPLERS if not (asked.quick and s == "gp")]
    seeds = QUICK_SEEDS if asked.quick and asked.seeds == SEEDS else asked.seeds
    out = sys.stderr if asked.json == "-" else sys.stdout
    everything: list[Row] = []
    missed: list[str] = []
    beaten = 0
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # one replay a core; read by processes that begin anew
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=context) as pool:
        for source in sources:
            name = f"synthetic-{source}" if source in KINDS else Path(source).stem
            runs = {s: run(pool, source, s, seeds, asked.keep) for s in samplers}
            budgets = _budgets(runs)
            rows = rows_of(name, runs, budgets)
            print(table(name, rows), end="\n\n", file=out, flush=True)
            found, wins = misses(name, runs, budgets)
            everything += rows
            missed += found
            beaten += wins > 0
    print(f"guided beats every other sampler on {beaten} of {len(sources)} landscapes", file=out)
    for line in missed:
        print(f"missed: {line}", file=out)
    if asked.quick:
        print(f"quick: {seeds} seeds and no gp; nothing is proved by it", file=out)
    _write(everything, asked.json)
    return 1 if missed and not asked.quick else 0


def _write(rows: Sequence[Row], target: str | None) -> None:
    text = "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"
    if target == "-":
        print(text, end="")
    elif target is not None:
        Path(target).write_text(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--landscape", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--sampler", action="append", choices=list(SAMPLERS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N")
    parser.add_argument("--json", metavar="FILE|-")
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    return parser


if __name__ == "__main__":
    sys.exit(main())
