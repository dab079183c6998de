"""Which network NCCL_NET names, and whether NCCL will find it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from nccltune.nccl.findings import Finding, finding
from nccltune.nccl.lint_views import Chosen, number_of, text_of

_NETWORKS = {"socket": "Socket", "ib": "IB"}
_MEANT = {
    **dict.fromkeys(("tcp", "ethernet", "eth"), "Socket"),
    **dict.fromkeys(("infiniband", "roce", "rdma", "verbs"), "IB"),
}


def network_findings(chosen: Chosen) -> Iterator[Finding]:
    """A network that is switched off, or a name close to one of NCCL's own: others are plugins'."""
    net = (text_of(chosen, "NCCL_NET") or "").lower()
    if net in _NETWORKS:
        yield from _switched_off(chosen, net)
        return
    close = difflib.get_close_matches(net, _NETWORKS, 1, 0.75)
    near = _MEANT.get(net) or (_NETWORKS[close[0]] if close else None)
    if near is None:
        return
    plugin = chosen.get("NCCL_NET_PLUGIN")
    if plugin is not None and plugin.value != "none":
        text = f"NCCL has no such network, the plugin may have; else: did you mean {near}?"
        yield finding(chosen["NCCL_NET"], "not-nccls", text)
    else:
        text = f"NCCL has no such network and ends at its start; did you mean {near}?"
        yield finding(chosen["NCCL_NET"], "misspelt", text)


def _switched_off(chosen: Chosen, net: str) -> Iterator[Finding]:
    if net == "ib" and number_of(chosen, "NCCL_IB_DISABLE") == 1:
        text = (
            "NCCL_IB_DISABLE=1 switches this network off: NCCL finds none of that name and ends "
            "at its start; take one of the two out"
        )
        yield finding(chosen["NCCL_NET"], "constraint-broken", text)
