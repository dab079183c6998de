"""`nccltune run`: a job with a result's settings, otherwise as without us."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nccltune.machine.facts import this_machine
from nccltune.output.best import Best

BEST = Best(
    env={"NCCL_ALGO": "Ring", "NCCL_BUFFSIZE": "1048576"},
    ddp={"bucket_cap_mb": 50}, loader={"num_workers": 2}, batch_size=8,
    workload={"batch_size": 8}, verdict=None, machine={}, provenance={},
)  # fmt: skip
ENV_ONLY = replace(BEST, ddp={}, loader={})
SET = "nccltune: set NCCL_ALGO=Ring NCCL_BUFFSIZE=1048576"
ALL = f"{SET}; for the ranks: DDP: bucket_cap_mb=50; loader: num_workers=2\n"

# What torchrun does with a script, without its seconds.
TORCHRUN = """#!{python}
import os, subprocess, sys
arguments = [a for a in sys.argv[1:] if a != "--no-python"]
rank = subprocess.run([os.environ.get("PYTHON_EXEC", sys.executable), "-u", *arguments])
sys.exit(rank.returncode)
"""


class Runs:
    """`nccltune run FILE ... -- COMMAND` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        self.write("bin/torchrun", TORCHRUN.format(python=sys.executable)).chmod(0o755)
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("NCCL", "PYTHON", "PET_"))}
        path = f"{programs}:{Path(sys.executable).parent}:{kept['PATH']}"
        cache = {"XDG_CACHE_HOME": str(folder / "cache"), "NCCL_CONF_FILE": "/nowhere"}
        self.env = {**kept, **cache, "PATH": path}

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.write_text(text)
        return file

    def start(self, best: Best | str, *arguments: str, **env: str) -> subprocess.Popen[str]:
        name = best if isinstance(best, str) else "best.yaml"
        if isinstance(best, Best):
            self.write(name, best.to_yaml())
        return subprocess.Popen(
            [sys.executable, "-m", "nccltune", "run", name, *arguments],
            cwd=self.folder,
            env={**self.env, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, best: Best | str, *arguments: str, stdin: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        with self.start(best, *arguments, **env) as process:
            out, err = process.communicate(stdin, timeout=300)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def plain(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, env={**self.env, **env}, capture_output=True, text=True,
            timeout=300,
        )  # fmt: skip


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def sh(text: str) -> Sequence[str]:
    return ("--", "sh", "-c", text)


def test_variables_input_output_and_exit_code(runs: Runs) -> None:
    done = runs.run(ENV_ONLY, *sh("cat; echo $NCCL_ALGO $NCCL_BUFFSIZE; exit 7"), stdin="in\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, "in\nRing 1048576\n", f"{SET}\n")
    assert not (runs.folder / "cache").exists()


def test_the_environment_is_else_as_it_was(runs: Runs) -> None:
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    plain = runs.plain("python", "-c", code)
    done = runs.run(ENV_ONLY, "--", "python", "-c", code)
    added = {"NCCL_ALGO": "Ring", "NCCL_BUFFSIZE": "1048576"}
    assert json.loads(done.stdout) == {**json.loads(plain.stdout), **added}


def test_what_the_site_sets_stays_and_is_told(runs: Runs) -> None:
    done = runs.run(ENV_ONLY, *sh("echo $NCCL_ALGO $NCCL_BUFFSIZE"), NCCL_ALGO="Tree")
    assert done.stdout == "Tree 1048576\n"
    assert done.stderr == (
        "nccltune: note: NCCL_ALGO stays 'Tree', which the environment sets; the file has 'Ring'\n"
        "nccltune: set NCCL_BUFFSIZE=1048576\n"
    )


def test_multicast_stays_off(runs: Runs) -> None:
    best = replace(ENV_ONLY, env={"NCCL_NVLS_ENABLE": "1", "NCCL_ALGO": "NVLS"})
    done = runs.run(best, *sh("echo $NCCL_NVLS_ENABLE,$NCCL_ALGO"), NCCL_NVLS_ENABLE="0")
    assert done.stdout == "0,\n"
    assert "NCCL_NVLS_ENABLE stays '0'" in done.stderr
    assert "NCCL_ALGO=NVLS is left out: the site has switched NVLink multicast off" in done.stderr


def test_an_env_file(runs: Runs) -> None:
    runs.write("best.env", "# study\nexport NCCL_ALGO='ring,tree;allreduce:tree'\n")
    done = runs.run("best.env", *sh("echo $NCCL_ALGO"))
    assert (done.returncode, done.stdout) == (0, "ring,tree;allreduce:tree\n")
    strict = runs.run("best.env", "--strict", *sh("echo $NCCL_ALGO"))
    assert (strict.returncode, strict.stdout) == (2, "")
    assert "--strict: best.env does not say which machine was measured" in strict.stderr


def test_where_the_defaults_are_kept(runs: Runs) -> None:
    done = runs.run(replace(ENV_ONLY, env={}), *sh("echo x"))
    assert (done.stdout, done.stderr) == (
        "x\n", "nccltune: nothing to set: the defaults are kept\n",
    )  # fmt: skip


def test_it_becomes_the_command(runs: Runs) -> None:
    """The same process, with nothing ignored that was not."""
    ignored = "grep SigIgn /proc/self/status"
    text = f"trap 'echo got; exit 5' INT TERM; echo $$; {ignored}; while :; do sleep 0.05; done"
    plain = subprocess.Popen(["sh", "-c", text], stdout=subprocess.PIPE, text=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        with runs.start(ENV_ONLY, *sh(text)) as process:
            assert process.stdout is not None and plain.stdout is not None
            assert process.stdout.readline() == f"{process.pid}\n"
            line = process.stdout.readline()
            process.send_signal(number)
            assert process.stdout.read() == "got\n"
            assert process.wait(30) == 5
        assert line.startswith("SigIgn")
    plain.stdout.readline()
    assert plain.stdout.readline() == line
    plain.kill()
    plain.communicate()


def test_a_command_that_a_signal_ends(runs: Runs) -> None:
    assert runs.run(ENV_ONLY, *sh("kill -9 $$")).returncode == -9
    assert runs.run(ENV_ONLY, *sh("kill -INT $$")).returncode == -2


def test_a_command_that_cannot_be_started(runs: Runs) -> None:
    done = runs.run(ENV_ONLY, "--", "no-such-command", "x")
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr == "nccltune: no-such-command: command not found\n"
    done = runs.run(ENV_ONLY, "--", "./no/such")
    assert done.returncode == 127
    assert done.stderr == "nccltune: ./no/such: No such file or directory\n"
    runs.write("file", "")
    assert runs.run(ENV_ONLY, "--", "./file").returncode == 126


def test_the_torchrun_beside_us_where_path_has_none(runs: Runs) -> None:
    beside = Path(sys.executable).with_name("torchrun")
    runs.env["PATH"] = "/usr/bin:/bin"
    assert beside.exists() and shutil.which("torchrun", path=runs.env["PATH"]) is None
    done = runs.run(ENV_ONLY, "--", "torchrun", "--help")
    assert (done.returncode, done.stdout[:6]) == (0, "usage:")
    assert done.stderr.startswith(f"nccltune: note: torchrun is not on PATH: using {beside}\n")
    assert runs.run(ENV_ONLY, "--", "torchrun-2").returncode == 127


def test_dashes_are_missed(runs: Runs) -> None:
    for arguments in (["torchrun", "--standalone"], ["torchrun", "x.py", "--", "--watch"]):
        done = runs.run(ENV_ONLY, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(
            "nccltune: error: put -- before torchrun, as in: nccltune run ... -- torchrun ...;"
        )
    assert runs.run(ENV_ONLY, "sh", "exit.sh").returncode == 127 - 125  # sh has no such file
    runs.write("exit.sh", "exit 5")
    assert runs.run(ENV_ONLY, "--env-only", "sh", "exit.sh").returncode == 5


def test_a_study_stands_for_its_best_yaml(runs: Runs) -> None:
    study = runs.folder / "studies" / "first"
    study.mkdir(parents=True)
    (study / "study.yaml").write_text("version: 1\nspace: {}\n")
    none = runs.run("studies/first", *sh("exit 0"))
    assert none.returncode == 2
    assert "studies/first: has no best.yaml yet; `nccltune search` goes on" in none.stderr
    (study / "best.yaml").write_text(ENV_ONLY.to_yaml())
    for named in ("studies/first", "first", str(study)):
        done = runs.run(named, *sh("echo $NCCL_ALGO"))
        assert (done.returncode, done.stdout) == (0, "Ring\n"), done.stderr
    definition = runs.run("studies/first/study.yaml", *sh("exit 0"))
    assert definition.returncode == 2
    assert definition.stderr == (
        "nccltune: error: studies/first/study.yaml: that is a study's definition; its result is "
        "best.yaml beside it\n"
    )


def test_a_loader_that_is_named_in_vain(runs: Runs) -> None:
    done = runs.run(ENV_ONLY, "--loader-match", "trian.py:3", *sh("exit 0"))
    assert (
        "note: --loader-match trian.py:3 has no effect: no DataLoader settings are passed\n"
        in done.stderr
    )
    runs.write("loads.py", "from torch.utils.data import DataLoader\nDataLoader([1], 1)\n")
    done = runs.run(BEST, "--loader-match", "trian.py:3", "--", "torchrun", "loads.py")
    assert (
        "loader arguments were not used (num_workers=2): --loader-match trian.py:3 matches no "
        "DataLoader; made were: 1:list (loads.py:2)\n" in done.stderr
    )
    done = runs.run(BEST, "--", "torchrun", "loads.py")
    assert (
        "no DataLoader was taken for the training loader; made were: 1:list (loads.py:2); "
        "--loader-match names one\n" in done.stderr
    )


@pytest.mark.parametrize(
    ("file", "arguments", "message"),
    [
        ("best.yaml", [], "no command; give it after --"),
        ("none.yaml", ["--", "true"], "none.yaml: no such file"),
        ("bad.yaml", ["--", "true"], "bad.yaml: not a best.yaml of version 1"),
    ],
)
def test_mistakes_start_nothing(runs: Runs, file: str, arguments: list[str], message: str) -> None:
    runs.write("best.yaml", BEST.to_yaml())
    runs.write("bad.yaml", "version: 3")
    done = runs.run(file, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"nccltune: error: {message}" in done.stderr


# The machine and the job.


def here(**changed: Any) -> Mapping[str, Any]:
    machine, _ = this_machine(os.environ, use_gpus=False)
    return {**machine.to_dict(), **changed}


def test_the_same_machine_is_no_matter(runs: Runs) -> None:
    done = runs.run(replace(ENV_ONLY, machine=here()), "--strict", *sh("exit 4"))
    assert (done.returncode, done.stderr) == (4, f"{SET}\n")


def test_another_machine_is_told_or_refused(runs: Runs) -> None:
    cores = here()["cores"]
    best = replace(ENV_ONLY, machine=here(cores=cores + 30, cpu="EPYC"))
    matters = "(matters for loader settings)"
    lines = [
        f"CPU: EPYC where it was measured, {here()['cpu']} here {matters}",
        f"CPU cores: {cores + 30} where it was measured, {cores} here {matters}",
    ]
    done = runs.run(best, *sh("exit 4"))
    assert done.returncode == 4
    assert done.stderr == "".join(f"nccltune: note: {line}\n" for line in lines) + f"{SET}\n"
    strict = runs.run(best, "--strict", *sh("echo started"))
    assert (strict.returncode, strict.stdout) == (2, "")
    assert strict.stderr == (
        "nccltune: error: --strict: this is not the machine that was measured:\n"
        f"  {lines[0]}\n  {lines[1]}\n"
    )


def test_the_fingerprint_of_a_result_has_the_sites_variables(runs: Runs) -> None:
    measured = {"gpus": [], "site": {"GLOO_SOCKET_IFNAME": "eth7"}}
    best = replace(ENV_ONLY, machine=here(), fingerprint={"digest": "d", **measured})
    done = runs.run(best, *sh("exit 4"))
    told = "GLOO_SOCKET_IFNAME: 'eth7' where it was measured, not set here"
    assert f"note: {told} (matters for DDP and NCCL settings)\n" in done.stderr
    same = runs.run(best, *sh("exit 4"), GLOO_SOCKET_IFNAME="eth7")
    assert (same.returncode, "GLOO_SOCKET_IFNAME" in same.stderr) == (4, False)


def test_the_torch_of_the_jobs_own_python(runs: Runs) -> None:
    best = replace(ENV_ONLY, machine=here(torch="1.0.0+cu1", nccl="2.1.2"))
    done = runs.run(best, "--", "torchrun", "-c", "pass")
    assert "nccltune: note: torch: 1.0.0+cu1 where it was measured, 2." in done.stderr
    unknown = runs.run(best, *sh("exit 0"))  # whatever Python that may start
    assert "torch" not in unknown.stderr


def test_the_batch_size_is_the_scripts_own(runs: Runs) -> None:
    best = replace(ENV_ONLY, batch_size=64, workload={"batch_size": 8})
    done = runs.run(best, *sh("exit 0"))
    assert "measured with batch size 64 a rank, not the 8 of the job; the batch" in done.stderr


def test_what_it_was_measured_without(runs: Runs) -> None:
    best = replace(ENV_ONLY, provenance={"unpinned": ["NCCL_PROTO"]})
    done = runs.run(best, *sh("exit 0"), NCCL_PROTO="LL")
    assert "note: measured without NCCL_PROTO, which is set here\n" in done.stderr
    assert "PROTO" not in runs.run(best, *sh("exit 0")).stderr


# The way into the ranks.

SHOW = """
import os, sys
print(sys.argv, input())
print(sorted(n for n in os.environ if n.startswith(("NCCLTUNE", "PYTHON"))), "torch" in sys.modules)
print(os.environ["NCCL_ALGO"], os.path.basename(sys.path[0]), sys.prefix)
sys.exit(9)
"""


@pytest.mark.parametrize("command", ["torchrun", "sh start.sh", "python", "python -u -X dev"])
def test_a_script_sees_nothing_of_us(runs: Runs, command: str) -> None:
    runs.write("show.py", SHOW)
    runs.write("start.sh", 'torchrun "$@"')
    expected = runs.run(ENV_ONLY, "--", *command.split(), "show.py", "a b", stdin="in\n")
    assert expected.returncode == 9
    for arguments in (["show.py", "a b"], ["-m", "show", "a b"]):
        done = runs.run(BEST, "--", *command.split(), *arguments, stdin="in\n")
        assert done.returncode == 9
        if "-m" not in arguments:
            assert done.stdout == expected.stdout
        assert f"[] False\nRing {runs.folder.name} {sys.prefix}\n" in done.stdout


def test_the_attachment_outlives_us_and_is_shared(runs: Runs) -> None:
    runs.write("show.py", SHOW)
    for _ in range(2):
        assert runs.run(BEST, "--", "torchrun", "show.py", stdin="\n").returncode == 9
    assert len(os.listdir(runs.folder / "cache/nccltune")) == 1
    shutil.rmtree(runs.folder / "cache")
    assert runs.run(BEST, "--env-only", "--", "torchrun", "show.py", stdin="\n").returncode == 9
    assert not (runs.folder / "cache").exists()


def test_the_users_own_program_for_ranks(runs: Runs) -> None:
    other = runs.write("other", f'#!/bin/sh\necho other\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    runs.write("show.py", "import os; print(os.environ['PYTHON_EXEC'])")
    done = runs.run(BEST, "--", "torchrun", "show.py", PYTHON_EXEC=str(other))
    assert (done.returncode, done.stdout) == (0, f"other\n{other}\n")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("torchrun show.py", ALL),
        (
            "torchrun --no-python show.py",
            "nccltune: note: --no-python: DDP and loader arguments cannot be passed, variables are "
            f"set\n{SET}\n",
        ),
        (
            "sh -c exit",
            "nccltune: note: DDP and loader arguments reach only ranks that torchrun starts below "
            f"sh\n{ALL}",
        ),
        (
            "python show.py",
            "nccltune: note: DDP arguments are left out (bucket_cap_mb=50): ranks that a script "
            "starts by itself would not all have them; start it with torchrun\n"
            f"{SET}; for the script: loader: num_workers=2\n",
        ),
    ],
)
def test_what_can_be_passed_is_told(runs: Runs, command: str, told: str) -> None:
    runs.write("show.py", "")
    assert runs.run(BEST, "--", *command.split()).stderr == told


def test_a_rank_among_others_gets_ddps_arguments_too(runs: Runs) -> None:
    runs.write("show.py", "")
    done = runs.run(BEST, "--", "python", "show.py", WORLD_SIZE="2", RANK="0")
    assert done.stderr == ALL


def test_one_of_many_on_a_host_speaks(runs: Runs) -> None:
    runs.write("show.py", "")
    first = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
    assert runs.run(BEST, "--", "python", "show.py", **first).stderr == ALL
    other = {**first, "SLURM_LOCALID": "1"}
    assert runs.run(BEST, "--", "python", "show.py", **other).stderr == ""


def test_tracebacks_are_the_scripts_own(runs: Runs) -> None:
    runs.write("fails.py", "def f():\n    raise ValueError('x')\nf()\n")
    plain = runs.plain("torchrun", "fails.py")
    done = runs.run(BEST, "--", "torchrun", "fails.py")
    assert done.returncode == plain.returncode == 1
    assert done.stderr == ALL + plain.stderr
