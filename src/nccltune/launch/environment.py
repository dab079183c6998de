"""The environment of ranks: the tuner's own at its start, plus what a launch adds."""

from __future__ import annotations

from collections.abc import Mapping

from nccltune.errors import StudyError
from nccltune.nccl.site import SiteVariable

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

    Site variables stay as they are. Raises StudyError when a trial would change one: that is a
    fault of ours, and on a machine where NVLink multicast must stay off it would do harm.
    """
    for name, value in added.items():
        pinned = site.get(name)
        if pinned is not None and name not in DIAGNOSTIC and pinned.value != value:
            raise StudyError(
                f"{name}={value} would override the site's {name}={pinned.value} ({pinned.source})"
            )
    return {**base, **added}
