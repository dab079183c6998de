"""The environment of ranks: the tuner's own at its start, plus what a launch adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nccltune.errors import StudyError, UsageError
from nccltune.nccl.site import (
    SiteVariable,
    multicast_protection,
    protects_multicast,
    site_variables,
)

DIAGNOSTIC = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
"""Set by every launch of ours so that NCCL's log can be read; never part of a result."""


def nccl_log_variables(log_dir: str, *, probe: bool, several: bool = False) -> dict[str, str]:
    """NCCL's log into a file of each rank; on `several` hosts process ids may be the same. Timed
    launches log start-up only: TUNING prints a line for every collective, which would be measured
    too.
    """
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,GRAPH,TUNING" if probe else "INIT,ENV",
        "NCCL_DEBUG_FILE": f"{log_dir}/nccl.{'%h.' if several else ''}%p.log",
    }


def launch_environment(
    base: Mapping[str, str], site: Mapping[str, SiteVariable], added: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of a launch.

    Site variables stay as they are; those that keep NVLink multicast off are set outright, also
    where they come from a file that NCCL might not read in the end.

    Raises: StudyError when a trial would change one.
    """
    refuse_overrides(site, added)
    # PET_* would change torchrun's own options.
    kept = {name: value for name, value in base.items() if not name.startswith("PET_")}
    return {**kept, **added, **multicast_protection(site)}


def without_unpinned(environ: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """The tuner's environment for launches without these variables of the site.

    Raises: UsageError for what the environment does not set, what NCCL would find all the same, and
    what keeps NVLink multicast off.
    """
    site = site_variables(environ)
    for name in names:
        held = site.get(name)
        if held is None:
            listed = ", ".join(sorted(n for n, v in site.items() if v.source == "environment"))
            raise UsageError(f"--unpin {name}: the site sets {listed or 'nothing'}, not this")
        if protects_multicast(name, held.value):
            raise UsageError(
                f"--unpin {name}: it keeps NVLink multicast off ({name}={held.value}), which no "
                "option undoes"
            )
        if held.source != "environment":
            raise UsageError(
                f"--unpin {name}: it is set in {held.source}, which NCCL reads by itself; take it "
                "out of that file"
            )
    left = {name: value for name, value in environ.items() if name not in names}
    for name in names:
        if (behind := site_variables(left).get(name)) is not None:
            raise UsageError(
                f"--unpin {name}: {behind.source} sets it too, to {behind.value!r}, and NCCL reads "
                "that file by itself; take it out of there"
            )
    lost = multicast_protection(site).keys() - multicast_protection(site_variables(left)).keys()
    if lost:  # with the file that a variable names, say
        raise UsageError(
            f"--unpin {' '.join(names)}: {', '.join(sorted(lost))} would be lost with it, which "
            "keeps NVLink multicast off"
        )
    return left


def refuse_overrides(site: Mapping[str, SiteVariable], added: Mapping[str, str]) -> None:
    """Raises StudyError when one of the site's variables would be changed: that is a fault of
    ours, and on a machine where NVLink multicast must stay off it would do harm.
    """
    for name, value in added.items():
        pinned = site.get(name)
        if pinned is not None and name not in DIAGNOSTIC and pinned.value != value:
            raise StudyError(
                f"{name}={value} would override the site's {name}={pinned.value} ({pinned.source})"
            )
