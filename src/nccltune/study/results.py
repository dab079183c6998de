"""From the records of a study to its answer: the best files, and the summary that is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import nccltune
from nccltune.errors import NccltuneError, StudyError
from nccltune.output.best import Best
from nccltune.output.env_file import env_file
from nccltune.space import ResolvedSpace, Value, changes, key
from nccltune.study.folder import StudyPaths, read_definition, study_names, write_text
from nccltune.study.records import Measurement, Stage, Trial, best_of
from nccltune.study.store import Store


@dataclass(frozen=True)
class Summary:
    """A study as it stands. Everything that `search` and `show` tell is in here."""

    paths: StudyPaths
    definition: Mapping[str, Any]
    space: ResolvedSpace
    trials: tuple[Trial, ...]
    measurements: Mapping[str, Measurement]

    @classmethod
    def read(cls, paths: StudyPaths) -> Summary:
        """From the folder; does not change it. Raises UsageError when no study is there."""
        definition = read_definition(paths)
        return cls.of(Store(paths, repair=False), definition)

    @classmethod
    def of(cls, store: Store, definition: Mapping[str, Any]) -> Summary:
        return cls(
            paths=store.paths,
            definition=definition,
            space=ResolvedSpace.from_dict(definition["space"]),
            trials=tuple(store.trials),
            measurements={m.id: m for m in store.measurements},
        )

    def check(self) -> None:
        """Raises StudyError when records hold something else than what we write."""
        try:
            for trial in self.trials:
                measurement = self.measurement(trial)
                text = f"{trial.seconds:.1f} {trial.value or 0.0:.1f} {trial.state.upper()}"
                assert text and isinstance(trial.number, int) and key(trial.parameters)
                assert isinstance(measurement.effective["env"], dict)
                assert isinstance(measurement.nccl, (dict, type(None)))
                if measurement.result is not None:
                    assert isinstance(measurement.result["windows"], list)
            self.ranking(), self.failures(), self.time_spent(), self.winner, self.larger
        except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError) as why:
            raise StudyError(
                f"{self.paths.folder}: its records are damaged ({type(why).__name__}: {why}); "
                "restore the files"
            ) from why

    @property
    def baseline(self) -> Trial | None:
        return self.trials[0] if self.trials else None

    def best(self, stage: Stage) -> Trial | None:
        return best_of(list(self.trials), stage)

    @property
    def winner(self) -> Trial | None:
        """The fastest at the user's own batch size; the baseline itself when nothing beat it."""
        return self.best("search")

    @property
    def larger(self) -> Trial | None:
        """The fastest with a larger batch, if it is faster than the winner."""
        found, winner = self.best("batch"), self.winner
        if found is None or winner is None or (found.value or 0) <= (winner.value or 0):
            return None
        return found

    def measurement(self, trial: Trial) -> Measurement:
        return self.measurements[trial.measurements[-1]]

    def changes(self, trial: Trial) -> dict[str, Value]:
        return changes(trial.parameters, self.space.baseline)

    def ranking(self) -> list[Trial]:
        """Complete trials, fastest first; of equal configurations only one."""
        complete = [t for t in self.trials if t.state == "complete"]
        first: dict[str, Trial] = {}
        for trial in sorted(complete, key=lambda t: -(t.value or 0)):
            first.setdefault(key(trial.parameters), trial)
        return list(first.values())

    def failures(self) -> dict[str, int]:
        kinds = [t.failure for t in self.trials if t.failure]
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}

    def time_spent(self) -> dict[str, float]:
        """Seconds of all trials: launching, warming up, measuring, checking, everything else."""
        phases = ("launching", "warming up", "measuring", "checking", "other")
        spent = dict.fromkeys(phases, 0.0)
        names = {
            "host": "launching",
            "start": "launching",
            "close": "launching",
            "check": "checking",
            "verify": "checking",
            "build": "warming up",
            "first_step": "warming up",
            "warmup": "warming up",
            "measure": "measuring",
        }
        for measurement in self.measurements.values():
            for phase, seconds in measurement.seconds.items():
                spent[names.get(phase, "other")] += seconds
        return spent


def read_all(studies_dir: Path) -> tuple[list[Summary], list[str]]:
    """The studies below a folder, newest first, and why others cannot be read."""
    summaries, unreadable = [], []
    for name in study_names(studies_dir):
        try:
            summary = Summary.read(StudyPaths(studies_dir / name))
            summary.check()
            summaries.append(summary)
        except NccltuneError as error:
            unreadable.append(str(error))
    return summaries, unreadable


def write_results(summary: Summary) -> list[str]:
    """Write best.env, best.yaml and, where a larger batch is faster, best-batch.yaml.

    Returns: the names of the files written, in that order; none before the baseline is measured.
    """
    paths, winner = summary.paths, summary.winner
    if winner is None:
        return []
    best = _best(summary, winner)
    write_text(paths.best_env, env_file(best.env, _header(summary, winner)))
    write_text(paths.best_yaml, best.to_yaml())
    written = [paths.best_env.name, paths.best_yaml.name]
    larger = summary.larger
    if larger is None:
        paths.best_batch_yaml.unlink(missing_ok=True)
        return written
    write_text(paths.best_batch_yaml, _best(summary, larger).to_yaml())
    return [*written, paths.best_batch_yaml.name]


def _best(summary: Summary, trial: Trial) -> Best:
    given = summary.measurement(trial).effective
    baseline = summary.baseline
    assert baseline is not None
    return Best(
        env=given["env"],
        ddp=given["ddp"],
        loader=given["loader"],
        batch_size=given["batch_size"],
        workload={
            **summary.definition["workload"],
            "launcher": summary.measurement(trial).launcher,
        },
        verdict=None,
        machine=summary.definition["machine"],
        provenance={
            "nccltune": nccltune.__version__,
            "study": summary.paths.name,
            "trial": trial.number,
            "trials": len(summary.trials),
            "date": datetime.now().astimezone().isoformat(timespec="seconds"),
            "command": summary.definition["command"],
            "search_value": trial.value,
            "baseline_value": baseline.value,
            "unit": "samples/s of all ranks; search values rank candidates, they are no gain",
            "nccl": _nccl_version(summary),
        },
    )


def _nccl_version(summary: Summary) -> str | None:
    probe = summary.definition.get("probe") or {}
    version = probe.get("version")
    return None if version is None else str(version)


def _header(summary: Summary, winner: Trial) -> list[str]:
    machine = summary.definition["machine"]
    gpus = [f"{machine['gpus'].count(n)}x {n}" for n in dict.fromkeys(machine["gpus"])]
    hardware = ", ".join(gpus) or f"{machine['cores']} CPU cores, no GPU"
    lines = [
        f"nccltune {nccltune.__version__}: study {summary.paths.name}, trial {winner.number} of "
        f"{len(summary.trials)}",
        f"date: {datetime.now().astimezone().isoformat(timespec='seconds')}",
        f"command: {summary.definition['command']}",
        f"machine: {hardware}; driver {machine['driver'] or 'none'}; "
        f"NCCL {_nccl_version(summary) or 'none'}; torch {machine['torch']}",
        f"verdict: {verdict_line(summary)}",
    ]
    if not summary.measurement(winner).effective["env"]:
        lines.append("no variable to set: keep NCCL's defaults")
        if winner.number:
            lines.append("what this trial changed is in best.yaml, for nccltune.load")
    return lines


def verdict_line(summary: Summary) -> str:
    """What may be said without confirmation: nothing about a gain."""
    winner, baseline = summary.winner, summary.baseline
    if len(summary.trials) < 2:
        return "no candidate was measured yet"
    if winner is None or baseline is None or winner.number == baseline.number:
        return "no setting measured faster than the baseline; keep the defaults"
    return "not confirmed: the fastest in the search, which noise alone can make a trial"
