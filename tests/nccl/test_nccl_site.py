from __future__ import annotations

import os
from pathlib import Path

import pytest

from nccltune.nccl.site import (
    MULTICAST_OFF,
    SiteVariable,
    multicast_is_off,
    protects_multicast,
    site_variables,
)


def read(tmp_path: Path, content: bytes, environ: dict[str, str] | None = None) -> dict[str, str]:
    """The values found when `content` is the system's file and the user has none."""
    conf = tmp_path / "nccl.conf"
    conf.write_bytes(content)
    site = site_variables(environ or {}, system_conf=conf, home=tmp_path / "nobody")
    assert all(name == variable.name for name, variable in site.items())
    return {name: variable.value for name, variable in site.items()}


def test_names_that_belong_to_the_site(tmp_path: Path) -> None:
    environ = {
        "NCCL_DEBUG": "INFO",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "FI_PROVIDER": "efa",
        "OFI_NCCL_PROTOCOL": "RDMA",
        "UCX_TLS": "tcp",
        "LD_LIBRARY_PATH": "/opt/lib",
    }
    other = {"PATH": "/bin", "OMP_NUM_THREADS": "1", "MY_NCCL_DEBUG": "1", "LD_PRELOAD": "x.so"}
    site = site_variables({**environ, **other}, system_conf=tmp_path / "none", home=tmp_path)
    assert site == {
        name: SiteVariable(name, value, "environment") for name, value in environ.items()
    }


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        (b"NCCL_DEBUG=WARN", "NCCL_DEBUG", "WARN"),
        (b"NCCL_SOCKET_IFNAME==eth0", "NCCL_SOCKET_IFNAME", "=eth0"),
        (b"NCCL_DEBUG =INFO", "NCCL_DEBUG ", "INFO"),
        (b"NCCL_DEBUG= INFO ", "NCCL_DEBUG", " INFO "),
        (b"NCCL_DEBUG=INFO # loud", "NCCL_DEBUG", "INFO # loud"),
        (b'NCCL_DEBUG="INFO"', "NCCL_DEBUG", '"INFO"'),
        (b"NCCL_DEBUG=INFO\r", "NCCL_DEBUG", "INFO"),
        (b"NCCL_ALGO=", "NCCL_ALGO", ""),
        (b"NCCL_HOSTID=\xff", "NCCL_HOSTID", os.fsdecode(b"\xff")),
        (b"NCCL_HOSTID=" + b"a" * 2000, "NCCL_HOSTID", "a" * 1023),
    ],
)
def test_a_line_is_taken_literally(tmp_path: Path, line: bytes, name: str, value: str) -> None:
    assert read(tmp_path, line + b"\n") == {name: value}
    assert read(tmp_path, line) == {name: value}


@pytest.mark.parametrize(
    "line",
    [b"#NCCL_DEBUG=INFO", b" # NCCL_DEBUG=INFO", b"NCCL_DEBUG", b"=INFO", b"", b" NCCL_DEBUG=1"],
)
def test_lines_that_set_nothing_of_the_site(tmp_path: Path, line: bytes) -> None:
    assert read(tmp_path, line + b"\nNCCL_PROTO=LL\n") == {"NCCL_PROTO": "LL"}


def test_the_first_of_two_lines_wins(tmp_path: Path) -> None:
    assert read(tmp_path, b"NCCL_DEBUG=INFO\nNCCL_DEBUG=WARN\n") == {"NCCL_DEBUG": "INFO"}


def test_a_line_that_exceeds_the_buffer_goes_on_as_a_new_one(tmp_path: Path) -> None:
    long = b"NCCL_HOSTID=".ljust(4095, b"a") + b"NCCL_DEBUG=INFO\n"
    assert read(tmp_path, long)["NCCL_DEBUG"] == "INFO"


def test_even_an_empty_value_in_the_environment_wins(tmp_path: Path) -> None:
    assert read(tmp_path, b"NCCL_DEBUG=INFO\n", {"NCCL_DEBUG": ""}) == {"NCCL_DEBUG": ""}


def test_order_and_sources(tmp_path: Path) -> None:
    user, system = tmp_path / ".nccl.conf", tmp_path / "etc.conf"
    user.write_text("NCCL_ALGO=Ring\nNCCL_PROTO=LL\n")
    system.write_text("NCCL_ALGO=Tree\nNCCL_PROTO=Simple\nNCCL_NTHREADS=128\n")
    site = site_variables({"NCCL_ALGO": "NVLS"}, system_conf=system, home=tmp_path)
    assert site == {
        "NCCL_ALGO": SiteVariable("NCCL_ALGO", "NVLS", "environment"),
        "NCCL_PROTO": SiteVariable("NCCL_PROTO", "LL", str(user)),
        "NCCL_NTHREADS": SiteVariable("NCCL_NTHREADS", "128", str(system)),
    }


def test_a_named_file_replaces_the_one_at_home(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_ALGO=Ring\nNCCL_PROTO=LL\n")
    named, system = tmp_path / "mine", tmp_path / "etc.conf"
    named.write_text("NCCL_ALGO=Tree\n")
    system.write_text("NCCL_NTHREADS=128\n")
    environ = {"NCCL_CONF_FILE": str(named)}
    site = site_variables(environ, system_conf=system, home=tmp_path)
    assert site["NCCL_ALGO"] == SiteVariable("NCCL_ALGO", "Tree", str(named))
    assert site["NCCL_NTHREADS"].value == "128"
    assert "NCCL_PROTO" not in site


def test_an_empty_name_of_the_file_counts_as_unset(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_PROTO=LL\n")
    site = site_variables({"NCCL_CONF_FILE": ""}, system_conf=tmp_path / "none", home=tmp_path)
    assert site["NCCL_PROTO"].value == "LL"


def test_a_tilde_is_not_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").write_text("NCCL_PROTO=LL\n")
    site = site_variables({"NCCL_CONF_FILE": "~/mine"}, system_conf=tmp_path / "none")
    assert "NCCL_PROTO" not in site


def test_files_that_cannot_be_read_are_skipped(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").mkdir()
    system = tmp_path / "etc.conf"
    system.write_text("NCCL_PROTO=LL\n")
    assert site_variables({}, system_conf=system, home=tmp_path)["NCCL_PROTO"].value == "LL"
    odd = {"NCCL_CONF_FILE": "a\0b"}
    assert "NCCL_PROTO" in site_variables(odd, system_conf=system, home=tmp_path)


@pytest.mark.parametrize("named", ["/dev/zero", "fifo", ".", "a" * 5000, "loop"])
def test_what_is_no_file_is_not_read(tmp_path: Path, named: str) -> None:
    """Reading from a pipe waits for whoever writes, and from some devices for ever."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    environ = {"NCCL_CONF_FILE": str(tmp_path / named)}
    assert list(site_variables(environ, system_conf=tmp_path / "none")) == ["NCCL_CONF_FILE"]


def test_of_a_huge_file_the_beginning_is_read(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as stream:
        stream.write(b"NCCL_PROTO=LL\n")
        stream.truncate(1 << 40)
    environ = {"NCCL_CONF_FILE": str(tmp_path / "huge")}
    assert site_variables(environ, system_conf=tmp_path / "none")["NCCL_PROTO"].value == "LL"


@pytest.mark.parametrize(
    ("name", "value", "protects"),
    [
        ("NCCL_NVLS_ENABLE", "0", True),
        ("NCCL_NVLS_ENABLE", "false", True),
        ("NCCL_NVLS_ENABLE", "1", False),
        ("NCCL_NVLS_ENABLE", "2", False),
        ("NCCL_NVLS_ENABLE", "", False),
        ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1", True),
        ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "0", False),
        ("NVSHMEM_DISABLE_NVLS", "1", True),
        ("NVSHMEM_DISABLE_NVLS", "true", True),
        ("NVSHMEM_DISABLE_NVLS", "No", False),
        ("NVSHMEM_DISABLE_NVLS", "", False),
        ("NCCL_P2P_DISABLE", "0", False),
    ],
)
def test_what_protects_multicast(name: str, value: str, protects: bool) -> None:
    assert protects_multicast(name, value) is protects


def test_the_protecting_values_protect() -> None:
    assert len(MULTICAST_OFF) == 3
    for name, value in MULTICAST_OFF.items():
        assert protects_multicast(name, value)
        assert multicast_is_off({name: SiteVariable(name, value, "environment")})


def test_multicast_is_on_unless_the_site_says_otherwise() -> None:
    assert not multicast_is_off({})
    on = SiteVariable("NCCL_NVLS_ENABLE", "2", "environment")
    assert not multicast_is_off({on.name: on})
