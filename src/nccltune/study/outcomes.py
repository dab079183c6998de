"""What a study's records allow to be said and written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nccltune.output import verdicts
from nccltune.space import Value, changes
from nccltune.stats.noise import noise_threshold
from nccltune.stats.step import Diagnosis
from nccltune.stats.verdict import Block, Verdict
from nccltune.study.blocks import against_baseline
from nccltune.study.bounds import left_out
from nccltune.study.confirm import Answer
from nccltune.study.records import Trial
from nccltune.study.summary import Summary


@dataclass(frozen=True)
class Outcome:
    """What is written: the configuration of a best file, where it came from, what is said of it."""

    configuration: Mapping[str, Value]
    trial: Trial
    verdict: Verdict | None
    line: str


def own_outcome(summary: Summary) -> Outcome | None:
    """For best.env and best.yaml. Fails closed: what is not shown to be faster is not written,
    unless no confirmation was made at all; then the fastest of the search is, and said to be that.
    """
    baseline, own = summary.baseline, summary.own
    if baseline is None or own is None:
        return None
    line = verdict_line(summary)
    if own.faster:
        return Outcome(own.configuration, _trial(summary, own), own.verdict, line)
    if own.verdict is None and own.trial is not None:
        trial = _trial(summary, own)
        return Outcome(trial.parameters, trial, None, line)
    return Outcome(baseline.parameters, baseline, own.verdict, line)


def larger_outcome(summary: Summary) -> Outcome | None:
    """For best-batch.yaml; None where no larger batch was faster, or it was not confirmed."""
    larger, answer, own = summary.larger, summary.with_larger, summary.own
    if larger is None or answer is None or own is None or answer.failed:
        return None
    if answer.faster:
        return Outcome(answer.configuration, larger, answer.verdict, larger_line(summary))
    if answer.verdict is None or answer.verdict.launches == 0:
        return Outcome(larger.parameters, larger, None, larger_line(summary))
    return None


def _trial(summary: Summary, answer: Answer) -> Trial:
    return next(trial for trial in summary.trials if trial.number == answer.trial)


def verdict_dict(summary: Summary, outcome: Outcome) -> dict[str, Any] | None:
    """The verdict for programs: numbers, sentence, what settings carry; None until confirmed."""
    if outcome.verdict is None:
        return None
    answer = summary.own if outcome.trial.stage == "search" else summary.with_larger
    assert answer is not None
    return {
        **outcome.verdict.to_dict(),
        "sentence": outcome.line,
        "of": changes(answer.configuration, summary.space.baseline),
        "carries": {name: v.to_dict() for name, v in answer.shares.items()},
        "dropped": {name: v.to_dict() for name, v in answer.dropped.items()},
        "without_effect": summary.without_effect(summary.measurement(outcome.trial)),
        "proof": _proof(summary, outcome),
        "files": answer.files and {"without": answer.files[0], "with": answer.files[1]},
        "speeds": _speeds(summary, answer),
    }


def _speeds(summary: Summary, answer: Answer) -> dict[str, list[float]] | None:
    """Samples/s of the launches that the verdict rests on, block by block; None where they are not
    all in the records.
    """
    blocks = launches_behind(summary, answer)
    if not blocks:
        return None
    sides = zip(*blocks, strict=True)
    without, with_settings = ([float(f"{speed:.6g}") for speed in side] for side in sides)
    return {"without": without, "with": with_settings}


def launches_behind(summary: Summary, answer: Answer) -> list[Block] | None:
    """The blocks that its verdict rests on; None where they are not all in the records."""
    if answer.verdict is None:
        return None
    measurements = list(summary.measurements.values())
    return against_baseline(measurements, answer.configuration, answer.verdict.launches)


def _proof(summary: Summary, outcome: Outcome) -> dict[str, Any] | None:
    if summary.proof is None or outcome.trial.stage != "search":
        return None
    return summary.proof.to_dict()


def settings_without_effect(summary: Summary) -> list[str]:
    """Variables of the winning trial that did nothing in its launch, so that they are left out."""
    own = summary.own
    if own is None or own.trial is None:
        return []
    return summary.without_effect(summary.measurement(_trial(summary, own)))


def proof_lines(summary: Summary) -> list[str]:
    """What NCCL's log says of the winner; nothing where NCCL is not used, or was not asked."""
    proof = summary.proof
    if proof is None:
        return []
    told = {trace.name: (trace.taken, trace.meaning) for trace in proof.traces}
    lines = [verdicts.taken(told)] if told else []
    if proof.ran:
        ran = [(each.bytes, str(each)) for each in proof.ran]
        usual = [(each.bytes, str(each)) for each in proof.baseline]
        lines.append(verdicts.all_reduces(ran, usual))
    return lines


def verdict_line(summary: Summary) -> str:
    """What may be said at the user's own batch size."""
    own = summary.own
    if len(summary.trials) < 2 or own is None:
        limit = _nothing_to_win(summary)
        if limit is None:
            return "no candidate was measured"
        return (
            f"no setting that is searched can win the {verdicts.percent(limit)} that can be shown "
            "here; keep the defaults"
        )
    failed = f"trial {own.failed[-1]} failed when it was launched anew; " if own.failed else ""
    if own.trial is None:
        other = "other " if own.failed else ""
        return f"{failed}no {other}setting measured faster than the baseline; keep the defaults"
    if own.verdict is None:
        return f"{failed}not confirmed: the best of the search, where noise alone can put any trial"
    text = verdicts.sentence(own.verdict)
    if own.verdict.word in ("WITHIN_NOISE", "SLOWER"):
        text += " Keep the defaults."
    elif own.verdict.word == "INCONCLUSIVE":
        text += " The files keep the defaults until it is known."
    return failed + text.removesuffix(".")


def tried_nothing(summary: Summary) -> bool:
    """Whether no candidate was measured, though some could win: nothing is known then."""
    return len(summary.trials) < 2 and _nothing_to_win(summary) is None


def _nothing_to_win(summary: Summary) -> float | None:
    """The smallest gain that can be shown, where what a step consists of says that no setting can
    win so much; else None.
    """
    results = (m.result for m in summary.measurements.values() if m.purpose == "diagnose")
    found = next((result for result in results if result is not None), None)
    if found is None or len(summary.noise) < 2:
        return None
    threshold = noise_threshold([summary.noise])
    leave = left_out(summary.space, Diagnosis.from_dict(found), threshold)
    names = {name for left in leave.values() for name in left}
    searched = {p.name for p in summary.space.parameters if p.target != "batch"}
    return threshold if searched and searched <= names else None


def tainted(summary: Summary, *, larger: bool) -> str | None:
    """How many launches behind a verdict something disturbed, though they were repeated: that of
    the user's own batch size, or of the larger one.
    """
    confirm = [
        m
        for m in summary.measurements.values()
        if (m.compared is None and m.purpose == "noise")
        or (m.compared is not None and (m.compared.comparison == "larger batch") == larger)
    ]
    found = [m.taints[0] for m in confirm if m.taints]
    if not found:
        return None
    return (
        f"{len(found)} of the {len(confirm)} launches behind it were disturbed, so trust it less: "
        f"{found[0]}"
    )


def larger_line(summary: Summary) -> str:
    """What may be said of the larger batch."""
    answer = summary.with_larger
    if answer is None:
        return "no larger batch was faster"
    size = answer.configuration["batch_size"]
    if answer.failed:
        return f"batch {size} failed when it was launched anew"
    if answer.verdict is None or answer.verdict.launches == 0:
        return f"batch {size} is not confirmed"
    return verdicts.sentence(answer.verdict, "the defaults at your batch size").removesuffix(".")
