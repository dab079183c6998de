"""`nccltune compare`: what of two files takes effect, told before and with the result."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_command import Command
from study_jobs import MACHINE, WITHOUT_LOADER, Asked, FormulaLauncher

from nccltune.cli import comparing
from nccltune.launch.stopping import StopFlag
from nccltune.nccl.site import site_variables
from nccltune.output.best import Best
from nccltune.study.options import SearchOptions
from nccltune.study.survey import Survey


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FormulaLauncher:
    """Two ranks on two H200, whose speed is a formula."""
    for name in [n for n in os.environ if n.startswith(("NCCL", "OMP", "TORCH", "NVSHMEM"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NCCL_CONF_FILE", "/nowhere")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = FormulaLauncher(lambda asked: 110.0 if asked.env or asked.ddp else 100.0)

    @contextlib.contextmanager
    def started(options: SearchOptions, _cache: Path) -> Iterator[Any]:
        site = site_variables(os.environ)
        found = Survey(options, WITHOUT_LOADER, MACHINE, (), site, {}, "python", ())
        yield SimpleNamespace(found=found, launcher=made, stop=StopFlag())

    monkeypatch.setattr(comparing, "started", started)
    return made


def write(name: str, text: str) -> Path:
    file = Path(name)
    file.write_text(text)
    file.chmod(0o644)
    return file


def asked_for(launcher: FormulaLauncher) -> set[tuple[tuple[str, str], ...]]:
    def own(asked: Asked) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(asked.env.items()))

    return set(map(own, launcher.asked))


def test_a_site_variable_wins_over_a_file_and_that_is_told(
    nccltune_command: Command, launcher: FormulaLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    write("a.env", "export NCCL_ALGO=Ring\nOMP_NUM_THREADS=4\nNCCL_PROTO=LL\n")
    done = nccltune_command("compare", "defaults", "a.env", "--launches", "6", "--json")
    assert done.code == 0
    told = [
        "a.env: NCCL_ALGO stays 'Tree', which the environment sets; the file has 'Ring'",
        "a.env: OMP_NUM_THREADS stays '2', which the environment sets; the file has '4'",
    ]
    assert [line for line in done.err.splitlines() if " stays " in line] == [
        f"note: {line}" for line in told
    ]
    found = json.loads(done.out)
    assert (found["word"], found["notes"]) == ("FASTER", told)
    assert asked_for(launcher) == {(), (("NCCL_PROTO", "LL"),)}


def test_two_files_that_come_to_the_same(
    nccltune_command: Command, launcher: FormulaLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    best = Best({"NCCL_ALGO": "Ring"}, {}, {}, 64, {}, None, {}, {})
    write("best.yaml", best.to_yaml())
    done = nccltune_command("compare", "defaults", "best.yaml", "--launches", "6", "--json")
    same = (
        "defaults and best.yaml set the same here once the site's variables hold: what is compared "
        "is one configuration with itself"
    )
    assert json.loads(done.out)["notes"][1:] == [same]
    assert f"note: {same}\n" in done.err and done.code == 0
    monkeypatch.delenv("NCCL_ALGO")
    write("other.yaml", replace(best, batch_size=32).to_yaml())
    for sides, alike in ((("best.yaml", "best.yaml"), True), (("best.yaml", "other.yaml"), False)):
        done = nccltune_command("compare", *sides, "--launches", "6")
        assert ("set the same here: what is compared" in done.err) == alike


@pytest.mark.parametrize("off", ["NCCL_NVLS_ENABLE=0", "NVSHMEM_DISABLE_NVLS=1"])
def test_multicast_stays_off(
    nccltune_command: Command,
    launcher: FormulaLauncher,
    monkeypatch: pytest.MonkeyPatch,
    off: str,
) -> None:
    monkeypatch.setenv(*off.split("="))
    write("a.env", "NCCL_ALGO=NVLS\nNCCL_NVLS_NCHANNELS=16\nNCCL_PROTO=LL\n")
    done = nccltune_command("compare", "defaults", "a.env", "--launches", "6")
    assert done.code == 0
    assert "NCCL_ALGO=NVLS is left out: the site has switched NVLink multicast off" in done.err
    assert asked_for(launcher) == {(), (("NCCL_PROTO", "LL"),)}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.env", "NCCL_PROTO=LL\nexport LD_PRELOAD=/x.so\n", "a.env: line 2: LD_PRELOAD: is none"),
        (
            "a.env",
            "NCCL_NET_PLUGIN=/x.so\n",
            "a.env: line 1: NCCL_NET_PLUGIN: would load a library",
        ),
        ("a.env", "NCCL_ALGO=$(touch made)\n", "a.env: line 1: only plain values are read, got"),
        ("a.yaml", "LD_PRELOAD: /x.so", "a.yaml: env.LD_PRELOAD: is none of the variables"),
        ("a.yaml", "NCCL_ALGO: !!python/name:os.system", "unknown tag !!python/name:os.system"),
    ],
)
def test_what_a_file_may_not_set_starts_nothing(
    nccltune_command: Command, launcher: FormulaLauncher, name: str, text: str, message: str
) -> None:
    if name == "a.yaml":
        empty = Best({"X": "1"}, {}, {}, 64, {}, None, {}, {})
        text = empty.to_yaml().replace("X: '1'", text)
    write(name, text)
    done = nccltune_command("compare", "defaults", name)
    assert (done.code, done.out) == (2, "")
    assert message in done.err and len(done.err.splitlines()) == 1
    assert launcher.opened == 0 and not Path("made").exists()


def test_a_file_that_others_can_write_is_told(
    nccltune_command: Command, launcher: FormulaLauncher
) -> None:
    write("a.env", "NCCL_PROTO=LL\n").chmod(0o666)
    done = nccltune_command("compare", "defaults", "a.env", "--launches", "6")
    assert done.code == 0
    assert done.err.count("warning: a.env: others can change what it sets: everybody may ") == 1
