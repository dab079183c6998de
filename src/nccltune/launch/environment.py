"""The environment of ranks: the tuner's own at its start, plus what a launch adds."""

from __future__ import annotations

from collections.abc import Mapping

from nccltune.errors import StudyError
from nccltune.nccl.site import SiteVariable, protects_multicast

DIAGNOSTIC = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
"""Set by every launch of ours so that NCCL's log can be read; never part of a result."""


def nccl_log_variables(log_dir: str, *, probe: bool) -> dict[str, str]:
    """NCCL's log into a file of each rank. Timed launches log start-up only: TUNING prints a line
    for every collective, which would be measured too.
    """
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,GRAPH,TUNING" if probe else "INIT,ENV",
        "NCCL_DEBUG_FILE": f"{log_dir}/nccl.%p.log",
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
    protecting = {n: v.value for n, v in site.items() if protects_multicast(n, v.value)}
    # PET_* would change torchrun's own options.
    kept = {name: value for name, value in base.items() if not name.startswith("PET_")}
    return {**kept, **added, **protecting}


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
