"""Verdicts in words. Every sentence of a result is made here, from records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nccltune.output.words import difference, samples
from nccltune.output.words import size as size_text
from nccltune.stats.noise import noise_threshold
from nccltune.stats.verdict import FEWEST, MOST, TOO_NOISY, Verdict

_TIMES = 1.5  # from here on "1.63 times", below "4.2% more"


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}%"


def interval(verdict: Verdict) -> str:
    """`[-0.4 .. +0.9]`, per cent more samples/s; empty where there is none."""
    if verdict.low is None or verdict.high is None:
        return ""
    return f" [{100 * (verdict.low - 1):+.1f} .. {100 * (verdict.high - 1):+.1f}]"


def sentence(verdict: Verdict, than: str = "the defaults") -> str:
    """What the verdict says, with the estimate, its interval and the launches it rests on."""
    launches = f"{verdict.launches} + {verdict.launches} fresh launches"
    if verdict.reason is not None or verdict.ratio is None:
        return f"Inconclusive: {verdict.reason or 'nothing to compare'}."
    if verdict.word == "FASTER":
        return f"Faster than {than}: {_more(verdict)}, {launches}."
    if verdict.word == "SLOWER":
        return f"Slower than {than}: {_fewer(verdict)}, {launches}."
    change = f"{100 * (verdict.ratio - 1):+.1f}%{interval(verdict)}"
    noise = "unknown" if verdict.threshold is None else percent(verdict.threshold)
    if verdict.word == "WITHIN_NOISE":
        return (
            f"No useful difference to {than}: {change}, inside this machine's noise of {noise}, "
            f"{launches}."
        )
    return f"Inconclusive: {change}; noise is {noise}, {launches}. {_settling(verdict)}"


def _more(verdict: Verdict) -> str:
    assert verdict.ratio is not None and verdict.low is not None and verdict.high is not None
    if verdict.ratio >= _TIMES:
        return f"{verdict.ratio:.2f} times the samples/s [{verdict.low:.2f} .. {verdict.high:.2f}]"
    low, high = 100 * (verdict.low - 1), 100 * (verdict.high - 1)
    return f"{percent(verdict.ratio - 1)} more samples/s [{low:.1f} .. {high:.1f}]"


def _fewer(verdict: Verdict) -> str:
    assert verdict.ratio is not None and verdict.low is not None and verdict.high is not None
    low, high = 100 * (1 - verdict.high), 100 * (1 - verdict.low)
    return f"{percent(1 - verdict.ratio)} fewer samples/s [{low:.1f} .. {high:.1f}]"


def _settling(verdict: Verdict) -> str:
    if verdict.launches < FEWEST:
        return f"At least {FEWEST} launches of each are needed."
    if verdict.threshold is not None and verdict.threshold > TOO_NOISY:
        return (
            "With so much noise no two settings can be called equal: a quieter machine is needed."
        )
    if verdict.launches >= MOST or verdict.more is None:
        return "A quieter machine, or a longer --measure-seconds, may settle it."
    plural = "es" if verdict.more > 1 else ""
    return f"About {verdict.more} more launch{plural} of each would settle it."


def share(name: str, verdict: Verdict) -> str:
    """What a setting carries: how much more samples/s with it than without it."""
    assert verdict.ratio is not None
    resting = interval(verdict) or f" by {verdict.launches} launches of each"
    return f"{name} carries {100 * (verdict.ratio - 1):+.1f}%{resting}"


def no_effect(names: Sequence[str]) -> str:
    """Variables of the winner that NCCL never came to read."""
    return f"had no effect here, left out: {' '.join(names)} (NCCL never read them in that trial)"


def taken(proof: Mapping[str, tuple[str | None, str]]) -> str:
    """What NCCL's log says of the winner's variables: by name the value taken and its meaning."""
    said = {
        "taken": "{name}={value} taken",
        "other value": "{name} taken as {value}, which is not what was meant",
        "no trace": "{name} not read",
        "not told": "{name} not told",
    }
    parts = [said[how].format(name=n, value=value) for n, (value, how) in proof.items()]
    doubtful = any(how in ("other value", "no trace") for _, how in proof.values())
    advice = "; `nccltune lint best.env` may say why" if doubtful else ""
    return f"NCCL's log of a launch with best.env: {', '.join(parts)}{advice}"


def not_proven(reason: str) -> str:
    """Told once, where the launch that NCCL was to log failed."""
    return f"NCCL's log of the winner could not be had, so it proves nothing: {reason}"


def all_reduces(ran: Sequence[tuple[int, str]], usual: Sequence[tuple[int, str]]) -> str:
    """How the gradient buckets were reduced, by bytes, and how they are with the defaults."""
    if list(ran) == list(usual):
        return f"gradients are reduced as with the defaults: {_by_size(ran)}"
    by_default = f"; with the defaults {_by_size(usual)}" if usual else ""
    return f"gradients are reduced by {_by_size(ran)}{by_default}"


def _by_size(ran: Sequence[tuple[int, str]]) -> str:
    """Sizes that are reduced alike are named together."""
    alike: dict[str, list[int]] = {}
    for size, how in ran:
        alike.setdefault(how, []).append(size)
    parts = []
    for how, sizes in alike.items():
        low, high = size_text(min(sizes)), size_text(max(sizes))
        parts.append(f"{how} ({low if low == high else f'{low} to {high}'})")
    return ", ".join(parts)


def through_files(files: tuple[float, float] | None) -> str:
    """What plain torchrun launches did without the files and with them, samples/s."""
    if files is None:
        return (
            "not tried by plain torchrun launches with best.env sourced and best.yaml loaded: no "
            "time, or they do not work here"
        )
    plain, with_files = files
    return (
        "plain torchrun launches, without and with best.env sourced and best.yaml loaded: "
        f"{samples(plain)} and {samples(with_files)} samples/s ({difference(with_files, plain)})"
    )


def begun_elsewhere(noise: Sequence[float]) -> str:
    """Told when a study goes on where other launches of the baseline than these were made."""
    known = f"noise of {percent(noise_threshold([noise]))}" if len(noise) > 1 else "baseline"
    return (
        "this study was begun on another machine of the same kind (or another container, or other "
        f"GPUs): its {known} and its trials so far are from there; --new measures all of it here"
    )


def how_many(limit: int) -> str:
    """The launches that a comparison may take."""
    several = f"{FEWEST} to {limit}" if limit > FEWEST else str(FEWEST)
    return f"{several} fresh launches"


def one_by_one(reason: str) -> str:
    """Told once, where two worker groups could not be alive at the same time."""
    return f"launches followed one another instead of taking turns: {reason}"


def repeated(disturbed: Sequence[str], what: str) -> str:
    """Told once, with the first reason."""
    count = len(disturbed)
    were = f"{what}s were" if count > 1 else f"{what} was"
    return f"{count} {were} disturbed and repeated: {disturbed[0]}"


def noise_line(threshold: float, launches: int, limit: int) -> str:
    """What baseline against baseline shows, and what follows from it."""
    return (
        f"noise      {percent(threshold)} by {launches} launches of the baseline: a smaller gain "
        f"cannot be shown here; the winner is confirmed by {how_many(limit)} of each side"
    )
