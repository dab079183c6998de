"""Settings read from env files and YAML files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nccltune.errors import UsageError
from nccltune.output.best import Best
from nccltune.output.env_file import env_file
from nccltune.output.settings_file import JobSettings, read_env_file, read_settings

GOOD = r"""# header; $HOME `x`
export NCCL_ALGO='ring,tree;allreduce:tree'
NCCL_PROTO=^LL128   # never by name
export A=1 B="two words"

  export EMPTY=
HASH=a#b
"""


def test_what_a_shell_would_set(tmp_path: Path) -> None:
    file = tmp_path / "a.env"
    file.write_text(GOOD)
    found = read_env_file(file)
    assert found == {
        "NCCL_ALGO": "ring,tree;allreduce:tree", "NCCL_PROTO": "^LL128", "A": "1",
        "B": "two words", "EMPTY": "", "HASH": "a#b",
    }  # fmt: skip
    script = "set -a; . ./a.env; for n in " + " ".join(found) + '; do eval echo \\"\\$$n\\"; done'
    shell = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert shell.stdout.splitlines() == list(found.values())


def test_our_own_files_are_read_back(tmp_path: Path) -> None:
    variables = {"NCCL_ALGO": "ring;x", "NCCL_BUFFSIZE": "1048576", "ODD": 'it\'s "so"'}
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
        ("A=1; B=2", "not NAME=value"),
        ("A=1 && echo", "not NAME=value"),
        ("A=$(date)", "not NAME=value"),
        ("unset A", "not NAME=value"),
        ("2A=1", "not NAME=value"),
        ("A='open", "quotation"),
        ("if true", "not NAME=value"),
    ],
)
def test_what_only_a_shell_could_work_out(tmp_path: Path, line: str, reason: str) -> None:
    file = tmp_path / "a.env"
    file.write_text(f"OK=1\n{line}\n")
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
