"""What `search` and `show` print on stdout: tables of a study, and the same as JSON values."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from nccltune.cli.result_lines import kept_elsewhere, summary_lines
from nccltune.cli.speaking import let_go_of_stdout
from nccltune.nccl.findings import printable
from nccltune.output import words
from nccltune.space import ResolvedSpace
from nccltune.study.budget import trial_seconds
from nccltune.study.generations import FIRST, current, read_history
from nccltune.study.outcomes import Outcome, larger_outcome, own_outcome, tried_nothing
from nccltune.study.records import Trial
from nccltune.study.summary import Ranked, Summary

_SHOWN = 8
_SHOWN_LARGER = 3
_WORDS = {
    "FASTER": "faster",
    "SLOWER": "slower: keep the defaults",
    "WITHIN_NOISE": "keep the defaults",
    "INCONCLUSIVE": "inconclusive",
}
_PLAIN_WIDTH = 120  # where no terminal says otherwise


def console_on(file: TextIO) -> Console:
    width = shutil.get_terminal_size().columns if file.isatty() else _PLAIN_WIDTH
    return harmless(_ReadersMayLeave(file=file, width=width, highlight=False))


class _ReadersMayLeave(Console):
    """One that goes on where rich itself would end the process, as with `| head`."""

    def on_broken_pipe(self) -> None:
        let_go_of_stdout()


def harmless(console: Console) -> Console:
    """The console, which from now on prints nothing that a terminal would act on but its own."""
    console.push_render_hook(_Harmless())
    return console


class _Harmless(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Printable(each) for each in renderables]


@dataclass(frozen=True)
class _Printable:
    """A thing to print whose texts are made harmless when they are laid out."""

    inner: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.inner, options):
            text = segment.text if segment.control else printable(segment.text, lines=True)
            yield Segment(text, segment.style, segment.control)


def table_of(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title, justify in columns:
        table.add_column(title, justify=justify, overflow="fold")  # type: ignore[arg-type]
    return table


def facts_table(rows: Sequence[tuple[str, str]]) -> Table:
    """Names and what is known of them."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, text in rows:
        table.add_row(Text(name, style="bold"), Text(text))
    return table


def space_text(space: ResolvedSpace) -> str:
    """What will be searched, what will not, and why."""
    table = table_of(("parameter", "left"), ("searched", "left"), ("baseline", "left"))
    for parameter in space.parameters:
        table.add_row(
            Text(parameter.name),
            Text(parameter.allowed()),
            Text(words.value(space.baseline[parameter.name])),
        )
    for name, value in space.fixed.items():
        table.add_row(Text(name), Text("held constant"), Text(words.value(value)))
    text = io.StringIO()
    Console(file=text, width=_PLAIN_WIDTH, highlight=False).print(table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    notes = [f"{n.action}: {n.parameter}: {n.reason}" for n in space.notes if n.action != "fixed"]
    return "\n".join([*lines, *notes])


def print_summary(summary: Summary) -> None:
    """The best trials against the baseline, where the time went, what was written."""
    console = console_on(sys.stdout)
    baseline = summary.baseline
    if baseline is None:
        console.print(Text(f"study {summary.paths.folder}: no trial yet"))
        return
    ranking = summary.ranking("search")
    elsewhere = kept_elsewhere(summary)
    chosen = None if elsewhere else own_outcome(summary)
    own = ranking[:_SHOWN]
    own += [r for r in ranking[_SHOWN:] if 0 in r.trials or _holds(chosen, r)]
    console.print()
    console.print(Text(f"Best settings at the user's batch size ({_search_values(summary)}):"))
    _print_ranking(console, summary, own, chosen, "best.yaml")
    if larger := summary.ranking("batch")[:_SHOWN_LARGER]:
        chosen = None if elsewhere else larger_outcome(summary)
        console.print()
        console.print(Text("With larger batches (another training: adapt the learning rate):"))
        _print_ranking(console, summary, larger, chosen, "best-batch.yaml")
    console.print()
    for line in summary_lines(summary):
        console.print(Text(line))
    holds = current(read_history(summary.paths))
    if holds != FIRST:
        console.print(
            Text(
                f"Retuned since: best.env and best.yaml are those of generation {holds}; "
                f"`nccltune show {summary.paths.name} --history` has all of them"
            )
        )


def _search_values(summary: Summary) -> str:
    if summary.own is None or summary.own.verdict is None:
        return "estimates from all measurements of the search, not confirmed"
    return "estimates from the search, which rank them; the verdict is from fresh launches"


def _holds(chosen: Outcome | None, row: Ranked) -> bool:
    return chosen is not None and chosen.trial.number in row.trials


def _print_ranking(
    console: Console,
    summary: Summary,
    rows: Sequence[Ranked],
    chosen: Outcome | None,
    file: str,
) -> None:
    """One row a configuration. The one that the file holds is marked, and it is said what of it."""
    marked = [row for row in rows if _holds(chosen, row)]
    console.print(_configurations(summary, rows, marked))
    for row in marked:
        if 0 in row.trials:
            console.print(Text(f"* {file} keeps the defaults"))
        elif chosen is not None and row.trial.parameters == chosen.configuration:
            console.print(Text(f"* in {file}"))
        else:
            console.print(Text(f"* in {file}, without the settings that were dropped"))


def _configurations(summary: Summary, rows: Sequence[Ranked], marked: Sequence[Ranked]) -> Table:
    table = table_of(
        ("", "left"),
        ("trial", "right"),
        ("measured", "right"),
        ("samples/s", "right"),
        ("vs baseline", "right"),
        ("settings", "left"),
    )
    for row in rows:
        own = 0 in row.trials
        table.add_row(
            Text("*" if row in marked else ""),
            Text(str(row.trial.number)),
            Text(f"{row.measured}x"),
            Text(words.samples(row.value)),
            Text("-" if own else words.difference(row.value, summary.usual)),
            Text("baseline" if own else words.settings(summary.changes(row.trial))),
        )
    return table


def print_studies(summaries: Sequence[Summary], studies_dir: Path) -> None:
    console = console_on(sys.stdout)
    if not summaries:
        console.print(Text(f"no studies in {studies_dir}; `nccltune search` makes one"))
        return
    table = table_of(
        ("study", "left"),
        ("trials", "right"),
        ("baseline", "right"),
        ("best", "right"),
        ("vs baseline", "right"),
        ("verdict", "left"),
        ("begun", "left"),
    )
    for summary in summaries:
        base, ranking = summary.usual, summary.ranking("search")
        best = ranking[0].value if ranking else None
        table.add_row(
            Text(summary.paths.name),
            Text(str(len(summary.trials))),
            Text(words.samples(base)),
            Text(words.samples(best)),
            Text(words.difference(best, base)),
            Text(_word(summary)),
            Text(str(summary.definition["created"])[:16].replace("T", " ")),
        )
    console.print(table)
    console.print(
        Text(
            "samples/s of all ranks, as the search has them: `nccltune show STUDY` has the verdict"
        )
    )


def _word(summary: Summary) -> str:
    own, holds = summary.own, current(read_history(summary.paths))
    if holds != FIRST:
        return f"retuned: generation {holds} holds"
    if not summary.trials:
        return "no trial yet"
    if tried_nothing(summary):
        return "unfinished"
    if own is None or (own.verdict is None and own.trial is not None):
        return "not confirmed"
    return "keep the defaults" if own.verdict is None else _WORDS[own.verdict.word]


def print_trial(summary: Summary, trial: Trial) -> None:
    """One trial in full."""
    console = console_on(sys.stdout)
    measurement = summary.measurement(trial)
    rows: list[tuple[str, str]] = [
        ("study", summary.paths.name),
        ("trial", f"{trial.number} ({trial.origin})"),
        ("state", trial.state + (f": {trial.failure}" if trial.failure else "")),
        *([("tuner", measurement.tuner)] if measurement.tuner else []),
        ("settings", words.settings(summary.changes(trial))),
        (
            "environment",
            words.settings(measurement.effective["env"])
            if measurement.effective["env"]
            else "(nothing of ours)",
        ),
        ("DDP", words.settings(measurement.effective["ddp"])),
        ("loader", words.settings(measurement.effective["loader"])),
        ("batch size", f"{measurement.effective['batch_size']} a rank"),
    ]
    rows += _result_rows(summary, trial)
    if measurement.nccl:
        taken = measurement.nccl["environment"]
        rows.append(("NCCL took", words.settings(taken) if taken else "(no variable)"))
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in measurement.seconds.items())
    rows.append(("time", f"{trial.seconds:.1f} s: {spent}"))
    if measurement.failure:
        failure = measurement.failure
        rows.append(("failure", str(failure["message"])))
        rows.append(("log", str(summary.paths.folder / failure["log"]) if failure["log"] else "-"))
    console.print(facts_table(rows))
    for line in (measurement.failure or {}).get("tail", ()):
        console.print(Text(f"  | {line}"))


def _result_rows(summary: Summary, trial: Trial) -> list[tuple[str, str]]:
    measurement = summary.measurement(trial)
    result = measurement.result
    if result is None:
        return []
    baseline = summary.baseline
    counting = [w for w in result["windows"] if w["counts"]]
    rates = [
        words.samples(trial.value * w["steps"] / max(w["rank_seconds"]) * result["step_seconds"])
        for w in counting
        if trial.value is not None
    ]
    memory = " ".join(words.size(b) for b in result["peak_memory_bytes"])
    rows = [
        (
            "samples/s",
            f"{words.samples(trial.value)} "
            f"({words.difference(trial.value, baseline.value if baseline else None)} vs baseline), "
            f"median of {len(counting)} windows: {' '.join(rates)}",
        ),
        (
            "step",
            f"{1000 * result['step_seconds']:.2f} ms, "
            f"{100 * result['data_wait_share']:.0f}% of it waiting for data",
        ),
        (
            "steady",
            "yes" if result["steady"] else "no: the windows did not agree within the limits",
        ),
        ("memory", f"{memory} (peak of each rank)"),
        ("buckets", " ".join(words.size(b) for b in result["bucket_bytes"]) or "-"),
        ("checks", f"{result['collectives_checked']} collectives right, parameters equal"),
    ]
    if measurement.utilization:
        rows.append(("GPU use", " ".join(f"{u:.0f}%" for u in measurement.utilization)))
    return rows


def forecast(done: Sequence[Trial], trials: int, budget: float | None) -> str:
    """How long the rest will take, from the trials done; a rough figure before the first."""
    left = max(0, trials - len(done))
    if left == 0:
        return "nothing is left to do"
    cost = trial_seconds(done)
    if cost is None:
        low, high = 10.0 * left, 40.0 * left
        text = (
            f"about {words.duration(low)} to {words.duration(high)} (10 to 40 s a trial; "
            "known once the baseline has run)"
        )
    else:
        text = f"about {words.duration(cost * left)} ({cost:.0f} s a trial so far)"
    return text if budget is None else f"{text}, at most {words.duration(budget)} by --time-budget"
