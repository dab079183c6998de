"""What several settings do to each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packaging.version import Version

from nccltune.nccl import catalog, grammar
from nccltune.nccl.circumstances import Circumstances
from nccltune.nccl.findings import Finding, Setting, finding, quoted, shown
from nccltune.nccl.lint_lists import V2_24, V2_31, entries
from nccltune.nccl.lint_network import network_findings
from nccltune.nccl.lint_views import Chosen, number_of, text_of, views
from nccltune.nccl.site import protects_multicast

_BREAK = frozenset({"constraint-broken", "dangerous", "no-algorithm", "fallback-forgets-proto"})
_SOCKETS, _THREADS = 64, 16
_BUFFER = 4 << 20
_EVERY_CALL = frozenset({"ALL", "CALL", "COLL", "PROXY", "TUNING"})
_GDRCOPY = ("NCCL_GDRCOPY_FIFO_ENABLE", "NCCL_GDRCOPY_FLUSH_ENABLE", "NCCL_GDRCOPY_SYNC_ENABLE")


def findings_together(settings: Sequence[Setting], around: Circumstances) -> Iterator[Finding]:
    """Settings said twice, and those that contradict or need each other."""
    yield from _twice([s for s in settings if s.group == 0])
    for view in views(settings):
        for item in _interplay(view.chosen, around):
            # What may be needed or be overruled in another branch is judged where it is set.
            here = view.chosen[item.name].within == view.within
            if item.name in view.sure and (here or item.rule in _BREAK):
                yield item


def _twice(settings: Sequence[Setting]) -> Iterator[Finding]:
    """In a shell and for docker the last line wins, in nccl.conf the first."""
    held: dict[str, Setting] = {}
    for setting in settings:
        first = held.get(setting.name)
        keeps = first is not None and setting.place == "conf"
        if not keeps:
            held[setting.name] = setting
        if first is None or not (first.certain and setting.certain):
            continue
        if first.ran != setting.ran:  # a command has used the first
            continue
        loser, winner = (setting, first) if keeps else (first, setting)
        other = _where(winner, loser.file)
        if first.value == setting.value and first.value is not None:
            yield finding(loser, "repeated", f"{other} says the same")
        else:
            rule = "duplicate" if winner.file == loser.file else "overruled"
            yield finding(loser, rule, f"{other} sets it to another value, which wins")


def _where(setting: Setting, file: str) -> str:
    if setting.line is None:
        return f"the {setting.file}"
    return f"line {setting.line}" if setting.file == file else f"{setting.file}:{setting.line}"


def _interplay(chosen: Chosen, around: Circumstances) -> Iterator[Finding]:
    yield from _sockets(chosen, around)
    yield from _channels(chosen)
    yield from _chunks(chosen)
    yield from _queue_pairs(chosen, around.version)
    yield from _switched_off(chosen)
    yield from _nvls_alone(chosen, around.version)
    yield from _need_another(chosen)
    yield from _hosts(chosen, around.version)
    yield from network_findings(chosen)
    yield from _algorithm_and_protocol(chosen, around.version)
    yield from _log(chosen)


def _may_be_on(chosen: Chosen, name: str) -> bool:
    """Whether it is 1, or nobody knows."""
    return name in chosen and (chosen[name].value is None or number_of(chosen, name) == 1)


def _sockets(chosen: Chosen, around: Circumstances) -> Iterator[Finding]:
    threads = min(number_of(chosen, "NCCL_SOCKET_NTHREADS") or 0, _THREADS)
    each = number_of(chosen, "NCCL_NSOCKS_PERTHREAD")
    if each is not None and "NCCL_SOCKET_NTHREADS" not in chosen:
        text = (
            "does nothing alone: off AWS and Google's cloud there are no helper threads, and so no "
            "such sockets; set NCCL_SOCKET_NTHREADS too"
        )
        yield finding(chosen["NCCL_NSOCKS_PERTHREAD"], "acts-only-with", text)
    elif each is not None and threads > 0 and each > 0 and threads * each > _SOCKETS:
        left = _SOCKETS // threads
        text = (
            f"{threads} threads x {each} sockets are more than {_SOCKETS}: NCCL lowers the latter "
            f"to {left}"
        )
        yield finding(chosen["NCCL_NSOCKS_PERTHREAD"], "constraint-broken", text)
    here = around.machine
    rdma = () if here is None or not here.gpus else here.usable_rdma or ()
    if not rdma or _without_ib(chosen):
        return
    for name, setting in chosen.items():
        variable = catalog.lookup(name)
        if variable is not None and variable.applies_to == ("net-socket",):
            text = f"acts over sockets alone, and NCCL prefers {shown(rdma[0])} to them here"
            yield finding(setting, "sockets-only", text, "NVIDIA/nccl#516")


def _without_ib(chosen: Chosen) -> bool:
    net = text_of(chosen, "NCCL_NET")
    return number_of(chosen, "NCCL_IB_DISABLE") == 1 or (net or "").lower() == "socket"


def _channels(chosen: Chosen) -> Iterator[Finding]:
    for kind, effect in (
        ("CTAS", "NCCL lowers the minimum to it"),
        ("NCHANNELS", "NCCL takes the minimum"),
        ("P2P_NCHANNELS", "they cannot both hold"),
    ):
        low, high = (number_of(chosen, f"NCCL_{end}_{kind}") for end in ("MIN", "MAX"))
        if low is not None and high is not None and low > high > 0:
            text = f"the minimum is {low}, the maximum {high}: {effect}"
            yield finding(chosen[f"NCCL_MIN_{kind}"], "constraint-broken", text)
    for end in ("MIN", "MAX"):
        old = chosen.get(f"NCCL_{end}_NRINGS")
        if old is not None and f"NCCL_{end}_NCHANNELS" in chosen:
            text = f"ignored where NCCL_{end}_NCHANNELS is set"
            yield finding(old, "overruled", text)


def _chunks(chosen: Chosen) -> Iterator[Finding]:
    if "NCCL_BUFFSIZE" in chosen and number_of(chosen, "NCCL_BUFFSIZE") is None:
        return
    buffer = number_of(chosen, "NCCL_BUFFSIZE") or _BUFFER
    for part in ("NET", "NVL", "PCI"):
        name = f"NCCL_P2P_{part}_CHUNKSIZE"
        size = number_of(chosen, name)
        if size is not None and size > buffer // 8 > 0:
            text = (
                f"more than an eighth of NCCL_BUFFSIZE ({buffer}): NCCL lowers it to {buffer // 8} "
                "without a word; raise both or neither"
            )
            yield finding(chosen[name], "constraint-broken", text)


def _queue_pairs(chosen: Chosen, version: Version) -> Iterator[Finding]:
    pairs = number_of(chosen, "NCCL_IB_QPS_PER_CONNECTION")
    split = chosen.get("NCCL_IB_SPLIT_DATA_ON_QPS")
    if pairs is not None and pairs > 1 and split is None:
        now = "in turn" if version >= Version("2.20") else "split over them"
        text = (
            f"whether each message is split over the {pairs} queue pairs is not said: the default "
            f"was 1 before NCCL 2.20 and is 0 since ({version}: messages go {now}); set "
            "NCCL_IB_SPLIT_DATA_ON_QPS to what was measured"
        )
        source = "NVIDIA/nccl#1401, #1222"
        yield finding(chosen["NCCL_IB_QPS_PER_CONNECTION"], "split-not-set", text, source)
    elif split is not None and (pairs == 1 or "NCCL_IB_QPS_PER_CONNECTION" not in chosen):
        text = "there is one queue pair and nothing to split; it goes with QPS_PER_CONNECTION"
        yield finding(split, "acts-only-with", text)


def _switched_off(chosen: Chosen) -> Iterator[Finding]:
    """Details of something that another setting switches off."""
    if number_of(chosen, "NCCL_P2P_DISABLE") == 1 and "NCCL_P2P_LEVEL" in chosen:
        yield finding(chosen["NCCL_P2P_LEVEL"], "overruled", "NCCL_P2P_DISABLE=1 wins over it")
    without_ib = _without_ib(chosen)
    nvls = text_of(chosen, "NCCL_NVLS_ENABLE")
    without_nvls = nvls is not None and protects_multicast("NCCL_NVLS_ENABLE", nvls)
    for name, setting in chosen.items():
        variable = catalog.lookup(name)
        parts = () if variable is None else variable.applies_to
        if without_ib and parts == ("net-ib",) and name != "NCCL_IB_DISABLE":
            text = "InfiniBand is switched off beside it (NCCL_IB_DISABLE or NCCL_NET)"
            yield finding(setting, "overruled", text)
        elif without_nvls and parts == ("nvls",) and name != "NCCL_NVLS_ENABLE":
            yield finding(setting, "overruled", "NCCL_NVLS_ENABLE=0 switches NVLS off")


def _nvls_alone(chosen: Chosen, version: Version) -> Iterator[Finding]:
    """All-reduce by NVLS alone, which another setting switches off."""
    algorithms, nvls = text_of(chosen, "NCCL_ALGO"), text_of(chosen, "NCCL_NVLS_ENABLE")
    if not algorithms or nvls is None or not protects_multicast("NCCL_NVLS_ENABLE", nvls):
        return
    if grammar.grammar_error("NCCL_ALGO", algorithms, version) is not None:
        return
    left = grammar.enabled("NCCL_ALGO", algorithms, version)["AllReduce"]
    left &= grammar.ALGORITHMS_OF["AllReduce"]
    if left and left <= {"NVLS", "NVLSTree"}:
        text = "NCCL_NVLS_ENABLE=0 switches NVLS off: no algorithm is left for AllReduce"
        yield finding(chosen["NCCL_ALGO"], "no-algorithm", text)


def _need_another(chosen: Chosen) -> Iterator[Finding]:
    for name in _GDRCOPY:
        if name in chosen and not _may_be_on(chosen, "NCCL_GDRCOPY_ENABLE"):
            yield finding(chosen[name], "acts-only-with", "needs NCCL_GDRCOPY_ENABLE=1")
    policy = text_of(chosen, "NCCL_CTA_POLICY") or ""
    if "EFFICIENCY" in policy and {"NCCL_ALGO", "NCCL_PROTO"} & chosen.keys():
        text = "EFFICIENCY acts only where NCCL_ALGO and NCCL_PROTO are not set"
        yield finding(chosen["NCCL_CTA_POLICY"], "overruled", text)
    elif {"EFFICIENCY", "ZERO"} <= set(policy.split("|")):
        text = "NCCL drops EFFICIENCY beside ZERO"
        yield finding(chosen["NCCL_CTA_POLICY"], "constraint-broken", text)
    algorithms = text_of(chosen, "NCCL_ALGO") or ""
    if "collnet" in algorithms.lower() and not _may_be_on(chosen, "NCCL_COLLNET_ENABLE"):
        text = "CollNet is not switched on: it needs NCCL_COLLNET_ENABLE=1 beside it"
        yield finding(chosen["NCCL_ALGO"], "acts-only-with", text, "NVIDIA/nccl#653")


def _hosts(chosen: Chosen, version: Version) -> Iterator[Finding]:
    without = [number_of(chosen, f"NCCL_{way}_DISABLE") == 1 for way in ("P2P", "SHM")]
    if all(without) and Version("2.29") <= version < Version("2.30"):
        text = "with NCCL_P2P_DISABLE=1 too, send and receive within a host failed with NCCL 2.29"
        yield finding(chosen["NCCL_SHM_DISABLE"], "dangerous", text, "NVIDIA/nccl#2057")
    several = number_of(chosen, "NCCL_MULTI_RANK_GPU_ENABLE") == 1
    if several and number_of(chosen, "NCCL_NVLS_ENABLE") == 1:
        text = "NCCL ends at its start where ranks share a GPU (NCCL_MULTI_RANK_GPU_ENABLE=1)"
        yield finding(chosen["NCCL_NVLS_ENABLE"], "constraint-broken", text, "NVIDIA/nccl#1716")


def _algorithm_and_protocol(chosen: Chosen, version: Version) -> Iterator[Finding]:
    algorithms, protocols = text_of(chosen, "NCCL_ALGO"), text_of(chosen, "NCCL_PROTO")
    if not algorithms or not protocols:
        return
    if grammar.grammar_error("NCCL_ALGO", algorithms, version) is not None:
        return
    if grammar.grammar_error("NCCL_PROTO", protocols, version) is not None:
        return
    setting = chosen["NCCL_ALGO"]
    starved = grammar.starved_functions(algorithms, version)
    if starved and Version("2.19") <= version < Version("2.22"):
        text = (
            f"{', '.join(starved)} falls back to Ring, and NCCL {version} then ignores NCCL_PROTO"
        )
        yield finding(setting, "fallback-forgets-proto", text, "NVIDIA/nccl#1304")
    yield from _cleared(setting, algorithms, protocols, version)
    ways = grammar.enabled("NCCL_ALGO", algorithms, version)
    means = grammar.enabled("NCCL_PROTO", protocols, version)
    for function in grammar.DDP_FUNCTIONS:
        left = ways[function] & grammar.ALGORITHMS_OF[function]
        if (
            left
            and means[function]
            and not (left & {"Ring", "Tree"} or "Simple" in means[function])
        ):
            text = f"{', '.join(sorted(left))} has Simple alone, which NCCL_PROTO leaves out"
            yield finding(setting, "no-algorithm", text)
            return


def _cleared(
    setting: Setting, algorithms: str, protocols: str, version: Version
) -> Iterator[Finding]:
    """2.31: NCCL_ALGO clears what it does not name, and NCCL_PROTO for all asks for it."""
    if version < V2_24 or not any(function == "" for function, _ in _all_entries(protocols)):
        return
    named = {function.lower() for function, _ in _all_entries(algorithms)}
    bare = [f for f in grammar.DDP_FUNCTIONS if f.lower() not in named]
    if "" in named or not bare:
        return
    better = quoted(setting, f"ring,tree;{algorithms}")
    source = "vllm-project/vllm#58179"
    if version >= V2_31:
        text = (
            f"clears the algorithms of {', '.join(bare)}, and NCCL_PROTO without a function asks "
            f"for them: DDP fails; write {better}"
        )
        yield finding(setting, "no-algorithm", text, source)
    else:
        text = f"beside NCCL_PROTO without a function it fails from NCCL 2.31 on; write {better}"
        yield finding(setting, "long-spelling", text, source)


def _all_entries(value: str) -> list[tuple[str, list[str]]]:
    return list(entries(value.replace("^", "")))


def _log(chosen: Chosen) -> Iterator[Finding]:
    level = text_of(chosen, "NCCL_DEBUG")
    unknown = "NCCL_DEBUG" in chosen and level is None
    wanted = (level or "").upper() in ("INFO", "TRACE", "ABORT")
    for name in ("NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        heard = wanted or (name == "NCCL_DEBUG_FILE" and level)
        if name in chosen and not heard and not unknown:
            text = "nothing is logged: NCCL_DEBUG is not INFO"
            yield finding(chosen[name], "acts-only-with", text)
    subsystems = (text_of(chosen, "NCCL_DEBUG_SUBSYS") or "").upper()
    loud = sorted(_EVERY_CALL & set(subsystems.split(","))) if wanted else []
    if loud and not subsystems.startswith("^"):
        text = f"{', '.join(loud)}: lines for every collective on every rank; INIT,ENV is enough"
        yield finding(chosen["NCCL_DEBUG_SUBSYS"], "debugging-left-on", text)
