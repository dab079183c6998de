"""Which variables of a result are set for a job: what is there already stays, whoever set it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nccltune.nccl.site import (
    SiteVariable,
    asks_for_multicast,
    multicast_is_off,
    multicast_protection,
    site_variables,
)


@dataclass(frozen=True)
class ToSet:
    """`values` are to be set; `kept` says of the others why they are not, a line for each."""

    values: Mapping[str, str]
    kept: tuple[str, ...]


def variables_to_set(
    wanted: Mapping[str, str],
    environ: Mapping[str, str],
    site: Mapping[str, SiteVariable] | None = None,
) -> ToSet:
    """What `wanted` adds to `environ` and to NCCL's own files, which is what `site` is of unless it
    is given. What has its value already is in neither part.
    """
    if site is None:
        site = site_variables(environ)
    values: dict[str, str] = {}
    kept: list[str] = []
    for name, value in wanted.items():
        held = site.get(name)
        if held is None and name in environ:
            held = SiteVariable(name, environ[name], "environment")
        if held is None and multicast_is_off(site) and asks_for_multicast(name, value):
            kept.append(f"{name}={value} is left out: the site has switched NVLink multicast off")
        elif held is None:
            values[name] = value
        elif held.value != value:
            source = "the environment" if held.source == "environment" else held.source
            kept.append(f"{name} stays {held.value!r}, which {source} sets; the file has {value!r}")
    # Also where it comes from a file that NCCL might not read in the end.
    protection = multicast_protection(site) if values else {}
    return ToSet(values | {n: v for n, v in protection.items() if n not in environ}, tuple(kept))
