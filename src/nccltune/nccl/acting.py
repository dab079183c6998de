"""Whether a variable can act at all where ranks talk over what NCCL's log has named."""

from __future__ import annotations

from collections.abc import Collection

from packaging.version import Version

from nccltune.nccl.catalog import lookup

_NETWORKS = {"net-socket": "Socket", "net-ib": "IB"}
_NETWORK = frozenset({"net", "collnet", *_NETWORKS})
_WITHIN = {"p2p": "P2P", "shm": "SHM"}


def why_dead(
    name: str, version: Version | None, transport: Collection[str], network: str | None
) -> str | None:
    """Why it does nothing here; None where it may act, or nobody knows.

    `transport` and `network` are NCCL's own words: P2P, SHM, NET; Socket, IB, a plugin's name.
    """
    variable = lookup(name)
    if variable is None:
        return None
    if version is not None and variable.since is not None and version < variable.since:
        return f"NCCL {version} does not read it yet ({variable.since} and newer do)"
    if version is not None and variable.removed is not None and version >= variable.removed:
        return f"NCCL {version} reads it no more (removed in {variable.removed})"
    parts = frozenset(variable.applies_to)
    if not transport:
        return None
    over = "+".join(sorted(transport))
    if parts <= _NETWORK:
        if not any(way.startswith("NET") for way in transport):
            return f"it acts on the network, and no rank uses that here (transport {over})"
        wanted = {_NETWORKS[part] for part in parts if part in _NETWORKS}
        known = network in _NETWORKS.values()
        if known and len(wanted) == len(parts) and network not in wanted:
            return f"it acts on {' and '.join(sorted(wanted))}, NCCL's network here is {network}"
    elif parts <= _WITHIN.keys() and not {_WITHIN[part] for part in parts} & {*transport}:
        return f"it acts on {'+'.join(_WITHIN[p] for p in sorted(parts))}, ranks here use {over}"
    return None
