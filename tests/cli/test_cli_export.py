"""`nccltune export`: a result in the words of other programs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_command import Command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nccltune.cli.export import FORMATS
from nccltune.cli.exporting import run_export
from nccltune.errors import UsageError
from nccltune.output.best import Best
from nccltune.output.exports import formats

STUDIES = Path(__file__).parents[2] / "studies"
RECORDED = sorted(folder for folder in STUDIES.iterdir() if (folder / "best.yaml").is_file())
BEST = Best(
    env={"NCCL_ALGO": "ring,tree;allreduce:tree", "NCCL_BUFFSIZE": "8388608"},
    ddp={"bucket_cap_mb": 50}, loader={"num_workers": 2}, batch_size=8,
    workload={"batch_size": 8, "nproc_per_node": 2}, verdict=None, machine={}, provenance={},
)  # fmt: skip
NONE = replace(BEST, env={}, ddp={}, loader={})
TORCHRUN = """#!/bin/sh
echo "$*" && env | grep ^NCCL_ | sort
"""


@pytest.fixture(autouse=True)
def no_site(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("NCCL_", "TORCH_SYMM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NCCL_CONF_FILE", "/nowhere")


@pytest.fixture
def best(tmp_path: Path) -> Path:
    return written(tmp_path, BEST)


def written(folder: Path, best: Best) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "best.yaml"
    file.write_text(best.to_yaml())
    return file


def test_the_formats_of_the_command_are_those_of_the_table(nccltune_command: Command) -> None:
    assert list(formats.FORMATS) == FORMATS
    text = nccltune_command("export", "--help").out
    for format in FORMATS:
        assert re.search(rf"^  {format} +\w", text, re.M), format


@pytest.mark.parametrize("format", FORMATS)
def test_the_file_is_what_stdout_gets(format: str, best: Path, nccltune_command: Command) -> None:
    shown = nccltune_command("export", str(best), "--format", format)
    assert shown.code == 0 and shown.out.endswith("\n")
    file = best.parent / "exported"
    file.write_text("an older one")
    done = nccltune_command("export", str(best), "--format", format, "-o", str(file))
    assert (done.code, done.out, done.err) == (0, "", shown.err)
    assert file.read_text() == shown.out
    assert sorted(best.parent.glob("**/*.tmp")) == []
    dash = nccltune_command("export", str(best), "--format", format, "--output", "-")
    assert dash.out == shown.out


@pytest.mark.parametrize("format", FORMATS)
def test_a_result_that_sets_nothing_is_valid_and_says_so(
    format: str, tmp_path: Path, nccltune_command: Command
) -> None:
    file = written(tmp_path, NONE)
    done = nccltune_command("export", str(file), "--format", format)
    assert done.code == 0
    assert "nccltune: note: nothing to set: keep the defaults\n" in done.err
    assert "nothing to set: keep the defaults" in done.out


@pytest.mark.parametrize("study", RECORDED, ids=lambda folder: folder.name)
def test_the_recorded_studies(study: Path, nccltune_command: Command) -> None:
    """A study's folder stands for its best.yaml; its env file has the same variables."""

    def exports(text: str) -> list[str]:
        return [line for line in text.split("\n") if not line.startswith("#")]

    done = nccltune_command("export", str(study), "--format", "env")
    assert exports(done.out) == exports((study / "best.env").read_text())
    document = yaml.safe_load((study / "best.yaml").read_text())
    assert f"# study: {document['provenance']['study']}, " in done.out
    assert document["provenance"]["study"].split("/")[0] == study.name
    if document["verdict"] is not None:
        assert f"# verdict: {document['verdict']['sentence']}\n" in done.out
    data = json.loads(nccltune_command("export", str(study), "--format", "json").out)
    assert {part: data[part] for part in ("env", "ddp", "loader", "batch_size")} == {
        part: document[part] for part in ("env", "ddp", "loader", "batch_size")
    }
    for format in FORMATS:
        assert nccltune_command("export", str(study), "--format", format).code == 0


def test_kept_defaults_are_told(tmp_path: Path, nccltune_command: Command) -> None:
    kept = replace(BEST, env={}, provenance={"study": "s", "trial": 0, "trials": 40})
    done = nccltune_command("export", str(written(tmp_path, kept)), "--format", "env")
    assert "# study: s, the defaults, after 40 trials\n" in done.out
    note = "the defaults were kept: what is set is the job's own, or held by --fix"
    assert f"# {note}\n" in done.out and note in done.err


@pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
def test_the_torchrun_command_starts_the_job(
    shell: str, tmp_path: Path, nccltune_command: Command
) -> None:
    """It goes through the real `nccltune run`, from a folder with a space in its name."""
    file = written(tmp_path / "a study", BEST)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "torchrun").write_text(TORCHRUN)
    (programs / "torchrun").chmod(0o755)
    (programs / "nccltune").write_text(f'#!/bin/sh\nexec {sys.executable} -m nccltune "$@"\n')
    (programs / "nccltune").chmod(0o755)
    command = nccltune_command("export", str(file), "--format", "torchrun").out.rstrip("\n")
    done = subprocess.run(
        [shell, "-c", f"{command} train.py --lr 1"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PATH": f"{programs}:/usr/bin:/bin"}, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *arguments, algorithm, size, _conf = done.stdout.splitlines()
    assert arguments == ["--standalone --nproc-per-node=2 train.py --lr 1"]
    assert (algorithm, size) == ("NCCL_ALGO=ring,tree;allreduce:tree", "NCCL_BUFFSIZE=8388608")
    assert "DDP: bucket_cap_mb=50; loader: num_workers=2" in done.stderr


# Mistakes.


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("nothing.yaml", "nothing.yaml: no such file"),
        ("empty", "empty: no best.yaml in this folder"),
        ("best.env", "best.env: not a best.yaml, and no study's folder"),
        ("defaults", "defaults: not a best.yaml, and no study's folder"),
        ("space.yaml", "space.yaml: not a best.yaml of version 1"),
    ],
)
def test_what_is_no_result(file: str, reason: str, nccltune_command: Command) -> None:
    Path("empty").mkdir()
    Path("best.env").write_text("export NCCL_ALGO=Ring\n")
    Path("space.yaml").write_text("parameters: {}\n")
    done = nccltune_command("export", file, "--format", "env", "-o", "out")
    assert (done.code, done.out) == (2, "")
    assert reason in done.err
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("folder", "-o folder: is a folder; name a file"),
        ("none/out", "-o none/out: there is no folder none"),
        ("/dev/null", "-o /dev/null: is no file; leave -o out for stdout"),
        ("{best}", "is the result itself; name another file"),
    ],
)
def test_where_nothing_can_be_written(
    output: str, reason: str, best: Path, nccltune_command: Command
) -> None:
    Path("folder").mkdir()
    before = best.read_text()
    target = output.format(best=best)
    done = nccltune_command("export", str(best), "--format", "env", "-o", target)
    assert (done.code, done.out) == (2, "")
    assert reason in done.err
    assert best.read_text() == before and list(Path("folder").iterdir()) == []


def test_a_full_disk_leaves_the_old_file(best: Path, nccltune_command: Command) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "from nccltune.cli import main; sys.argv[0] = 'nccltune'; main()"
    )
    Path("out").write_text("old")
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, "export", str(best), "--format", "env", "-o", "out"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1 and "cannot write out" in done.stderr
    assert [Path("out").read_text(), *sorted(p.name for p in Path().iterdir())] == ["old", "out"]


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "PATH", "X;touch made", "NCCL_A B", "NCCL_CONF_FILE"]
)
@pytest.mark.parametrize("format", ["env", "python"])
def test_a_variable_that_no_result_may_hold_is_refused(
    name: str, format: str, tmp_path: Path, nccltune_command: Command
) -> None:
    file = written(tmp_path, replace(BEST, env={**BEST.env, name: "x"}))
    done = nccltune_command("export", str(file), "--format", format)
    assert (done.code, done.out) == (2, "")
    assert f"env.{name}" in done.err


def test_a_file_that_others_can_write_is_told(best: Path, nccltune_command: Command) -> None:
    best.chmod(0o666)
    done = nccltune_command("export", str(best), "--format", "env")
    assert done.code == 0
    assert "others can change what it sets" in done.err


# NVLink multicast.


def test_what_asks_for_multicast_is_left_out_where_the_site_has_it_off(
    tmp_path: Path, nccltune_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = {"NCCL_NVLS_ENABLE": "1", "NCCL_PROTO": "LL", "NCCL_ALGO": "NVLS,Ring"}
    file = written(tmp_path, replace(BEST, env=asking))
    done = nccltune_command("export", str(file), "--format", "env")
    assert "export NCCL_NVLS_ENABLE=1\n" in done.out
    assert "NCCL_NVLS_ENABLE=1 asks for NVLink multicast" in done.err
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    for format in FORMATS:
        done = nccltune_command("export", str(file), "--format", format)
        assert "NCCL_NVLS_ENABLE=1 is left out: the site has switched" in done.err
        made = "\n".join(line for line in done.out.split("\n") if "is left out" not in line)
        assert "NCCL_PROTO" in made
        assert "NVLS" not in made


# Whatever a file holds.

_TEXT = st.text(max_size=12) | st.sampled_from(
    ["$(touch made)", "`touch made`", "'; touch made #", '"; touch made #', "\nexport NCCL_X=1"]
)
_NAMES = st.sampled_from(["NCCL_A", "NCCL_B", "FI_C", "NCCL_B C", "X;touch made", "$(touch made)"])


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.dictionaries(_NAMES, _TEXT, max_size=3),
    st.dictionaries(_TEXT, _TEXT, max_size=3),
    st.dictionaries(st.sampled_from(["study", "command", "date", "trial"]), _TEXT),
)
def test_a_shell_runs_nothing_of_any_file(
    env: dict[str, str], ddp: dict[str, str], provenance: dict[str, Any]
) -> None:
    """Names, values and texts of a file, by way of the file: refused, or set and nothing else."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = written(folder / "result", replace(BEST, env=env, ddp=ddp, provenance=provenance))
        try:
            for format in ("env", "slurm"):
                run_export(str(file), format, str(folder / format))
        except UsageError:
            assert not (folder / "slurm").exists()
            return
        for format in ("env", "slurm"):
            for shell in ("sh", "bash", "dash"):
                done = subprocess.run(
                    ["env", "-i", "PATH=/usr/bin:/bin", shell, "-c", f". ./{format} && env -0"],
                    cwd=folder, capture_output=True, timeout=60, check=True,
                )  # fmt: skip
                words = [word.partition("=") for word in done.stdout.decode().split("\0") if word]
                own = ("PATH", "PWD", "OLDPWD", "SHLVL", "_")
                assert {n: v for n, _, v in words if n not in own} == env
        assert sorted(path.name for path in folder.iterdir()) == ["env", "result", "slurm"]


def test_the_shells_are_here() -> None:
    assert all(shutil.which(shell) for shell in ("sh", "bash", "dash"))
