"""The lists of NCCL_ALGO and NCCL_PROTO, and NCCL_THREAD_THRESHOLDS."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from nccltune.nccl import grammar
from nccltune.nccl.findings import Finding, Setting, finding, quoted, shown
from nccltune.nccl.integers import is_plain_integer
from nccltune.nccl.values import spell

V2_24, V2_31 = Version("2.24"), Version("2.31")


def list_findings(setting: Setting, version: Version) -> Iterator[Finding]:
    """What the value leaves of algorithms and protocols."""
    value = setting.value
    if not value:
        return
    if setting.name == "NCCL_THREAD_THRESHOLDS":
        yield from _thresholds(setting, value)
    elif setting.name in ("NCCL_ALGO", "NCCL_PROTO"):
        error = grammar.grammar_error(setting.name, value, version)
        if error is not None:
            effect = (
                "NCCL ends at its start with invalid usage"
                if version >= V2_24
                else "NCCL drops what it does not know without a word"
            )
            yield finding(setting, "bad-list", f"{shown(error, 300)}: {effect}")
        elif setting.name == "NCCL_ALGO":
            yield from _algorithms(setting, value, version)
        else:
            yield from _protocols(setting, value, version)


def _thresholds(setting: Setting, value: str) -> Iterator[Finding]:
    numbers = value.split(" ")
    if len(numbers) > 6 or not all(is_plain_integer(number) for number in numbers):
        text = (
            "up to six numbers with single spaces between them: NCCL does not split at commas, and "
            "would take the first number alone"
        )
        yield finding(setting, "bad-list", text)


def _algorithms(setting: Setting, value: str, version: Version) -> Iterator[Finding]:
    killed = grammar.kills_ddp(value, version)
    starved = grammar.starved_functions(value, version)
    if killed:
        yield _no_algorithm(setting, value, killed, version)
    elif starved and Version("2.17") <= version < V2_24:
        text = f"no algorithm for {', '.join(starved)}: NCCL {version} takes Ring there"
        yield finding(setting, "falls-back", text, "NVIDIA/nccl#1304")
    named = {token.lower() for _, tokens in entries(value) for token in tokens}
    if "nvlstree" in named and version < V2_24:
        text = (
            "NVLSTree does not exist for reduce-scatter: a hang is reported; name another "
            "algorithm beside it, or leave the variable unset"
        )
        yield finding(setting, "dangerous", text, "NVIDIA/nccl#1110")
    if named & {"collnet", "collnetdirect", "collnetchain"}:
        text = (
            "CollNet needs a network that reduces (SHARP), its plugin and NCCL_COLLNET_ENABLE=1: "
            "without them no algorithm is left"
        )
        yield finding(setting, "needs-plugin", text, "NVIDIA/nccl#653")
    if not killed:
        yield from _pairs(setting, value)


def _no_algorithm(
    setting: Setting, value: str, killed: tuple[str, ...], version: Version
) -> Finding:
    spelled = str(spell("NCCL_ALGO", value, version))
    if version >= V2_24:
        example = quoted(setting, spelled if spelled != value else "ring,tree;allreduce:tree")
        way = f"restrict all-reduce alone, as in {example}"
    else:
        way = f"NCCL {version} cannot restrict all-reduce alone: add Ring, or leave it unset"
    text = f"leaves no algorithm for {', '.join(killed)}, which DDP calls: it fails; {way}"
    return finding(setting, "no-algorithm", text)


def _pairs(setting: Setting, value: str) -> Iterator[Finding]:
    """Algorithms that an entry names for a function which does not have them."""
    for function, tokens in entries(value):
        known = {
            algorithm.lower()
            for name, algorithms in grammar.ALGORITHMS_OF.items()
            if name.lower() == function.lower()
            for algorithm in algorithms
        }
        wrong = [token for token in tokens if known and token.lower() not in known]
        if wrong:
            text = f"{', '.join(wrong)} does not exist for {function}: that part does nothing"
            yield finding(setting, "no-such-pair", text, "NVIDIA/nccl#1110")


def _protocols(setting: Setting, value: str, version: Version) -> Iterator[Finding]:
    left = grammar.enabled("NCCL_PROTO", value, version)
    bare = [function for function in grammar.FUNCTIONS if not left[function]]
    if bare:
        text = f"leaves no protocol for {', '.join(bare)}"
        yield finding(setting, "no-algorithm", text)
    elif version < V2_31 and grammar.forces_ll128(value, version):
        text = (
            "names or implies LL128, and NCCL then skips its test of whether LL128 is safe here: "
            "wrong sums are reported; leave it unset, or use Simple, LL, LL,Simple or ^LL128"
        )
        source = "NVIDIA/nccl#831, #1261, #786, #281, PR #1081, PR #2036"
        yield finding(setting, "dangerous", text, source)


def entries(value: str) -> Iterator[tuple[str, list[str]]]:
    """(function, tokens) of each entry that lists what is on; "" where it names no function."""
    for entry in value.split(";"):
        function, _, listed = entry.rpartition(":")
        if not listed.startswith("^"):
            yield function, listed.split(",")
