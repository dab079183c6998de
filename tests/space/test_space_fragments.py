"""What the path between ranks adds to a space, and what is left alone there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version
from space_jobs import (
    GLOO,
    NVLINK,
    PCIE,
    SOCKETS,
    choices,
    names,
    notes,
    refused,
    resolved,
    site,
    space_of,
    variable,
)

from nccltune.errors import UsageError
from nccltune.nccl.values import refusal, spell
from nccltune.space.configuration import canonical, key, violation
from nccltune.space.loading import load, load_fragments
from nccltune.space.model import Fragment, Space
from nccltune.space.resolve import Facts, ResolvedSpace, Selection, resolve
from nccltune.space.scalars import Value

SHIPPED = load_fragments()
IB = replace(SOCKETS, network="IB", transports=("NET", "P2P"), nvlinks=True)
EFA = replace(SOCKETS, network="AWS Libfabric", transports=("NET", "P2P"), nvlinks=True)
TCPX = replace(SOCKETS, network="FasTrak", transports=("NET", "P2P"), nvlinks=True)
EARLY = replace(NVLINK, probed=False, transports=(), nccl=None)
OWN = {"gradient_as_bucket_view": {"target": "ddp", "choices": [False, True], "default": False}}


def takes_fragments(parameters: dict[str, Any] | None = None, **more: Any) -> Space:
    return space_of(parameters or OWN, fragments=True, **more)


def fragment(parameters: dict[str, Any], when: Any = None, **more: Any) -> Fragment:
    document = {"version": 1, "when": when or {"transport": "P2P"}, "parameters": parameters}
    return Fragment.model_validate({**document, **more})


def with_fragments(
    space: Space, fragments: dict[str, Fragment], facts: Facts = NVLINK, **selection: Any
) -> ResolvedSpace:
    return resolve(space, facts, Selection(**selection), "a.yaml", fragments)


def added(found: ResolvedSpace) -> dict[str, str]:
    return {note.parameter: note.reason for note in found.notes if note.action == "added"}


# What each path adds.


def test_which_fragments_are_shipped_and_what_they_hold() -> None:
    assert {name: (list(f.parameters), list(f.unset)) for name, f in SHIPPED.items()} == {
        "efa": ([], ["NCCL_ALGO", "NCCL_PROTO", "NCCL_TUNER_PLUGIN", "NCCL_BUFFSIZE"]),
        "ethernet": (
            ["NCCL_SOCKET_IFNAME", "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD",
             "NCCL_MIN_CTAS", "NCCL_MAX_CTAS"],
            [],
        ),
        "infiniband": (
            ["NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_NET_GDR_LEVEL",
             "NCCL_CROSS_NIC", "NCCL_PXN_DISABLE", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_PROTO",
             "NCCL_BUFFSIZE"],
            [],
        ),
        "nvlink": (
            ["NCCL_NVLS_ENABLE", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_CGA_CLUSTER_SIZE",
             "TORCH_NCCL_HIGH_PRIORITY", "bucket_cap_mb"],
            [],
        ),
        "pcie": (
            ["NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS",
             "NCCL_BUFFSIZE"],
            [],
        ),
        "tcpx": (
            [],
            ["NCCL_ALGO", "NCCL_PROTO", "NCCL_TUNER_PLUGIN", "NCCL_BUFFSIZE", "NCCL_CROSS_NIC"],
        ),
    }  # fmt: skip


def test_over_nvlink() -> None:
    found = resolved(takes_fragments(), NVLINK)
    assert added(found) == dict.fromkeys(
        SHIPPED["nvlink"].parameters, "fragment nvlink (transport P2P over NVLink)"
    )
    assert choices(found, "NCCL_NVLS_ENABLE") == (None, 0)
    assert choices(found, "TORCH_NCCL_HIGH_PRIORITY") == (None, 1)
    assert max(value or 0 for value in choices(found, "bucket_cap_mb") or ()) == 256  # type: ignore[type-var]
    assert key(found.baseline) == key({name: found.baseline[name] for name in names(found)})
    assert set(found.baseline.values()) == {None, False}


def test_over_pcie_levels_beyond_the_default_are_offered_and_not_taken() -> None:
    found = resolved(load("default"), PCIE)
    assert added(found)["NCCL_P2P_DISABLE"] == "fragment pcie (transport P2P without NVLink)"
    assert "NCCL_P2P_LEVEL" not in names(found)
    assert notes(found, "NCCL_P2P_LEVEL") == [
        (
            "guarded",
            "could be tried with --allow-guarded (hangs were reported where PCIe access control "
            "is on)",
        )
    ]
    assert choices(resolved(load("default"), PCIE, allow_guarded=True), "NCCL_P2P_LEVEL") == (
        None, "PHB", "SYS",
    )  # fmt: skip


def test_through_the_hosts_memory_there_is_no_peer_to_peer_to_switch_off() -> None:
    found = resolved(load("default"), replace(PCIE, transports=("SHM",)), allow_guarded=True)
    assert "NCCL_P2P_LEVEL" in names(found) and "NCCL_P2P_DISABLE" not in names(found)


def test_a_level_does_nothing_where_peer_to_peer_is_off() -> None:
    found = resolved(load("default"), PCIE, allow_guarded=True)
    both: dict[str, Value] = {"NCCL_P2P_DISABLE": 1, "NCCL_P2P_LEVEL": "SYS"}
    assert canonical(both, found)["NCCL_P2P_LEVEL"] is None


def test_without_word_of_nvlinks_neither_is_taken() -> None:
    found = resolved(load("default"), replace(NVLINK, nvlinks=None))
    assert added(found) == {}
    assert notes(found, "fragment nvlink")[0][1].startswith(
        "needs NVLink between all GPUs, which is not known here: NCCL_NVLS_ENABLE, "
    )


def test_over_infiniband() -> None:
    found = resolved(load("default"), IB)
    assert {
        "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_CROSS_NIC",
        "NCCL_PXN_DISABLE", "NCCL_CGA_CLUSTER_SIZE",
    } <= set(names(found))  # fmt: skip
    assert added(found)["NCCL_CROSS_NIC"] == "fragment infiniband (network IB)"
    assert notes(found, "NCCL_NET_GDR_LEVEL")[0][0] == "guarded"
    assert found.presets[0].name == "simple-8-mib"
    one = resolved(load("default"), replace(IB, nodes=1))
    assert notes(one, "NCCL_CROSS_NIC") == [("dropped", "needs nodes >=2, this job has 1")]


def test_socket_variables_exist_where_nccl_says_sockets_and_nowhere_else() -> None:
    variables = {"NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"}
    for space in ("default", "comm"):
        assert variables <= set(names(resolved(load(space), SOCKETS)))
        for facts in (NVLINK, PCIE, IB, EFA, TCPX, EARLY, GLOO):
            assert not variables & set(names(resolved(load(space), facts)))


@pytest.mark.parametrize("facts", [EFA, TCPX, replace(EFA, network="Libfabric")])
def test_a_plugin_with_a_tuner_is_left_to_it(facts: Facts) -> None:
    found = resolved(load("comm"), facts)
    for name in ("NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_TUNER_PLUGIN"):
        assert name not in found.baseline
    label = "tcpx" if facts is TCPX else "efa"
    (action, reason), *more = notes(found, "NCCL_ALGO")
    assert (action, more) == ("dropped", [])
    assert reason == f"fragment {label}: {SHIPPED[label].unset['NCCL_ALGO']}"
    assert "ring" not in [preset.name for preset in found.presets]
    # Whoever asks for one by name gets it, and what the site has set stays.
    assert resolved(load("comm"), facts, fix={"NCCL_ALGO": "Ring"}).fixed == {"NCCL_ALGO": "Ring"}
    pinned = resolved(load("comm"), replace(facts, site=site(NCCL_PROTO="Simple")))
    assert notes(pinned, "NCCL_PROTO")[0][0] == "pinned"


TWO = replace(SOCKETS, interfaces=("eth0", "ib0"))


def test_interfaces_are_offered_between_hosts_that_have_several() -> None:
    for space in ("default", "comm"):
        found = resolved(load(space), TWO)
        assert "NCCL_SOCKET_IFNAME" not in names(found)
        assert notes(found, "NCCL_SOCKET_IFNAME") == [
            (
                "guarded",
                "could be tried with --allow-guarded (the interface must be there on every host, "
                "and its network one that jobs may fill)",
            )
        ]
        taken = resolved(load(space), TWO, allow_guarded=True)
        assert choices(taken, "NCCL_SOCKET_IFNAME") == (None, "=eth0", "=ib0")
        assert taken.baseline["NCCL_SOCKET_IFNAME"] is None
        assert notes(taken, "NCCL_SOCKET_IFNAME") == [
            ("added", "fragment ethernet (network Socket)"),
            ("added", "each interface up here as a choice: eth0, ib0"),
        ]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (replace(SOCKETS, interfaces=("eth0",)),
         "needs two interfaces or more that could carry sockets, eth0 is the only one here"),
        (SOCKETS, "needs two interfaces or more that could carry sockets, there is none here"),
        (replace(TWO, nodes=1), "needs nodes >=2, this job has 1"),
    ],
)  # fmt: skip
def test_where_there_is_no_interface_to_choose(facts: Facts, reason: str) -> None:
    found = resolved(load("default"), facts, allow_guarded=True)
    assert notes(found, "NCCL_SOCKET_IFNAME") == [("dropped", reason)]
    assert "NCCL_SOCKET_NTHREADS" in names(found)  # the rest of the path is there


def test_the_sites_interface_stays() -> None:
    """As where hosts are emulated, which holds it at the loopback."""
    pinned = replace(TWO, interfaces=("lo", "eth0"), site=site(NCCL_SOCKET_IFNAME="lo"))
    found = resolved(load("comm"), pinned, allow_guarded=True)
    assert [action for action, _ in notes(found, "NCCL_SOCKET_IFNAME")] == ["pinned"]
    held = resolved(load("comm"), TWO, fix={"NCCL_SOCKET_IFNAME": "=eth1"})
    assert held.fixed == {"NCCL_SOCKET_IFNAME": "=eth1"}


def test_what_the_machine_made_is_kept_as_plain_choices() -> None:
    found = resolved(load("comm"), TWO, allow_guarded=True)
    document = yaml.safe_load(yaml.safe_dump(found.to_dict()))
    [kept] = [p for p in document["parameters"] if p["name"] == "NCCL_SOCKET_IFNAME"]
    assert kept["choices"] == [None, "=eth0", "=ib0"] and "choices_from" not in kept
    assert ResolvedSpace.from_dict(document) == found


def test_a_preset_of_a_users_own_space_holds_where_its_interface_is_here() -> None:
    space = space_of(
        {"NCCL_SOCKET_IFNAME": {"target": "env", "choices_from": "interfaces"}},
        presets=[
            {"name": name, "source": "a/b#1", "values": {"NCCL_SOCKET_IFNAME": f"={name}"}}
            for name in ("ib0", "ib7")
        ],
    )
    assert [preset.name for preset in resolved(space, TWO).presets] == ["ib0"]


@pytest.mark.parametrize(
    "facts",
    [
        replace(SOCKETS, site=site(NCCL_SOCKET_IFNAME="lo")),  # emulated hosts
        replace(SOCKETS, nodes=1),
        SOCKETS,
        IB,
        NVLINK,
    ],
)
def test_unless_it_is_taken_interfaces_change_nothing_that_a_study_is_compared_by(
    facts: Facts,
) -> None:
    """So that studies from before are resumed as they were."""
    here = replace(facts, interfaces=("eth0", "eth1", "lo"))
    assert resolved(load("comm"), here).digest() == resolved(load("comm"), facts).digest()


# How a space and its fragments come together.


def test_only_a_space_that_says_so_takes_fragments() -> None:
    found = resolved(space_of(OWN), NVLINK)
    assert names(found) == list(OWN) and found.notes == ()
    assert [n for n in ("default", "comm", "cpu") if load(n).fragments] == ["default", "comm"]


def test_before_the_probe_nothing_is_added_and_that_is_said() -> None:
    found = resolved(load("default"), EARLY)
    assert names(found) == list(load("default").parameters)
    assert added(found) == {}
    assert notes(found, "fragments") == [
        (
            "dropped",
            "nothing is added for the path between ranks, which only a probe launch tells",
        )
    ]


def test_the_spaces_own_entry_stands() -> None:
    own = takes_fragments({"NCCL_MAX_CTAS": variable(None, 3, 5)})
    found = with_fragments(own, SHIPPED)
    assert choices(found, "NCCL_MAX_CTAS") == (None, 3, 5)
    assert "NCCL_MAX_CTAS" not in added(found) and "NCCL_MIN_CTAS" in added(found)
    assert names(found)[0] == "NCCL_MAX_CTAS"
    # Its rules hold for the entry of the space too.
    assert violation({"NCCL_MIN_CTAS": 8, "NCCL_MAX_CTAS": 5}, found)


def test_of_two_fragments_the_first_gives_a_parameter() -> None:
    two = {
        "a": fragment({"NCCL_MAX_CTAS": variable(None, 3)}),
        "b": fragment({"NCCL_MAX_CTAS": variable(None, 5), "NCCL_MIN_CTAS": variable(None, 2)}),
    }
    found = with_fragments(takes_fragments(), two)
    assert choices(found, "NCCL_MAX_CTAS") == (None, 3)
    assert added(found) == {
        "NCCL_MAX_CTAS": "fragment a (transport P2P)",
        "NCCL_MIN_CTAS": "fragment b (transport P2P)",
    }


def test_what_is_added_and_then_pinned_or_dropped_is_told_once() -> None:
    facts = replace(NVLINK, nccl=Version("2.16.2"), site=site(NCCL_CGA_CLUSTER_SIZE="2"))
    found = resolved(load("default"), facts)
    assert [action for action, _ in notes(found, "NCCL_CGA_CLUSTER_SIZE")] == ["pinned"]
    assert [action for action, _ in notes(found, "NCCL_NVLS_ENABLE")] == ["dropped"]


def test_names_of_other_paths_stay_known() -> None:
    found = resolved(load("default"), NVLINK, exclude=("NCCL_SOCKET_NTHREADS",))
    assert "NCCL_CGA_CLUSTER_SIZE" in names(found)
    for facts in (EARLY, SOCKETS):
        held = resolved(load("default"), facts, fix={"TORCH_NCCL_HIGH_PRIORITY": 1})
        assert held.fixed == {"TORCH_NCCL_HIGH_PRIORITY": 1}
        assert held.fixed_targets == {"TORCH_NCCL_HIGH_PRIORITY": "env"}
    assert "unknown parameter or target 'NCCL_SOCKETS'" in refused(
        load("default"), NVLINK, only=("NCCL_SOCKETS",)
    )


def test_notes_survive_study_yaml() -> None:
    for facts in (NVLINK, PCIE, SOCKETS, IB, EFA, EARLY):
        found = resolved(load("default"), facts)
        text = yaml.safe_dump(found.to_dict())
        assert ResolvedSpace.from_dict(yaml.safe_load(text)) == found


def test_a_caution_is_no_part_of_what_is_searched() -> None:
    plain, warned = (
        resolved({"NCCL_P2P_LEVEL": variable(None, "SYS", risk="guarded", **more)},
                 allow_guarded=True)
        for more in ({}, {"caution": "take care"})
    )  # fmt: skip
    assert plain.digest() == warned.digest()


# What a fragment may be.

HEAD = "version: 1\nwhen: {transport: P2P}\n"
MAX = "NCCL_MAX_CTAS: {target: env, choices: [null, 8], default: null}"
BROKEN = [
    ("version: 1\nparameters: {" + MAX + "}\n", "a.yaml: when: is missing"),
    ("version: 1\nwhen: {}\nparameters: {" + MAX + "}\n",
     "a.yaml: when: must not be empty: it says on which path the fragment acts"),
    ("version: 1\nwhen: {param: {NCCL_MAX_CTAS: 8}}\nparameters: {" + MAX + "}\n",
     "a.yaml: when.param: is for parameters, a fragment depends on the path alone"),
    ("version: 1\nwhen: {nvlinks: 18}\nparameters: {" + MAX + "}\n",
     "a.yaml: when.nvlinks: must be true or false, got 18"),
    (HEAD, "a.yaml: needs parameters or unset, got neither"),
    (HEAD + "unset: {NCCL_ALGO: ''}\n",
     "a.yaml: unset.NCCL_ALGO: must be a reason in one line"),
    (HEAD + "unset: [NCCL_ALGO]\n", "a.yaml: unset: must be a mapping, got ['NCCL_ALGO']"),
    (HEAD + "unset: {NCCL_MAX_CTAS: why}\nparameters: {" + MAX + "}\n",
     "a.yaml: unset.NCCL_MAX_CTAS: is a parameter of the fragment too"),
    (HEAD + "parameters: {" + MAX.replace("default: null", "default: 8") + "}\n",
     "a.yaml: parameters.NCCL_MAX_CTAS.default: must be null, which leaves the baseline as it is, "
     "got 8"),
    (HEAD + "parameters: {" + MAX + "}\n"
     "constraints: {requires: [{parameter: NCCL_MAX_CTAS, needs: NCCL_ALGO}]}\n",
     "a.yaml: constraints.requires[0]: unknown parameter 'NCCL_ALGO', the fragment has "
     "NCCL_MAX_CTAS"),
    (HEAD + "fragments: true\nparameters: {" + MAX + "}\n",
     "a.yaml: fragments: unknown key, known are version, about, parameters, constraints, presets, "
     "when, unset"),
    (HEAD.replace("1", "2"), "a.yaml: version: must be 1, got 2"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), BROKEN)
def test_a_broken_fragment_is_told_with_field_rule_and_value(
    content: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        load_fragments(tmp_path)
    assert str(caught.value).replace(str(path), "a.yaml") == message


def test_shipped_fragments_say_what_and_why() -> None:
    for one in SHIPPED.values():
        assert one.about and one.when.backend == ("nccl",)
        for parameter in one.parameters.values():
            assert parameter.about
            assert parameter.risk in ("safe", "numerics", "guarded")
            assert bool(parameter.caution) == (parameter.risk == "guarded")


def test_multicast_is_never_asked_for() -> None:
    for listing in (*SHIPPED.values(), *(load(name) for name in ("default", "comm", "cpu"))):
        for name, parameter in listing.parameters.items():
            assert not name.startswith("NCCL_NVLS") or parameter.choices == (None, 0)
        for preset in listing.presets:
            assert not [name for name in preset.values if name.startswith("NCCL_NVLS")]


@pytest.mark.parametrize("version", ["2.17.1", "2.18.3", "2.21.5", "2.24.3", "2.28.9", "2.30.7"])
def test_no_value_of_a_fragment_is_refused_by_its_own_nccl(version: str) -> None:
    job = replace(IB, nccl=Version(version), world_size=8)
    for one in SHIPPED.values():
        for parameter in one.parameters.values():
            met = parameter.when is None or not parameter.when.unmet(job)
            for value in parameter.choices or () if met and parameter.target == "env" else ():
                assert refusal(parameter.name, value, Version(version)) is None


# Dangerous values in a user's own space.


def test_tree_in_a_users_own_space_is_spelled_for_all_reduce_alone() -> None:
    space = {"NCCL_ALGO": variable(None, "Tree")}
    assert choices(resolved(space), "NCCL_ALGO") == (None, "Tree")
    assert spell("NCCL_ALGO", "Tree", SOCKETS.nccl) == "ring,tree;allreduce:tree"
    for release in ("2.17.1", "2.18.5"):  # they leave Ring to all but all-reduce
        found = resolved(space, replace(SOCKETS, nccl=Version(release)))
        assert choices(found, "NCCL_ALGO") == (None, "Tree")
        assert spell("NCCL_ALGO", "Tree", Version(release)) == "Tree"


def test_a_size_with_a_unit_is_refused_with_what_nccl_would_read() -> None:
    found = resolved({"NCCL_BUFFSIZE": variable(None, "8M", 8388608)})
    assert choices(found, "NCCL_BUFFSIZE") == (None, 8388608)
    assert notes(found, "NCCL_BUFFSIZE") == [
        (
            "narrowed",
            "NCCL_BUFFSIZE=8M: NCCL would read this as 8; write a plain decimal number of bytes",
        )
    ]
    assert "NCCL would read this as 8" in refused(load("default"), fix={"NCCL_BUFFSIZE": "8M"})
