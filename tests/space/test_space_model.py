"""The parts of a space by themselves: values, conditions, constraints, the shipped files."""

from __future__ import annotations

import pytest
import yaml
from packaging.version import Version
from pydantic import ValidationError

from nccltune.nccl.values import refusal
from nccltune.output.best import allowed_variable
from nccltune.space.arguments import LAUNCHERS_OWN, target_problem, value_problem
from nccltune.space.conditions import When
from nccltune.space.constraints import BUILT_IN, Constraints
from nccltune.space.facts import Facts
from nccltune.space.loading import builtin_folder, builtin_names, load, load_fragments
from nccltune.space.model import Parameter, Range, Space
from nccltune.space.scalars import duplicates, from_text, quoted, same, show


def test_values_are_the_same_only_with_the_same_type() -> None:
    assert same(1, 1) and same(None, None) and same("1", "1") and same(True, True)
    assert not same(1, True) and not same(0, False) and not same(1, 1.0) and not same(1, "1")
    assert duplicates((1, True, "1", 1.0, None)) == ()
    assert duplicates((1, 2, 1, 1, None, None)) == (1, None)


def test_values_are_shown_as_a_user_writes_them() -> None:
    assert [show(v) for v in (None, True, False, 5, 2.5, "Ring")] == [
        "null", "true", "false", "5", "2.5", "Ring",
    ]  # fmt: skip
    assert quoted("a" * 500) == "'" + "a" * 76 + "..."
    assert quoted(list(range(10))) == "[0, 1, 2, 3, 4, 5, ...]"
    assert quoted({"a": 1}) == "a mapping"
    assert quoted(10**5000) == "a number beyond 64 bits"


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("-1", -1), ("8M", "8M"), ("", ""), ("ring", "ring"), ("1.5", "1.5"), ("-", "-")],
)
def test_a_variable_of_the_site_is_a_number_where_it_is_one(text: str, value: object) -> None:
    assert from_text(text) == value


def test_a_range_knows_its_members() -> None:
    whole = Range(low=0, high=10, step=5)
    assert [v for v in (0, 3, 5, 10, 15, True, 5.0, "5", None) if whole.contains(v)] == [0, 5, 10]
    real = Range(low=0.1, high=0.7, step=0.1, type="float")
    assert real.contains(0.3) and real.contains(0.7) and not real.contains(0.35)
    assert Range(low=1, high=64, log=True).contains(7)


def test_static_graph_is_unsafe_whatever_the_file_says() -> None:
    parameter = Parameter(name="static_graph", target="ddp", choices=(False, True), default=False)
    assert parameter.risk == "safe"
    assert parameter.effective_risk() == "unsafe"


def test_a_space_cannot_be_changed() -> None:
    space = load("cpu")
    with pytest.raises(ValidationError, match="frozen"):
        space.parameters["bucket_cap_mb"].default = 5  # type: ignore[misc]


def facts(**known: object) -> Facts:
    return Facts(**{"backend": "nccl", "world_size": 2, "probed": True, **known})  # type: ignore[arg-type]


CONDITIONS = [
    ({"backend": "nccl"}, {}, None),
    ({"backend": "gloo"}, {}, "needs backend gloo, this job uses nccl"),
    ({"backend": ["gloo", "nccl"]}, {}, None),
    ({"network": "Socket"}, {"network": "socket"}, None),
    ({"network": ["IB", "Socket"]}, {"network": "AWS Libfabric"},
     "needs network IB or Socket, this job uses AWS Libfabric"),
    ({"network": ["IB", "Socket"]}, {"network": "IB and Socket"}, None),
    ({"network": "IB"}, {"network": "IB and Socket"},
     "needs network IB, this job uses IB and Socket"),
    ({"network": "Socket"}, {"transports": ("P2P",)},
     "no rank uses the network here (transport P2P)"),
    ({"network": "Socket"}, {"probed": False}, None),
    ({"network": "Socket"}, {"probed": False, "network": "IB"},
     "needs network Socket, this job uses IB"),
    ({"transport": "SHM"}, {"transports": ("P2P", "shm")}, None),
    ({"transport": "SHM"}, {"transports": ("P2P", "NET")},
     "needs transport SHM, this job uses P2P, NET"),
    ({"transport": "SHM"}, {"probed": False}, None),
    ({"nvlinks": True}, {"nvlinks": True}, None),
    ({"nvlinks": True}, {"nvlinks": False}, "needs NVLink between all GPUs, here not all have it"),
    ({"nvlinks": False}, {"nvlinks": True}, "needs GPUs without NVLink, here all have it"),
    ({"nvlinks": False}, {"probed": False},
     "needs GPUs without NVLink, which is not known here"),
    ({"nccl": ">=2.24"}, {"nccl": Version("2.24.3")}, None),
    ({"nccl": ">=2.24"}, {"nccl": Version("2.21.5")}, "needs NCCL >=2.24, this job uses 2.21.5"),
    ({"nccl": [">=2.24", "<2.17"]}, {"nccl": Version("2.16")}, None),
    ({"nccl": ">=2.24"}, {"nccl": Version("2.25.1rc1")}, None),
    ({"nccl": ">=2.24"}, {}, None),
    ({"nodes": ">=2"}, {}, "needs nodes >=2, this job has 1"),
    ({"nodes": ">=2"}, {"nodes": 2}, None),
    ({"world_size": [4, 8]}, {}, "needs world size 4 or 8, this job has 2"),
    ({"world_size": [4, 8]}, {"world_size": 8}, None),
    ({"world_size": ">2, <=8"}, {"world_size": 9}, "needs world size >2, <=8, this job has 9"),
    ({"world_size": ">2, <=8"}, {"world_size": 3}, None),
    ({"backend": "nccl", "nodes": 2}, {}, "needs nodes 2, this job has 1"),
]  # fmt: skip


@pytest.mark.parametrize(("when", "known", "unmet"), CONDITIONS)
def test_a_condition_is_met_or_says_why_not(
    when: dict[str, object], known: dict[str, object], unmet: str | None
) -> None:
    assert When.model_validate(when).unmet(facts(**known)) == unmet


def test_the_built_in_rules() -> None:
    sockets = {"NCCL_SOCKET_NTHREADS": 16, "NCCL_NSOCKS_PERTHREAD": 4}
    assert BUILT_IN.broken_by(sockets) is None
    assert BUILT_IN.broken_by({**sockets, "NCCL_NSOCKS_PERTHREAD": 8}) == (
        "NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD must not exceed 64, "
        "got NCCL_SOCKET_NTHREADS=16 NCCL_NSOCKS_PERTHREAD=8"
    )
    assert BUILT_IN.broken_by({"NCCL_MIN_CTAS": 8, "NCCL_MAX_CTAS": 8}) is None
    assert BUILT_IN.broken_by({"NCCL_MIN_CTAS": 8, "NCCL_MAX_CTAS": None}) is None
    assert BUILT_IN.broken_by({"NCCL_MIN_CTAS": 16, "NCCL_MAX_CTAS": 8}) == (
        "NCCL_MIN_CTAS must not exceed NCCL_MAX_CTAS, got NCCL_MIN_CTAS=16 NCCL_MAX_CTAS=8"
    )
    assert BUILT_IN.broken_by({"prefetch_factor": 2, "num_workers": 1}) is None
    assert BUILT_IN.broken_by({"prefetch_factor": None, "num_workers": 0}) is None
    assert BUILT_IN.broken_by({"prefetch_factor": 2, "num_workers": 0}) == (
        "prefetch_factor needs num_workers to be on (not null, false or 0), "
        "got prefetch_factor=2 num_workers=0"
    )


def test_forbidden_combinations_mean_all_of_them() -> None:
    rules = Constraints.model_validate({"forbids": [{"A": [1, 2], "B": "not_null"}]})
    assert rules.broken_by({"A": 2, "B": 0}) == "the space forbids A=2 B=0 together"
    assert rules.broken_by({"A": 3, "B": 0}) is None
    assert rules.broken_by({"A": 1, "B": None}) is None
    assert rules.broken_by({"A": True, "B": 1}) is None  # true is not 1
    assert rules.broken_by({"A": 1, "B": 1}, unknown={"B"}) is None


def test_plain_gives_back_what_the_file_said() -> None:
    for name in builtin_names():
        space = load(name)
        again = Space.model_validate(yaml.safe_load(yaml.safe_dump(space.plain())))
        assert again == space
        assert again.plain() == space.plain()


def test_the_default_space() -> None:
    space = load("default")
    choices = {name: p.choices for name, p in space.parameters.items() if p.choices}
    assert choices["NCCL_ALGO"] == (None, "Ring", "Tree")
    assert choices["NCCL_PROTO"] == (None, "Simple", "LL", "^LL128")
    assert choices["bucket_cap_mb"] == (None, 5, 10, 25, 50, 100, 256)
    assert choices["batch_size"] == (16, 32, 64, 128, 256, 512, 1024)
    assert space.parameters["num_workers"].range == Range(low=0, high=32)
    assert space.parameters["gradient_as_bucket_view"].default is False
    targets = {p.target for p in space.parameters.values()}
    assert targets == {"env", "ddp", "loader", "batch"}


def test_the_communication_space_leaves_loader_and_batch_alone() -> None:
    assert {p.target for p in load("comm").parameters.values()} == {"env", "ddp"}


def test_the_cpu_space_needs_no_nccl() -> None:
    space = load("cpu")
    assert not [name for name, p in space.parameters.items() if p.target == "env"]
    assert space.parameters["batch_size"].choices == (4, 8, 16, 32, 64)


@pytest.mark.parametrize("version", ["2.17.1", "2.18.3", "2.21.5", "2.24.3", "2.28.9", "2.30.7"])
@pytest.mark.parametrize("name", ["default", "comm"])
def test_no_shipped_value_is_refused_by_its_own_nccl(name: str, version: str) -> None:
    job = facts(
        nccl=Version(version), network="Socket", transports=("P2P", "NET"), world_size=8, nodes=2
    )
    refused = [
        reason
        for parameter in load(name).parameters.values()
        if parameter.target == "env" and (parameter.when is None or not parameter.when.unmet(job))
        for value in parameter.choices or ()
        if (reason := refusal(parameter.name, value, Version(version)))
    ]
    # 2.17 and 2.18 cannot restrict all-reduce alone, so Tree leaves DDP without a broadcast.
    assert all(reason.startswith("NCCL_ALGO=Tree: ") for reason in refused)
    assert len(refused) <= 1


def test_shipped_files_say_what_each_parameter_is_and_where_presets_come_from() -> None:
    for name in builtin_names():
        text = (builtin_folder() / f"{name}.yaml").read_text()
        assert text.startswith("# ")
        space = load(name)
        assert all(p.about for p in space.parameters.values())
        assert all(p.risk in ("safe", "numerics") for p in space.parameters.values())
        assert all(p.default in (None, False) for p in space.parameters.values())


@pytest.mark.parametrize(
    "name",
    [
        *sorted(LAUNCHERS_OWN),
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "TORCHELASTIC_RUN_ID",
        "NCCLTUNE_TAG",
        "NCCL_DEBUG_SUBSYS",
    ],
)
def test_variables_of_the_launch_are_no_settings(name: str) -> None:
    assert target_problem(name, "env") == (
        f"{name} belongs to the launch and cannot be searched or held"
    )


def test_which_variables_belong_to_the_launch() -> None:
    assert {
        "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "MASTER_ADDR", "NCCL_CONF_FILE",
        "NCCL_ENV_PLUGIN", "PYTHONPATH", "RANK", "WORLD_SIZE",
    } <= LAUNCHERS_OWN  # fmt: skip
    for name in ("NCCL_ALGO", "OMP_NUM_THREADS", "NCCL_TUNER_PLUGIN", "TORCH_NCCL_AVOID_RECORD"):
        assert target_problem(name, "env") is None


@pytest.mark.parametrize("name", ["MY_VAR", "PYTHONSTARTUP", "UCX_TLS", "CUDA_CACHE_PATH"])
def test_a_variable_that_no_result_could_hold_is_no_setting(name: str) -> None:
    text = target_problem(name, "env") or ""
    assert text.startswith(f"{name} is none of the variables that settings may hold (NCCL_*, ")
    assert text.endswith("export it before nccltune starts, and it holds in every launch")
    assert target_problem("FI_PROVIDER_PATH", "env") == (
        "FI_PROVIDER_PATH names a folder whose libraries are loaded; export it before nccltune "
        "starts, and it holds in every launch"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_TUNER_PLUGIN", "/tmp/x.so"), ("NCCL_NET_PLUGIN", "./x"), ("FI_UCX_CONFIG", "/x")],
)
def test_a_value_that_no_result_could_hold_is_no_choice(name: str, value: str) -> None:
    assert (value_problem(name, "env", value) or "").endswith("no result may hold that")
    for plain in ("none", None, 1):
        assert value_problem(name, "env", plain) is None
    assert value_problem("NCCL_TOPO_FILE", "env", "/etc/topo.xml") is None


def test_what_shipped_spaces_set_can_be_read_back() -> None:
    listings = [load(name) for name in builtin_names()] + list(load_fragments().values())
    found = {
        (parameter.name, str(value))
        for listing in listings
        for parameter in listing.parameters.values()
        if parameter.target == "env"
        for value in parameter.choices or ()
        if value is not None
    }
    assert len(found) > 40
    for name, value in found:
        assert allowed_variable("best.env", name, value) == value
