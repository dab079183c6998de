from __future__ import annotations

import subprocess
import sys

import pytest
from packaging.version import Version

from nccltune.nccl import catalog
from nccltune.nccl.catalog import config_field, lookup, names, scope_of

ALL = [lookup(name) for name in names()]


def test_every_entry_loads_and_is_consistent() -> None:
    assert len(names()) == 245 + 24
    for variable in ALL:
        assert variable is not None
        assert variable.kind in ("bool", "int", "size", "enum", "string", "list")
        assert variable.scope in ("process", "communicator")
        assert variable.perf in (True, "weak", False)
        assert set(variable.risk) <= {"error", "hang", "corrupt"}, variable
        assert variable.applies_to, variable
        assert set(variable.choices_since) <= set(variable.choices), variable
        if variable.since is not None:
            assert variable.since <= catalog.NEWEST, variable
            assert variable.removed is None or variable.since < variable.removed, variable
        if variable.minimum is not None and variable.maximum is not None:
            assert variable.minimum <= variable.maximum, variable
        if variable.replacement is not None:
            assert lookup(variable.replacement) is not None, variable


def test_counts_of_current_and_removed_variables() -> None:
    removed = [variable for variable in ALL if variable and variable.removed]
    assert len(removed) == 24
    assert all(variable.perf is False for variable in removed)


def test_names_are_sorted_and_unique() -> None:
    assert list(names()) == sorted(set(names()))


def test_a_bounded_variable() -> None:
    ctas = lookup("NCCL_MAX_CTAS")
    assert ctas is not None
    assert (ctas.minimum, ctas.maximum) == (1, 64)
    assert ctas.since == Version("2.17.1")
    assert ctas.config == "max_ctas"
    assert ctas.perf is True
    assert ctas.is_integer


def test_a_text_variable_with_choices_that_came_later() -> None:
    level = lookup("NCCL_P2P_LEVEL")
    assert level is not None
    assert "PHB" in level.choices and "3" in level.choices
    assert level.choices_since == {"C2C": Version("2.26.2"), "P2C": Version("2.27.3")}
    assert set(level.risk) == {"hang", "corrupt"}
    assert not level.is_integer


def test_an_enum_of_numbers_is_read_as_an_integer() -> None:
    cross = lookup("NCCL_CROSS_NIC")
    assert cross is not None and cross.kind == "enum" and cross.is_integer


def test_a_removed_variable_names_its_successor() -> None:
    threshold = lookup("NCCL_TREE_THRESHOLD")
    assert threshold is not None
    assert threshold.removed == Version("2.5")
    assert threshold.replacement == "NCCL_ALGO"


def test_unknown_names() -> None:
    assert lookup("NCCL_NOT_THERE") is None
    assert scope_of("NCCL_NOT_THERE") == "process"
    assert scope_of("OMP_NUM_THREADS") == "process"
    assert config_field("NCCL_NOT_THERE") is None


@pytest.mark.parametrize("name", ["NCCL_ALGO", "NCCL_PROTO", "NCCL_NET", "NCCL_THREAD_THRESHOLDS"])
def test_what_nccl_reads_for_each_communicator(name: str) -> None:
    assert scope_of(name) == "communicator"


@pytest.mark.parametrize("name", ["NCCL_BUFFSIZE", "NCCL_NSOCKS_PERTHREAD", "NCCL_P2P_LEVEL"])
def test_what_nccl_caches_for_the_process(name: str) -> None:
    assert scope_of(name) == "process"
    assert config_field(name) is None


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("NCCL_MIN_CTAS", "min_ctas"),
        ("NCCL_MAX_CTAS", "max_ctas"),
        ("NCCL_CGA_CLUSTER_SIZE", "cga_cluster_size"),
        ("NCCL_NVLS_NCHANNELS", "nvls_ctas"),
        ("NCCL_NET", "net_name"),
    ],
)
def test_what_torch_can_set_for_one_group(name: str, attribute: str) -> None:
    assert config_field(name) == attribute
    assert scope_of(name) == "communicator"


def test_the_data_is_read_late() -> None:
    code = (
        "import sys, nccltune.nccl.values, nccltune.nccl.log, nccltune.nccl.site\n"
        "from nccltune.nccl import catalog\n"
        "assert catalog._variables.cache_info().currsize == 0\n"
        "assert not {'torch', 'optuna', 'scipy', 'pydantic'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_marks_for_automatic_are_no_choices() -> None:
    marked = [variable for variable in ALL if variable and variable.automatic]
    assert len(marked) == 41
    for variable in marked:
        assert all(mark < 0 for mark in variable.automatic), variable
        assert variable.minimum is None or max(variable.automatic) < variable.minimum, variable
        assert not set(map(str, variable.automatic)) & set(variable.choices), variable


def test_what_the_guide_says_is_documented() -> None:
    debugging = [variable for variable in ALL if variable and variable.debugging]
    assert len(debugging) == 64
    assert all(variable.documented and not variable.removed for variable in debugging)
    names_of_fabric = {variable.name for variable in ALL if variable and variable.fabric}
    assert {"NCCL_IB_GID_INDEX", "NCCL_IB_HCA", "NCCL_TOPO_FILE"} <= names_of_fabric
    assert "NCCL_IB_TIMEOUT" not in names_of_fabric


def test_words_for_truth_values_came_late() -> None:
    name = lookup("NCCL_SET_THREAD_NAME")
    assert name is not None and name.typed_since == Version("2.30.7")
    disable = lookup("NCCL_P2P_DISABLE")
    assert disable is not None and disable.typed_since is None
