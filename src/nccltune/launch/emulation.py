"""`--emulate-hosts`: the ranks of one machine talk over sockets, as if they sat on several hosts.

What all ranks have in common is added to the tuner's environment as if the site had set it, so that
it holds in every launch and is never a result; what differs is set in each rank (`worker.hosts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nccltune.errors import UsageError
from nccltune.nccl.site import SiteVariable, site_variables
from nccltune.worker.hosts import HOSTS

SOCKETS: Mapping[str, str] = MappingProxyType(
    {
        "NCCL_NET": "Socket",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_RAS_ENABLE": "0",
    }
)
"""What makes NCCL use sockets through the loopback interface, and nothing else between hosts."""

_HOST_ID, _ANY_HOST = "NCCL_HOSTID", "nccltune-h*"


def emulating(environ: Mapping[str, str], hosts: int | None) -> dict[str, str]:
    """The environment of a tuner whose ranks are to act as `hosts` hosts; None: as they are.

    Raises: UsageError when the site has set one of the variables otherwise.
    """
    plain = {name: value for name, value in environ.items() if name != HOSTS}
    if hosts is None:
        return plain
    site = site_variables(plain)
    for name in (*SOCKETS, _HOST_ID):
        held, wanted = site.get(name), SOCKETS.get(name)
        if held is not None and held.value != wanted:
            need = "a value for each rank" if wanted is None else wanted
            raise UsageError(
                f"--emulate-hosts {hosts}: {name} must be {need}, but the site ({held.source}) has "
                f"set it to {held.value!r}; unset it there, or leave the option out"
            )
    return {**plain, **SOCKETS, HOSTS: str(hosts)}


def emulation(base: Mapping[str, str]) -> dict[str, str]:
    """The variables with which `base` makes ranks act as several hosts; none where it does not."""
    return {name: base[name] for name in (*SOCKETS, HOSTS)} if HOSTS in base else {}


def pinned_variables(base: Mapping[str, str]) -> dict[str, SiteVariable]:
    """The site's variables for launches in `base`, those of emulated hosts among them."""
    site = site_variables(base)
    if HOSTS not in base:
        return site
    held = {**SOCKETS, _HOST_ID: _ANY_HOST}
    source = f"--emulate-hosts {base[HOSTS]}"
    return site | {name: SiteVariable(name, value, source) for name, value in held.items()}


def check_emulation(hosts: int | None, backend: str, ranks: int) -> list[str]:
    """What the user should know of it. Raises UsageError where `ranks` ranks with this backend
    cannot act as `hosts` hosts.
    """
    if hosts is None:
        return []
    if backend != "nccl":
        raise UsageError(
            f"--emulate-hosts {hosts}: needs --backend nccl, which chooses its way from rank to "
            f"rank by host; with {backend} all ranks talk over sockets as it is"
        )
    if not 2 <= hosts <= ranks:
        raise UsageError(
            f"--emulate-hosts {hosts}: must be 2 to {ranks}, with {ranks} ranks"
            if ranks > 1
            else f"--emulate-hosts {hosts}: needs two ranks or more, there is one"
        )
    return [
        f"--emulate-hosts {hosts}: a test; ranks talk over sockets, so its results do not hold for "
        "this machine as it is"
    ]
