"""Whether a result still holds on this machine: what of it can act, and what a comparison says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from nccltune.launch.protocol import Failure
from nccltune.machine.fingerprint import ALL, BATCH, DDP, LOADER, NCCL, Difference
from nccltune.nccl.acting import why_dead
from nccltune.nccl.site import SiteVariable, asks_for_multicast, multicast_is_off
from nccltune.output.best import Best
from nccltune.output.verdicts import sentence
from nccltune.output.words import settings as listed
from nccltune.space.arguments import KINDS, OF_LOADER
from nccltune.stats.verdict import FEWEST, Verdict
from nccltune.study.probing import fixed_env
from nccltune.study.settings_file import DEFAULTS, JobSettings
from nccltune.study.survey import Survey, nccl_version

Status = Literal["still_good", "nothing_to_check", "no_longer_better", "harmful", "cannot_tell"]
"""Faster than the defaults; it sets nothing; no faster; slower, or not working; not known."""

HOLDS: frozenset[Status] = frozenset({"still_good", "nothing_to_check"})
WORDS: Mapping[Status, str] = {
    "still_good": "still good",
    "nothing_to_check": "nothing to check",
    "no_longer_better": "no longer better",
    "harmful": "harmful now",
    "cannot_tell": "cannot tell",
}


@dataclass(frozen=True)
class Acting:
    """What of a result takes effect here. `dead` and `kept` say why a variable does not: it cannot
    act on this machine, or the site holds it. `without` is the job as it is.
    """

    settings: JobSettings
    without: JobSettings
    dead: Mapping[str, str]
    kept: Mapping[str, str]

    @property
    def differs(self) -> bool:
        """Whether a launch with the result is another one than without it."""
        return replace(self.settings, name="") != replace(self.without, name="")


@dataclass(frozen=True)
class Check:
    """The answer, and what it rests on. `rows` are the launches, `digests` those of the
    fingerprints, where the result was measured and here, None where that is not known in full.
    """

    status: Status
    sentence: str
    differences: tuple[Difference, ...]
    acting: Acting
    verdict: Verdict | None = None
    rows: tuple[Mapping[str, Any], ...] = ()
    digests: tuple[str | None, str | None] = (None, None)

    @property
    def holds(self) -> bool:
        return self.status in HOLDS

    def to_dict(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "sentence": self.sentence,
            "fingerprint": {"measured": self.digests[0], "here": self.digests[1]},
            "differences": [each.to_dict() for each in self.differences],
            "dead": dict(self.acting.dead),
            "kept_by_site": dict(self.acting.kept),
            "settings": _plain(self.acting.settings),
            "verdict": None if self.verdict is None else self.verdict.to_dict(),
            "launched": [dict(row) for row in self.rows],
        }


def _plain(given: JobSettings) -> dict[str, Any]:
    return {
        "env": dict(given.env),
        "ddp": dict(given.ddp),
        "loader": dict(given.loader),
        "batch_size": given.batch_size,
    }


def sets_something(best: Best) -> bool:
    """Whether the file is more than "keep the defaults"."""
    if best.verdict is None:  # not confirmed: the fastest of the search, or the baseline itself
        return best.provenance.get("trial") != 0
    return best.verdict.get("word") == "FASTER"


def groups_of(best: Best) -> frozenset[str]:
    """The groups of settings that a result has; all where it keeps the defaults, since another
    machine may have something to win in any of them.
    """
    if not sets_something(best):
        return ALL
    groups = {NCCL: best.env, DDP: best.ddp, LOADER: best.loader}
    found = {group for group, values in groups.items() if values}
    usual = best.workload.get("batch_size")
    return frozenset(found | ({BATCH} if usual not in (None, best.batch_size) else set()))


def mattering(differences: Sequence[Difference], best: Best) -> list[Difference]:
    """Those that matter for what the result sets."""
    groups = groups_of(best)
    return [each for each in differences if each.matters & groups]


def acting_here(
    best: Best, settings: JobSettings, found: Survey, probe: Mapping[str, Any] | None
) -> Acting:
    """`settings` are those of the file, `probe` what NCCL's log said here."""
    version, dead, kept = nccl_version(found, probe), {}, {}
    known = probe or {}
    own = _own(found)
    for name, value in {**own.env, **settings.env}.items():
        held = found.site.get(name)
        if (reason := _held(name, value, held, found.site)) is not None:
            kept[name] = reason
        elif found.task.workload.backend != "nccl" and name.startswith(("NCCL_", "TORCH_NCCL_")):
            dead[name] = "no rank uses NCCL here"
        elif why := why_dead(name, version, known.get("transport") or (), known.get("network")):
            dead[name] = why
    given = {name: settings.loader[name] for name in OF_LOADER if name in settings.loader}
    acting = JobSettings(
        name=settings.name,
        env={n: v for n, v in settings.env.items() if n not in dead and n not in kept},
        ddp=settings.ddp,
        loader={**own.loader, **given} if own.loader or found.task.script else {},
        batch_size=settings.batch_size or own.batch_size,
        placed={**own.placed, **(best.workload.get("placed") or {})},
    )
    without = {n: v for n, v in own.env.items() if n not in dead and n not in kept}
    return Acting(acting, replace(own, env=without), dead, kept)


def _held(
    name: str, value: str, held: SiteVariable | None, site: Mapping[str, SiteVariable]
) -> str | None:
    if held is not None:
        same = "" if held.value == value else f" to {held.value!r}"
        return f"the site sets it{same}, with the defaults too"
    if multicast_is_off(site) and asks_for_multicast(name, value):
        return "the site has switched NVLink multicast off"
    return None


def _own(found: Survey) -> JobSettings:
    """The job as it is, with what --fix held in the study."""
    task, fixed = found.task, found.options.fix
    loads = task.script is None and task.workload.data != "synthetic"
    return JobSettings(
        name=DEFAULTS,
        env=fixed_env(found),
        ddp={n: v for n, v in fixed.items() if n in KINDS and KINDS[n].target == "ddp"},
        loader={"num_workers": task.num_workers, **_fixed_loader(found)} if loads else {},
        batch_size=task.batch_size,
        placed={} if task.script is None else task.placed_texts(fixed),
    )


def _fixed_loader(found: Survey) -> dict[str, Any]:
    fixed = found.options.fix.items()
    return {n: v for n, v in fixed if n in OF_LOADER and v is not None}


# The answer.


def nothing_set(acting: Acting) -> tuple[Status, str] | None:
    """The answer where nothing is left to compare; else None."""
    if acting.differs:
        return None
    if acting.dead or acting.kept:
        return "no_longer_better", "nothing that it sets can act here: keep the defaults"
    return "no_longer_better", "it sets what the job does here anyway: keep the defaults"


def by_verdict(found: Verdict, promised: Mapping[str, Any] | None) -> tuple[Status, str]:
    """The answer that a comparison with the defaults gives."""
    text = sentence(found).removesuffix(".")
    if found.word == "FASTER":
        return "still_good", f"{text}{_promise(found, promised)}"
    if found.word == "WITHIN_NOISE":
        return "no_longer_better", f"{text}: keep the defaults"
    if found.word == "SLOWER":
        return "harmful", f"{text}: do not use it here"
    if found.launches < FEWEST:
        return "cannot_tell", (
            f"{found.launches} of the {FEWEST} fresh launches of each side that an answer needs "
            "fitted into the time"
        )
    return "cannot_tell", text


def by_failure(failure: Failure | None, settings: JobSettings) -> tuple[Status, str]:
    """The answer where launches with the result fail and those without it do not."""
    why = "gave no result" if failure is None else f"{failure.kind}: {failure.message}"
    what = listed({**settings.env, **settings.ddp, **settings.loader})
    return "harmful", f"two launches with it ({what}) failed and none without it ({why})"


def _promise(found: Verdict, promised: Mapping[str, Any] | None) -> str:
    """What was promised, where it is more than what is seen now."""
    low = (promised or {}).get("low")
    if not isinstance(low, (int, float)) or found.high is None or found.high >= low:
        return ""
    ratio = promised["ratio"] if promised else None
    return f"; less than the {100 * (float(ratio or low) - 1):.1f}% that was promised"
