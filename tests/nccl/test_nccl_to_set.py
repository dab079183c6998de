"""Which variables of a result are set beside those that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccltune.nccl.to_set import ToSet, variables_to_set

NONE = {"NCCL_CONF_FILE": "/nowhere/nccl.conf"}  # the machine's own are not looked at


def test_what_nobody_sets_is_set() -> None:
    found = variables_to_set({"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "4"}, NONE)
    assert found == ToSet({"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "4"}, ())


def test_what_is_there_stays_and_is_told() -> None:
    there = {**NONE, "NCCL_ALGO": "Tree", "NCCL_PROTO": "", "A": "x", "NCCL_BUFFSIZE": "1048576"}
    wanted = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL", "A": "y", "NCCL_BUFFSIZE": "1048576"}
    assert variables_to_set(wanted, there) == ToSet({}, (
        "NCCL_ALGO stays 'Tree', which the environment sets; the file has 'Ring'",
        "NCCL_PROTO stays '', which the environment sets; the file has 'LL'",
        "A stays 'x', which the environment sets; the file has 'y'",
    ))  # fmt: skip


def test_nccls_own_file_counts(tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_ALGO=Tree\nNCCL_PROTO=LL\n")
    wanted = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL", "NCCL_BUFFSIZE": "1"}
    assert variables_to_set(wanted, {"NCCL_CONF_FILE": str(conf)}) == ToSet(
        {"NCCL_BUFFSIZE": "1"}, (f"NCCL_ALGO stays 'Tree', which {conf} sets; the file has 'Ring'",)
    )


@pytest.mark.parametrize(
    "off",
    [
        {"NCCL_NVLS_ENABLE": "0"},
        {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"},
        {"NVSHMEM_DISABLE_NVLS": "1"},
    ],
)
@pytest.mark.parametrize(
    "wakes",
    [
        {"NCCL_NVLS_ENABLE": "1"},
        {"NCCL_NVLS_NCHANNELS": "16"},
        {"NCCL_ALGO": "ring,nvls"},
        {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "0"},
    ],
)
def test_multicast_stays_off(off: dict[str, str], wakes: dict[str, str]) -> None:
    found = variables_to_set({**wakes, "NCCL_PROTO": "LL"}, {**NONE, **off})
    assert found.values == {"NCCL_PROTO": "LL"}
    assert len(found.kept) == 1
    assert found.kept[0].startswith(next(iter(wakes)))


def test_what_keeps_it_off_is_set_outright_where_it_could_be_lost(tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_NVLS_ENABLE=0\n")
    found = variables_to_set({"NCCL_PROTO": "LL"}, {"NCCL_CONF_FILE": str(conf)})
    assert found == ToSet({"NCCL_PROTO": "LL", "NCCL_NVLS_ENABLE": "0"}, ())


def test_a_result_may_switch_it_off() -> None:
    assert variables_to_set({"NCCL_NVLS_ENABLE": "0"}, NONE).values == {"NCCL_NVLS_ENABLE": "0"}
