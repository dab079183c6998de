"""Settings read from env files and YAML files."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import lists, one_of, sampled_from, text

from nccltune.errors import UsageError
from nccltune.nccl.accepted import name_problem, value_problem
from nccltune.nccl.site import SiteVariable
from nccltune.output.best import Best
from nccltune.output.env_file import env_file
from nccltune.study.settings_file import (
    JobSettings,
    read_env_file,
    read_settings,
    taking_effect,
)

GOOD = r"""# header; $HOME `x`
export NCCL_ALGO='ring,tree;allreduce:tree'
NCCL_PROTO=^LL128   # never by name
export OMP_A=1 OMP_B="two words"

  export NCCL_EMPTY=
NCCL_HASH=a#b
"""


def test_what_a_shell_would_set(tmp_path: Path) -> None:
    file = tmp_path / "a.env"
    file.write_text(GOOD)
    found = read_env_file(file)
    assert found == {
        "NCCL_ALGO": "ring,tree;allreduce:tree", "NCCL_PROTO": "^LL128", "OMP_A": "1",
        "OMP_B": "two words", "NCCL_EMPTY": "", "NCCL_HASH": "a#b",
    }  # fmt: skip
    script = "set -a; . ./a.env; for n in " + " ".join(found) + '; do eval echo \\"\\$$n\\"; done'
    shell = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert shell.stdout.splitlines() == list(found.values())


def test_our_own_files_are_read_back(tmp_path: Path) -> None:
    variables = {"NCCL_ALGO": "ring;x", "NCCL_BUFFSIZE": "1048576", "NCCL_ODD": 'it\'s "so"'}
    (tmp_path / "best.env").write_text(env_file(variables, ["study a", "verdict: it's $5"]))
    assert read_env_file(tmp_path / "best.env") == variables
    best = Best(
        variables, {"bucket_cap_mb": 50}, {"num_workers": 4}, 128, {"model": "m"}, None, {}, {}
    )
    (tmp_path / "best.yaml").write_text(best.to_yaml())
    found = read_settings(str(tmp_path / "best.yaml"))
    assert (found.env, found.ddp, found.loader) == (best.env, best.ddp, best.loader)
    assert found.batch_size == 128


def test_the_defaults_set_nothing() -> None:
    assert read_settings("defaults") == JobSettings("defaults")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("export A=$HOME", "only plain values"),
        ("A=`date`", "only plain values"),
        ("A=~/lib", "only plain values"),
        ("A=/x/*.so", "only plain values"),
        ("A=1 && B=2", "only plain values"),
        ("A=1 | cat", "only plain values"),
        ("(A=1)", "only plain values"),
        ("A=$(date)", "only plain values"),
        ("A=/a:~/b", "only plain values"),
        ("A=1\r", "carriage return"),
        ("unset A", "not NAME=value"),
        ("2A=1", "not NAME=value"),
        ("A='open", "quotation"),
        ("if true", "not NAME=value"),
        ("NCCL_A=x\0y", "control character"),
        ("NCCL_A='x\ny'", "control character"),
        ("NCCL_ALGO=$(touch x)", "only plain values"),
        ("NCCL_ALGO=Ring; touch x", "not NAME=value"),
        ("export LD_PRELOAD=/tmp/evil.so", "LD_PRELOAD: is none of the variables"),
        ("PATH=/tmp", "PATH: is none of the variables"),
        ("BASH_ENV=/tmp/x", "BASH_ENV: is none of the variables"),
        ("NCCL_NET_PLUGIN=/tmp/evil.so", "NCCL_NET_PLUGIN: would load a library by its path"),
        ("NCCLTUNE_ADDRESS=1.2.3.4:5", "is set by every launch"),
        ("PYTHONPATH=/x", "is set by every launch"),
    ],
)
def test_what_only_a_shell_could_work_out(tmp_path: Path, line: str, reason: str) -> None:
    file = tmp_path / "a.env"
    file.write_text(f"NCCL_OK=1\n{line}\n")
    with pytest.raises(UsageError, match=f"a.env: line 2: .*{reason}"):
        read_env_file(file)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_settings(str(tmp_path / "none.env"))
    (tmp_path / "binary.env").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        read_settings(str(tmp_path / "binary.env"))
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(UsageError, match="not a best.yaml"):
        read_settings(str(tmp_path / "list.yaml"))


@pytest.mark.parametrize(
    ("section", "values", "reason"),
    [
        ("env", {"A": True}, "env.A: must be text"),
        ("env", {"A": None}, "env.A: must be text"),
        ("env", {"A=B": "1"}, "is no name of a variable"),
        ("env", {"LD_PRELOAD": "/tmp/evil.so"}, "env.LD_PRELOAD: is none of the variables"),
        ("env", {"RANK": "1"}, "is set by every launch"),
        ("ddp", {"bucket_cap_mb": [1]}, "ddp.bucket_cap_mb: not a plain value"),
        ("ddp", {"device_ids": 1}, "belongs to the job"),
        ("loader", {"num_workers": -3}, "must be 0 to 1024"),
        ("loader", {"num_workers": "abc"}, "must be 0 to 1024"),
        ("loader", {"prefetch_factor": float("nan")}, "not a plain value"),
    ],
)
def test_values_that_cannot_be_set(
    tmp_path: Path, section: str, values: dict[str, object], reason: str
) -> None:
    best = Best({}, {}, {}, 8, {}, None, {}, {})
    (tmp_path / "a.yaml").write_text(replace(best, **{section: values}).to_yaml())
    with pytest.raises(UsageError, match=reason):
        read_settings(str(tmp_path / "a.yaml"))


def test_a_number_is_a_variables_text(tmp_path: Path) -> None:
    best = Best({"NCCL_BUFFSIZE": 1048576}, {}, {}, 8, {}, None, {}, {})  # type: ignore[dict-item]
    (tmp_path / "a.yaml").write_text(best.to_yaml())
    assert read_settings(str(tmp_path / "a.yaml")).env == {"NCCL_BUFFSIZE": "1048576"}


def test_files_that_are_far_too_large(tmp_path: Path) -> None:
    (tmp_path / "huge.env").write_text("A=" + "x" * (1 << 20))
    with pytest.raises(UsageError, match="larger than 1048576 bytes"):
        read_settings(str(tmp_path / "huge.env"))
    with pytest.raises(UsageError, match="is no file"):
        read_settings(str(tmp_path))


def test_lines_are_read_as_a_shell_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "a.env"
    file.write_bytes(
        b"# don't\nexport OMP_A='x=*'  # isn't a glob\n#don't\nOMP_B='one;two'; OMP_C=\"#1\"\n"
        b"export OMP_D=1 OMP_E=2\nOMP_F=a\\\nb\nOMP_G='~x'\n"
    )
    expected = {
        "OMP_A": "x=*", "OMP_B": "one;two", "OMP_C": "#1", "OMP_D": "1", "OMP_E": "2",
        "OMP_F": "ab", "OMP_G": "~x",
    }  # fmt: skip
    assert read_env_file(file) == expected
    shown = ["sh", "-c", 'set -a; . "$1"; exec env -0', "sh", str(file)]
    told = subprocess.run(shown, env={}, capture_output=True, check=True).stdout.decode()
    shell = dict(text.split("=", 1) for text in told.split("\0") if text)
    assert {name: shell[name] for name in expected} == expected


def test_what_is_set_already_stays() -> None:
    side = JobSettings(
        "a.env",
        {
            "NCCL_ALGO": "Ring",
            "NCCL_PROTO": "LL",
            "OMP_NUM_THREADS": "4",
            "NCCL_BUFFSIZE": "1048576",
        },
        {"bucket_cap_mb": 50},
    )
    environ = {"NCCL_CONF_FILE": "/nowhere", "NCCL_ALGO": "Tree", "OMP_NUM_THREADS": "2",
               "NCCL_BUFFSIZE": "1048576"}  # fmt: skip
    taken, kept = taking_effect(side, environ)
    assert taken == replace(side, env={"NCCL_PROTO": "LL"})
    assert kept == (
        "NCCL_ALGO stays 'Tree', which the environment sets; the file has 'Ring'",
        "OMP_NUM_THREADS stays '2', which the environment sets; the file has '4'",
    )


@pytest.mark.parametrize("source", ["environment", "/etc/nccl.conf"])
def test_multicast_stays_off(source: str) -> None:
    site = {"NVSHMEM_DISABLE_NVLS": SiteVariable("NVSHMEM_DISABLE_NVLS", "1", source)}
    side = JobSettings("a.env", {"NCCL_ALGO": "NVLS", "NCCL_NVLS_ENABLE": "1", "NCCL_PROTO": "LL"})
    taken, kept = taking_effect(side, {}, site)
    assert taken.env == {"NCCL_PROTO": "LL"}
    assert kept == tuple(
        f"{text} is left out: the site has switched NVLink multicast off"
        for text in ("NCCL_ALGO=NVLS", "NCCL_NVLS_ENABLE=1")
    )


PIECES = [
    *("export ", "NCCL_ALGO", "LD_PRELOAD", "NCCL_NET_PLUGIN", "=", "Ring", "/tmp/x.so", "$(id)"),
    *("`id`", "'", '"', " ", "\n", ";", "#", "\\", "\t", "\r", "\x1b", "|", "<<E", "(", "{", "~"),
]


@given(lists(one_of(sampled_from(PIECES), text(max_size=3)), max_size=12).map("".join))
@settings(deadline=None)
def test_no_text_sets_what_no_file_may_set(tmp_path_factory: Any, content: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.env"
    file.write_text(content, encoding="utf-8", errors="surrogatepass", newline="")
    try:
        found = read_env_file(file)
    except UsageError as error:
        assert str(error).startswith(f"{file}: ")
        return
    for name, value in found.items():
        assert name_problem(name) is value_problem(name, value) is None
        assert name.startswith(("NCCL_", "TORCH_NCCL_", "GLOO_", "FI_", "OFI_NCCL_", "OMP_"))
