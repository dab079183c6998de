"""`nccltune lint`: what is read, what is printed where, and the exit code."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from cli_command import Command

from nccltune.cli import app, linting
from nccltune.launch.libraries import Libraries
from nccltune.machine.gpus import Gpu
from nccltune.nccl import env_files
from nccltune.nccl.catalog import NEWEST
from nccltune.nccl.circumstances import MachineFacts
from nccltune.nccl.readers import concerns
from nccltune.nccl.site import SiteVariable

REAL_MACHINE = linting._machine
FOUND = Libraries("2.28.9", "nvidia-nccl-cu12", "2.9.0+cu128")
BOX = MachineFacts(
    capabilities=((9, 0),) * 2,
    nvlinks=(18, 18),
    rdma=(),
    interfaces=("eth0", "lo"),
    architecture="x86_64",
    shm_bytes=1 << 36,
)


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty environment, a torch with NCCL 2.28.9, no GPU, no nccl.conf."""
    for name in [name for name in os.environ if concerns(name)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(linting, "libraries_of", lambda *_: FOUND)
    monkeypatch.setattr(linting, "_machine", lambda: None)
    monkeypatch.setattr(env_files, "conf_files", lambda _: (tmp_path / "user", tmp_path / "system"))
    monkeypatch.setattr(linting, "site_variables", lambda _: {})


def write(text: str | bytes, name: str = "job.sh") -> str:
    """A file in the folder where the command runs."""
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return name


def test_the_options_of_lint() -> None:
    assert isinstance(app, click.Group)
    options = [p for p in app.commands["lint"].params if isinstance(p, click.Option)]
    assert {name for p in options for name in (*p.opts, *p.secondary_opts)} == {
        "--format", "--nccl-version", "--python", "--json",
    }  # fmt: skip


def test_errors_are_printed_with_file_and_line(nccltune_command: Command) -> None:
    file = write("#!/bin/sh\nexport NCCL_BUFFSIZE=8M\nexport NCCL_DEBUG=INFO\nNCCL_NET=IB\n")
    done = nccltune_command("lint", file)
    assert done.code == 1
    assert done.out.splitlines() == [
        "job.sh:2: error: NCCL_BUFFSIZE: NCCL reads 8M as 8 and does not complain; write 8388608 "
        "[unreadable-number]",
        "job.sh:3: note: NCCL_DEBUG: pages of log from every rank at each start; WARN tells what "
        "matters [log-left-on]",
        "job.sh:4: warning: NCCL_NET: a shell keeps it for itself unless it was exported: "
        "export NCCL_NET=... [not-exported]",
    ]
    assert done.err.splitlines() == [
        "for NCCL 2.28.9 (nvidia-nccl-cu12)",
        "no GPU here: devices and links are left out of account",
        "3 settings in job.sh: 1 error, 1 warning, 1 note",
    ]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("export NCCL_DEBUG=WARN", 0),
        ("# nothing", 0),
        ("", 0),
        ("export NCCL_DEBUG=INFO", 0),  # a note alone
        ("export NCCL_P2P_DISABLE=1", 1),
        ("export NCCL_P2P_DISABLE=yes", 1),
    ],
)
def test_exit_codes(nccltune_command: Command, text: str, code: int) -> None:
    done = nccltune_command("lint", write(text))
    assert done.code == code
    assert ("error" in done.out or "warning" in done.out) == bool(code)


def test_sources_are_given(nccltune_command: Command) -> None:
    done = nccltune_command("lint", write("export NCCL_NTHREADS=480"))
    assert done.out.rstrip().endswith("[dangerous] (NVIDIA/nccl#698)")


def test_several_files_each_by_itself(nccltune_command: Command) -> None:
    one = write("export NCCL_SOCKET_NTHREADS=16\n", "a.sh")
    other = write("export NCCL_NSOCKS_PERTHREAD=8\n", "b.sh")
    done = nccltune_command("lint", one, other)
    assert done.out.startswith("b.sh:1: warning: NCCL_NSOCKS_PERTHREAD")
    assert done.err.endswith("2 settings in a.sh, b.sh: 0 errors, 1 warning, 0 notes\n")


def test_what_is_piped_in(nccltune_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"export NCCL_BUFFSIZE=8M\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    done = nccltune_command("lint", "-")
    assert done.code == 1
    assert done.out.startswith("-:1: error: NCCL_BUFFSIZE")


def test_without_a_standard_input(
    nccltune_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    done = nccltune_command("lint", "-")
    assert done.code == 2
    assert done.err.startswith("nccltune: error: -: standard input cannot be read")


def test_the_format_can_be_said(nccltune_command: Command) -> None:
    file = write('NCCL_NET="IB"\n', "job.env")
    for format, rule in [
        (None, "depends-on-reader"),
        ("docker", "quotes-kept"),
        ("nccl.conf", "quotes-kept"),
        ("shell", "not-exported"),
    ]:
        arguments = () if format is None else ("--format", format)
        assert f"[{rule}]" in nccltune_command("lint", file, *arguments).out
    assert nccltune_command("lint", file, "--format", "dotenv").code == 2


def test_as_json(nccltune_command: Command) -> None:
    done = nccltune_command("lint", write("export NCCL_NTHREADS=480 NCCL_DEBUG=INFO"), "--json")
    assert done.code == 1
    told = json.loads(done.out)
    [threads, debug] = told.pop("findings")
    assert told == {
        "nccl": "2.28.9",
        "nccl_from": "nvidia-nccl-cu12",
        "torch": "2.9.0",
        "machine": None,
        "files": [{"file": "job.sh", "format": "shell"}],
        "unread": [],
        "errors": 0,
        "warnings": 1,
        "notes": 1,
    }
    assert (threads["file"], threads["line"], threads["rule"]) == ("job.sh", 1, "dangerous")
    assert (threads["severity"], threads["source"]) == ("warning", "NVIDIA/nccl#698")
    assert (debug["name"], debug["severity"], debug["source"]) == ("NCCL_DEBUG", "note", None)


def test_the_environment(nccltune_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_BUFFSIZE", "8M")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    done = nccltune_command("lint")
    assert done.code == 1
    assert [line.split(": ")[:3] for line in done.out.splitlines()] == [
        ["environment", "error", "NCCL_BUFFSIZE"],
        ["environment", "warning", "CUDA_LAUNCH_BLOCKING"],
    ]
    monkeypatch.delenv("NCCL_BUFFSIZE")
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING")
    done = nccltune_command("lint")
    assert (done.code, done.out) == (0, "")


def test_nccls_own_files_stand_behind_the_environment(
    nccltune_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "user").write_text("NCCL_NET=Socket\nNCCL_DEBUG=WARN\n")
    (tmp_path / "system").write_text("NCCL_DEBUG=INFO\nNCCL_BUFFSIZE=8M\n")
    monkeypatch.setenv("NCCL_NET", "IB")
    done = nccltune_command("lint", "--json")
    told = json.loads(done.out)
    assert [file["format"] for file in told["files"]] == ["environment", "nccl.conf", "nccl.conf"]
    found = [(Path(f["file"]).name, f["line"], f["rule"]) for f in told["findings"]]
    assert [item for item in found if item[2] != "set-by-nccl"] == [
        ("user", 1, "overruled"),
        ("system", 1, "overruled"),
        ("system", 1, "log-left-on"),
        ("system", 2, "unreadable-number"),
    ]


def test_one_of_nccls_files_that_cannot_be_read_is_passed_over(
    nccltune_command: Command, tmp_path: Path
) -> None:
    (tmp_path / "user").mkdir()
    done = nccltune_command("lint")
    assert done.code == 0
    assert f"note: {tmp_path}/user: is no file, and is not looked at\n" in done.err
    (tmp_path / "user").rmdir()
    (tmp_path / "user").write_bytes(b"NCCL_NET=IB\0")
    assert "NCCL may read it all the same" in nccltune_command("lint").err


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("/no/such/file", "which NCCL_CONF_FILE names, is not there"),
        ("a" * 5000, "cannot be read: File name too long"),
        ("/dev/zero", "is no file, and is not looked at"),
        ("fifo", "is no file, and is not looked at"),
    ],
)
def test_a_conf_file_that_is_none(tmp_path: Path, named: str, told: str) -> None:
    """The real command: it must not wait, and not read for ever."""
    os.mkfifo(tmp_path / "fifo")
    done = subprocess.run(
        [sys.executable, "-m", "nccltune", "lint", "--nccl-version", "2.28.9"],
        env={"PATH": os.environ["PATH"], "NCCL_CONF_FILE": named},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert told in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("version", ["2.28.9", "22809", "2.21.5+cuda12.4"])
def test_another_release(
    nccltune_command: Command, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(linting, "_machine", lambda: BOX)
    file = write("export NCCL_IB_GID_INDEX=3 NCCL_MULTI_RANK_GPU_ENABLE=0\n")
    done = nccltune_command("lint", file, "--nccl-version", version)
    assert done.code == 1
    assert "[not-yet]" in done.out and "[dead-here]" not in done.out
    assert "this machine is left out of account" in done.err
    here = nccltune_command("lint", file)
    assert "[dead-here]" in here.out and "no GPU here" not in here.err


@pytest.mark.parametrize("version", ["banana", "", "3.1", "1.9", "99", "-1", "2" * 5000, "٢.٢٨"])
def test_releases_that_do_not_exist(nccltune_command: Command, version: str) -> None:
    done = nccltune_command("lint", write(""), f"--nccl-version={version}")
    assert done.code == 2
    assert done.err.startswith("nccltune: error: --nccl-version")
    assert len(done.err) < 500


def test_torch_elsewhere_is_not_known(nccltune_command: Command) -> None:
    file = write("export TORCH_NCCL_AVOID_RECORD_STREAMS=1")
    assert "this is 2.9.0" in nccltune_command("lint", file).out
    assert "this is" not in nccltune_command("lint", file, "--nccl-version", "2.28.9").out
    asked = nccltune_command("lint", file, "--nccl-version", "2.28.9", "--python", sys.executable)
    assert "this is 2.9.0" in asked.out


@pytest.mark.parametrize("found", [Libraries(), Libraries("nonsense", "a", "nonsense")])
def test_without_nccl_the_newest_is_taken(
    nccltune_command: Command, monkeypatch: pytest.MonkeyPatch, found: Libraries
) -> None:
    monkeypatch.setattr(linting, "libraries_of", lambda *_: found)
    done = nccltune_command("lint", write("export NCCL_DEBUG=WARN"))
    assert done.code == 0
    assert f"no NCCL found: taking {NEWEST}, the newest that is known" in done.err


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "cannot be read: No such file or directory"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: os.mkfifo(path), "is no file; give - to read what is piped in"),
        (lambda path: path.write_bytes(bytes(range(256))), "holds NUL bytes: no text file"),
        (lambda path: path.write_bytes(b"a" * (1 << 21)), "larger than 1048576 bytes"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_what_cannot_be_read_is_one_message(
    nccltune_command: Command, make: object, message: str, as_json: bool
) -> None:
    make(Path("it"))  # type: ignore[operator]
    done = nccltune_command("lint", "it", *(["--json"] if as_json else []))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"nccltune: error: it: {message}")
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("name", ["", "\n", "\x1b[31m", "a" * 5000, "/dev/zero", "a\udcff"])
def test_names_of_files_that_are_none(nccltune_command: Command, name: str) -> None:
    done = nccltune_command("lint", name)
    assert done.code == 2
    assert "\x1b" not in done.err and len(done.err.splitlines()) == 1


def test_nothing_of_a_file_reaches_the_terminal_raw(nccltune_command: Command) -> None:
    content = b"export NCCL_ALGO='\x1b[31m' NCCL_DEBUG=\xff\xfe NCCL_\xc3\xa9=1 'NCCL_\x07=1'\n"
    done = nccltune_command("lint", write(content))
    assert done.code == 1
    assert "\x1b" not in done.out and "\x07" not in done.out
    json.loads(nccltune_command("lint", "job.sh", "--json").out)


def test_a_terminal_that_knows_ascii_alone() -> None:
    """The real command, since an encoding belongs to a process."""
    done = subprocess.run(
        [sys.executable, "-m", "nccltune", "lint", "--nccl-version", "2.28.9", "-"],
        input="export NCCL_NET=caf\u00e9 NCCL_ALGO=\u00e9\n".encode(),
        env={"PATH": os.environ["PATH"], "PYTHONIOENCODING": "ascii", "LC_ALL": "C"},
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    assert b"\\xe9" in done.stdout and b"Traceback" not in done.stderr


def test_a_conf_file_of_the_site_does_not_contradict_itself(
    nccltune_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("NCCL_NET=IB\n", "nccl.conf")
    for source, rules in [
        (os.path.abspath(file), ["set-by-nccl"]),
        ("/etc/other.conf", ["set-by-nccl", "differs-from-site"]),
        ("environment", ["overruled"]),  # so there is nothing for NCCL to set
    ]:
        site = {"NCCL_NET": SiteVariable("NCCL_NET", "Socket", source)}
        monkeypatch.setattr(linting, "site_variables", lambda _, site=site: site)
        told = json.loads(nccltune_command("lint", file, "--json").out)
        assert sorted(f["rule"] for f in told["findings"]) == sorted(rules)


def test_multicast_that_the_site_has_off(
    nccltune_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
    monkeypatch.setattr(
        linting, "site_variables", lambda _: {name: SiteVariable(name, "1", "environment")}
    )
    done = nccltune_command("lint", write("export NCCL_NVLS_ENABLE=2"), "--nccl-version", "2.28.9")
    assert done.code == 1
    assert f"({name}=1 in the environment)" in done.out and "[site-multicast]" in done.out


def test_the_facts_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = tuple(Gpu(i, f"GPU-{i}", "NVIDIA H200", 141 << 30, 18) for i in range(2))
    monkeypatch.setattr(linting, "visible_gpus", lambda _: gpus)
    monkeypatch.setattr(linting, "compute_capabilities", lambda found: ((9, 0),) * len(found))
    monkeypatch.setattr(linting.devices, "rdma_devices", lambda: ("mlx5_0",))
    monkeypatch.setattr(linting.devices, "has_verbs", lambda: False)
    monkeypatch.setattr(linting.devices, "interfaces", lambda: ("lo",))
    monkeypatch.setattr(linting.devices, "shared_memory_bytes", lambda: 64 << 20)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert REAL_MACHINE() == MachineFacts(
        ((9, 0), (9, 0)), (18, 18), ("mlx5_0",), False, ("lo",), "x86_64", 64 << 20
    )
    monkeypatch.setattr(linting, "compute_capabilities", lambda _: ())  # NVML does not tell
    facts = REAL_MACHINE()
    assert facts is not None and facts.gpus is None
    monkeypatch.setattr(linting, "visible_gpus", lambda _: ())
    assert REAL_MACHINE() is None


@pytest.mark.parametrize("as_json", [False, True])
def test_a_file_that_cannot_be_read_does_not_hide_the_others(
    nccltune_command: Command, as_json: bool
) -> None:
    first, last = write("export NCCL_BUFFSIZE=8M\n"), write("export NCCL_NTHREADS=480\n", "b.sh")
    Path("it").mkdir()
    options = ["--json"] if as_json else []
    done = nccltune_command("lint", first, "it", last, "gone", *options)
    assert done.code == 2
    message = "it: is a folder; gone: cannot be read: No such file or directory"
    assert f"nccltune: error: {message}" in done.err
    if as_json:
        told = json.loads(done.out)
        assert told["unread"] == message.split("; ")
        assert [f["rule"] for f in told["findings"]] == ["unreadable-number", "dangerous"]
    else:
        assert "job.sh:1: error" in done.out and "b.sh:1: warning" in done.out


def test_many_settings_that_are_not_exported_are_one_line(nccltune_command: Command) -> None:
    names = ["IB_TIMEOUT", "NET", "DEBUG", "NSOCKS_PERTHREAD", "SOCKET_NTHREADS"]
    values = ["22", "IB", "WARN", "2", "2"]
    lines = [f"NCCL_{n}={v}\n" for n, v in zip(names, values, strict=True)]
    file = write("".join(["#!/bin/sh\n", *lines]))
    done = nccltune_command("lint", file)
    assert done.out.splitlines() == [
        "job.sh:2: warning: 5 settings that the shell keeps for itself unless they are exported: "
        "NCCL_IB_TIMEOUT, NCCL_NET, NCCL_DEBUG and 2 more; write export before each, or set -a "
        "above them [not-exported]"
    ]
    assert "0 errors, 5 warnings, 0 notes" in done.err
    told = json.loads(nccltune_command("lint", file, "--json").out)
    assert [f["line"] for f in told["findings"]] == [2, 3, 4, 5, 6]
    few = nccltune_command("lint", write("".join(["#!/bin/sh\n", *lines[:3]])))
    assert few.out.count("[not-exported]") == 3


def test_a_guessed_format_is_a_note_and_no_failure(nccltune_command: Command) -> None:
    done = nccltune_command("lint", write("NCCL_IB_TIMEOUT=22\n", "cluster.env"))
    assert done.code == 0
    assert done.out.startswith("cluster.env: note: read as docker --env-file")


def test_a_release_newer_than_the_data(nccltune_command: Command) -> None:
    file = write("export NCCL_DEBUG=WARN")
    newer = nccltune_command("lint", file, "--nccl-version", "2.31.2")
    assert f"NCCL 2.31.2 is newer than what is known here ({NEWEST})" in newer.err
    for known in (str(NEWEST), "2.28.9"):
        assert "newer" not in nccltune_command("lint", file, "--nccl-version", known).err


def test_what_a_shell_substitutes_for_a_process_is_read() -> None:
    """The real command under a real shell."""
    command = f"{sys.executable} -m nccltune lint --nccl-version 2.28.9 --format shell "
    done = subprocess.run(
        ["bash", "-c", command + "<(echo export NCCL_BUFFSIZE=8M)"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    assert ":1: error: NCCL_BUFFSIZE: NCCL reads 8M as 8" in done.stdout
