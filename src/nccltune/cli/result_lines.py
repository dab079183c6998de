"""The sentences of a result, under the tables of a study."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Any

from nccltune.launch.script import ScriptCommand
from nccltune.output import verdicts, words
from nccltune.space import changes
from nccltune.study.generations import FIRST, current, read_history
from nccltune.study.importance import importance, why_unknown
from nccltune.study.outcomes import (
    Outcome,
    larger_line,
    larger_outcome,
    own_outcome,
    proof_lines,
    settings_without_effect,
    tainted,
    verdict_line,
)
from nccltune.study.summary import Summary
from nccltune.study.together import confirmed_elsewhere, told

_MATTERED = 4  # parameters that are named in the line of what mattered
_LEAST_SHARE = 0.05


def summary_lines(summary: Summary) -> list[str]:
    """The sentences under the tables."""
    elsewhere = confirmed_elsewhere(summary.paths, len(summary.trials))
    verdict = f"Verdict: {verdict_line(summary)}." if elsewhere is None else told(elsewhere)
    lines = [verdict, *_what_pays(summary)]
    failures = summary.failures()
    pruned = sum(t.state == "pruned" for t in summary.trials)
    listed = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in failures.items())
    lines.append(
        f"Trials: {len(summary.trials)}, {sum(failures.values())} failed"
        f"{f' ({listed})' if listed else ''}, {pruned} cut early."
    )
    spent = summary.time_spent()
    total = sum(spent.values()) or 1.0
    shares = ", ".join(
        f"{n} {words.duration(s)} ({100 * s / total:.0f}%)" for n, s in spent.items()
    )
    lines.append(f"Time in launches: {words.duration(total)}: {shares}.")
    lines += _what_mattered(summary)
    files = written_files(summary)
    if files:
        lines.append(f"Written: {', '.join(files)}")
    if summary.unpinned:
        names = " ".join(summary.unpinned)
        lines.append(f"Measured without {names} (--unpin): unset it in the job's environment too")
    return [*lines, *_how_to_use(summary)] if files else lines


def _what_mattered(summary: Summary) -> list[str]:
    """The parameters that the search's values depend on most, or why that is not known, in one
    line; none where no candidate was measured.
    """
    if len(summary.trials) < 2:
        return []
    found = importance(summary.trials, summary.space)
    if found is None:
        return [f"What mattered: {why_unknown(summary.trials, summary.space)}."]
    first = [(name, share) for name, share in found.items() if share >= _LEAST_SHARE][:_MATTERED]
    others = list(found.values())[len(first) :]
    told = ", ".join(f"{name} {share:.2f}" for name, share in first)
    rest = f"; {len(others)} others, at most {max(others):.2f} each" if others else ""
    about = "PED-ANOVA of the search's values: shares of 1, a rank and no gain"
    return [f"What mattered ({about}): {told}{rest}."]


def _what_pays(summary: Summary) -> list[str]:
    """What the settings carry, what was dropped, and what a larger batch gives."""
    own, lines = summary.own, []
    if own is not None and own.verdict is not None:
        settings = words.settings(changes(own.configuration, summary.space.baseline))
        lines.append(f"  of trial {own.trial}: {settings}")
    if own is not None and own.faster:
        for name, found in own.shares.items():
            lines.append(f"  {verdicts.share(name, found)}")
        for name, found in own.dropped.items():
            lines.append(f"  dropped, not shown to pay: {verdicts.share(name, found)}")
    if silent := settings_without_effect(summary):
        lines.append(f"  {verdicts.no_effect(silent)}")
    if own is not None and own.faster:
        lines += [f"  {line}" for line in proof_lines(summary)]
        lines.append(f"  {verdicts.through_files(own.files)}")
    if own is not None and own.verdict is not None and (taint := tainted(summary, larger=False)):
        lines.append(f"  {taint}")
    if summary.larger is None:
        return lines
    lines.append(f"With a larger batch: {larger_line(summary)}.")
    with_larger = summary.with_larger
    known = with_larger is not None and with_larger.verdict is not None
    if known and (taint := tainted(summary, larger=True)):
        lines.append(f"  {taint}")
    outcome = larger_outcome(summary)
    if outcome is not None:
        lines.append(f"  {_larger_note(summary, outcome)}")
    return lines


def _larger_note(summary: Summary, outcome: Outcome) -> str:
    measurement = summary.given_to(outcome.configuration)
    memory = summary.definition["machine"]["gpu_memory_bytes"]
    left = ""
    if memory and measurement.result is not None:
        free = min(memory) - max(measurement.result["peak_memory_bytes"])
        left = f" leaves {words.size(free)} of a GPU's memory;"
    tried = "" if outcome.verdict is None else "; its file was not tried by plain torchrun launches"
    return (
        f"batch {measurement.effective['batch_size']} a rank:{left} the learning rate, and what "
        f"training arrives at, change with it{tried}"
    )


def _how_to_use(summary: Summary) -> list[str]:
    """The command that takes the result into a job; none where the defaults won."""
    outcome, paths = own_outcome(summary), summary.paths
    if outcome is None or outcome.trial.number == 0:
        return []
    lines = []
    given = summary.given_to(outcome.configuration).effective
    if "script" in summary.definition["workload"]:
        best = shlex.quote(os.path.normpath(paths.best_yaml))
        job = shlex.join(_script_words(summary.definition["workload"], given.get("placed") or {}))
        return [f"Use it:  nccltune run {best} -- {job}"]
    if given["env"]:
        file = shlex.quote(os.path.normpath(paths.best_env))
        lines.append(f"Use it in a shell:   set -a; . {file}; set +a; torchrun ...")
    changed = changes(outcome.configuration, summary.space.baseline)
    if any(p.name in changed and p.target in ("ddp", "loader") for p in summary.space.parameters):
        call = f'nccltune.load("{os.path.normpath(paths.best_yaml)}")'
        lines.append(f"Use it in a script:  best = {call}; DDP(model, **best.ddp_kwargs)")
    return lines


def _script_words(workload: Mapping[str, Any], placed: Mapping[str, str]) -> list[str]:
    """The torchrun command with the winner's values in it."""
    words = [*ScriptCommand(tuple(workload["script"])).filled(placed)]
    if words[0] == "torchrun":
        return words
    return ["torchrun", "--standalone", f"--nproc-per-node={workload['nproc_per_node']}", *words]


def kept_elsewhere(summary: Summary) -> bool:
    """Whether best.yaml is of a later generation, or of another tuner."""
    later = current(read_history(summary.paths)) != FIRST
    return later or confirmed_elsewhere(summary.paths, len(summary.trials)) is not None


def written_files(summary: Summary) -> list[str]:
    paths = summary.paths
    files = (paths.best_env, paths.best_yaml, paths.best_batch_yaml)
    return [os.path.normpath(file) for file in files if file.exists()]
