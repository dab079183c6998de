"""Whatever stands in a file and whatever the facts are: seeded draws."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml
from packaging.version import Version
from space_jobs import names, site, space_of

from nccltune.errors import UsageError
from nccltune.nccl.values import refusal
from nccltune.space.configuration import canonical, violation
from nccltune.space.loading import load, load_fragments
from nccltune.space.model import Parameter, Space
from nccltune.space.resolve import Facts, Selection, resolve
from nccltune.space.scalars import Value

SHIPPED = load_fragments()
_VIEW = {"target": "ddp", "choices": [False, True], "default": False}
OWN = space_of({"gradient_as_bucket_view": _VIEW}, fragments=True)

WORDS = (
    "version", "when", "unset", "parameters", "constraints", "presets", "fragments", "about",
    "target", "choices", "range", "default", "risk", "caution", "low", "high", "step", "log",
    "type", "transport", "network", "nvlinks", "param", "nodes", "backend", "NCCL_ALGO",
    "NCCL_MAX_CTAS", "NCCL_NSOCKS_PERTHREAD", "bucket_cap_mb", "num_workers", "batch_size",
    "requires", "forbids", "product_at_most", "at_most_parameter", "limit", "parameter", "needs",
    "name", "source", "values", "env", "ddp", "loader", "P2P", "not_null", "", "a b", "^LL128",
)  # fmt: skip
SCALARS: tuple[object, ...] = (
    None, True, False, 0, 1, -1, 8, 2**70, 1.5, float("nan"), float("inf"), "1", "P2P", "null",
    "env", "Ring", ">=2", "\x07", "é", "x" * 2000,
)  # fmt: skip


def anything(draw: random.Random, depth: int = 0) -> object:
    kind = draw.random()
    if depth > 4 or kind < 0.4:
        return draw.choice((*SCALARS, *WORDS))
    if kind < 0.6:
        return [anything(draw, depth + 1) for _ in range(draw.randrange(4))]
    keys = [draw.choice((*WORDS, *WORDS, 1, None, True)) for _ in range(draw.randrange(5))]
    return {name: anything(draw, depth + 1) for name in keys}


def damaged(document: object, draw: random.Random) -> object:
    """The document with one place replaced, removed or added to."""
    if not isinstance(document, dict | list) or not document or draw.random() < 0.15:
        return anything(draw, 2)
    if isinstance(document, list):
        place = draw.randrange(len(document))
        return [damaged(v, draw) if i == place else v for i, v in enumerate(document)]
    name = draw.choice(list(document))
    if draw.random() < 0.1:
        return {k: v for k, v in document.items() if k != name}
    if draw.random() < 0.1:
        return {**document, draw.choice(WORDS): anything(draw, 2)}
    return {k: damaged(v, draw) if k == name else v for k, v in document.items()}


def test_any_document_is_a_fragment_or_a_space_or_told_to_the_user(tmp_path: Path) -> None:
    draw = random.Random(7)
    whole = [
        yaml.safe_load(yaml.safe_dump(listing.plain()))
        for listing in (*SHIPPED.values(), load("default"), load("comm"))
    ]
    path, good = tmp_path / "a.yaml", 0
    for number in range(200):
        content = anything(draw) if number % 4 == 0 else damaged(draw.choice(whole), draw)
        path.write_text(yaml.safe_dump(content, allow_unicode=True))
        for read in (lambda: load_fragments(tmp_path), lambda: load(str(path))):
            try:
                found = read()
                if isinstance(found, Space):
                    resolve(found, any_facts(draw), any_selection(draw), "a.yaml", SHIPPED)
                else:
                    facts = any_facts(draw)
                    resolve(OWN, facts, any_selection(draw), "a.yaml", found)
                good += 1
            except UsageError as error:
                assert str(error)
    assert good > 20  # not all was refused at the door


VERSIONS = (None, "2.16.5", "2.18.5", "2.21.5", "2.24.3", "2.27.7", "2.28.9", "2.30.7")
NETWORKS = (None, "Socket", "IB", "AWS Libfabric", "Libfabric", "GPUDirectTCPX_v7", "Other")
SITES: tuple[dict[str, str], ...] = (
    {},
    {"NCCL_NVLS_ENABLE": "0"},
    {"NVSHMEM_DISABLE_NVLS": "1", "NCCL_MIN_CTAS": "16"},
    {"NCCL_MAX_CTAS": "8", "NCCL_SOCKET_NTHREADS": "16"},
    {"NCCL_ALGO": "Ring", "NCCL_P2P_DISABLE": "1", "NCCL_NSOCKS_PERTHREAD": "8"},
)


def any_facts(draw: random.Random) -> Facts:
    version = draw.choice(VERSIONS)
    probed = draw.random() < 0.85
    return Facts(
        backend="gloo" if draw.random() < 0.1 else "nccl",
        world_size=draw.choice((1, 2, 8)),
        nodes=draw.choice((1, 2, 4)),
        probed=probed,
        network=draw.choice(NETWORKS) if probed else None,
        transports=tuple(t for t in ("NET", "P2P", "SHM") if draw.random() < 0.5),
        nvlinks=draw.choice((None, True, False)),
        nccl=Version(version) if version else None,
        interfaces=draw.choice(((), ("eth0",), ("eth0", "ib0"))),
        site=site(**draw.choice(SITES)),
        ddp_arguments=draw.choice((None, frozenset({"bucket_cap_mb"}))),
        cpus_per_rank=draw.choice((1, 2, 16)),
        batch_size=draw.choice((1, 64, 5000)),
        num_workers=draw.choice((0, 1, 40)),
        data=draw.choice(("images", "synthetic")),
    )


def any_selection(draw: random.Random) -> Selection:
    return Selection(
        only=draw.choice(((), (), ("env",))),
        exclude=draw.choice(((), (), ("loader",))),
        allow_guarded=draw.random() < 0.5,
        allow_unsafe=draw.random() < 0.2,
    )


def any_value(parameter: Parameter, draw: random.Random) -> Value:
    if parameter.choices is not None:
        return draw.choice(parameter.choices)
    assert parameter.range is not None
    return draw.randint(int(parameter.range.low), int(parameter.range.high))


def number(values: dict[str, Value], name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def wrong_with(values: dict[str, Value], facts: Facts) -> list[str]:
    """The rules that these values break, judged without the code under test. With the site's."""
    ours = values
    held: dict[str, Value] = {n: int(v.value) for n, v in facts.site.items() if v.value.isdigit()}
    values = {**held, "num_workers": facts.num_workers, **ours}
    found = []
    threads, sockets = (
        number(values, f"NCCL_{n}") for n in ("SOCKET_NTHREADS", "NSOCKS_PERTHREAD")
    )
    if {"NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"} & ours.keys():
        if threads and sockets and threads * sockets > 64:
            found.append("sockets")
        if ours.get("NCCL_NSOCKS_PERTHREAD") and not threads:
            found.append("sockets without threads")
    low, high = number(values, "NCCL_MIN_CTAS"), number(values, "NCCL_MAX_CTAS")
    if low and high and low > high:
        found.append("channels")
    if ours.get("prefetch_factor") and not values["num_workers"]:
        found.append("prefetch without workers")
    if ours.get("NCCL_P2P_LEVEL") and values.get("NCCL_P2P_DISABLE"):
        found.append("a level without peer-to-peer")
    if ours.get("NCCL_IB_SPLIT_DATA_ON_QPS") is not None and not values.get(
        "NCCL_IB_QPS_PER_CONNECTION"
    ):
        found.append("split without queue pairs")
    if ours.get("NCCL_NVLS_ENABLE") not in (None, 0):
        found.append("multicast")
    found += [name for name in ours if name in facts.site]
    unset = SHIPPED["efa" if "fabric" in (facts.network or "") else "tcpx"].unset
    if (facts.network or "").startswith(("AWS", "Lib", "GPUDirect")):
        found += [name for name in unset if name in ours]
    return found


@pytest.mark.parametrize("name", ["default", "comm", "own"])
def test_no_configuration_breaks_a_rule_whatever_the_facts_are(name: str) -> None:
    draw = random.Random(f"rules {name}")
    space = OWN if name == "own" else load(name)
    seen, legal = set[str](), 0
    for _ in range(400):
        facts, selection = any_facts(draw), any_selection(draw)
        found = resolve(space, facts, selection, name, SHIPPED)
        seen.update(names(found))
        points = [found.baseline, *(canonical(preset.values, found) for preset in found.presets)]
        for point in points:
            assert violation(point, found) is None
        for _ in range(12):
            point = canonical({p.name: any_value(p, draw) for p in found.parameters}, found)
            assert canonical(point, found) == point
            if violation(point, found) is None:  # else nothing is launched
                points.append(point)
        for point in points:
            assert list(point) == [parameter.name for parameter in found.parameters]
            assert wrong_with(point, facts) == []
            for parameter in found.parameters:
                value = point[parameter.name]
                assert parameter.legal(value) or (value is None and parameter.target == "env")
                if parameter.target == "env" and not selection.allow_unsafe:
                    assert refusal(parameter.name, value, facts.nccl) is None
            legal += 1
    assert legal > 1000
    everything = {p for one in SHIPPED.values() for p in one.parameters} | set(space.parameters)
    assert seen == everything
