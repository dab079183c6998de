"""Whether NCCL read a variable and took the value that was meant, by its own log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nccltune.nccl.catalog import FOREIGN, config_field, lookup
from nccltune.nccl.integers import is_plain_integer, strtoll

Meaning = Literal["taken", "other value", "no trace", "not told"]

_LOGGED_TEXTS = frozenset(
    {
        *("NCCL_ALGO", "NCCL_PROTO", "NCCL_THREAD_THRESHOLDS"),
        *("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL", "NCCL_COLLNET_ENABLE", "NCCL_CTA_POLICY"),
        *("NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_IB_HCA", "NCCL_HOSTID"),
        *("NCCL_NETDEVS_POLICY", "NCCL_PROXY_CPUSET"),
    }
)
"""Texts that NCCL names in its log when it reads them; integers it names all. Of other texts
it may say nothing, or once a process (NCCL_LAUNCH_MODE), or in other words in some releases
(NCCL_NET_PLUGIN, NCCL_TUNER_PLUGIN), so their absence says nothing either.
"""
_NETWORKS = frozenset({"net", "net-ib", "net-socket"})
_LEVELS = frozenset({"NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_C2C"})
"""A level given as a number is logged by its name."""


@dataclass(frozen=True)
class Trace:
    """What the log says of one variable: `taken` is the value that NCCL says it took."""

    name: str
    asked: str
    taken: str | None
    told: bool = True
    """Whether NCCL names the variable in its log when it reads it."""

    @property
    def meaning(self) -> Meaning:
        """ "no trace": NCCL never came to read it in this run, so it had no effect."""
        if self.taken is not None:
            return "taken" if _same(self.name, self.asked, self.taken) else "other value"
        return "no trace" if self.told else "not told"


def traces(
    asked: Mapping[str, str],
    environment: Mapping[str, str],
    config: Mapping[str, int],
    *,
    foreign_net: bool = False,
) -> tuple[Trace, ...]:
    """A trace for each variable asked for, in their order. `environment` and `config` are those of
    `nccltune.nccl.log.NcclLog`: a limit can reach NCCL as a field of the communicator instead.
    `foreign_net`: a network plugin is loaded that may read variables without NCCL.
    """
    found = []
    for name, value in asked.items():
        taken = environment.get(name)
        field = config_field(name)
        if taken is None and field is not None and field in config:
            taken = str(config[field])
        found.append(Trace(name, value, taken, _is_told(name, foreign_net)))
    return tuple(found)


def _is_told(name: str, foreign_net: bool) -> bool:
    variable = None if name in FOREIGN else lookup(name)
    if variable is None or (foreign_net and _NETWORKS.intersection(variable.applies_to)):
        return False
    return variable.is_integer or name in _LOGGED_TEXTS


def _same(name: str, asked: str, taken: str) -> bool:
    if asked.lower() == taken.lower():
        return True
    if name in _LEVELS and asked.isdigit():
        return not taken.isdigit()
    both_numbers = is_plain_integer(asked) and is_plain_integer(taken)
    return both_numbers and strtoll(asked) == strtoll(taken)
